"""WebSocket paths."""

from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer
from channels.routing import URLRouter
from django.urls import path, re_path

from gateway.realtime.consumer import ResponsesConsumer


class Nowhere(AsyncWebsocketConsumer):  # type: ignore[misc]
    """Refuses the handshake on every other path."""

    channel_layer_alias = "none"

    async def connect(self) -> None:
        await self.close()


application: Any = URLRouter([path("v1/responses", ResponsesConsumer.as_asgi()), re_path(r"", Nowhere.as_asgi())])
