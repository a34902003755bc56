"""One ASGI application: the data plane, health probes and metrics in plain ASGI, WebSockets by Channels, everything else by Django."""

import logging
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
_django_application: Any = get_asgi_application()  # sets Django up: the imports below need it

from django.conf import settings  # noqa: E402

from gateway import generation, metrics  # noqa: E402
from gateway.api.application import application as _data_plane  # noqa: E402
from gateway.realtime.routing import application as _websockets  # noqa: E402

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Serve = Callable[[Scope, Receive, Send], Awaitable[None]]

_django: Serve = _django_application
_PROBES = frozenset({"/healthz", "/readyz"})


class Application:
    """Routes by the kind of connection, then by path. Its lifespan opens and closes the process's generations."""

    def __init__(self) -> None:
        self._metrics: metrics.MetricsEndpoint | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._http(scope)(scope, receive, send)
            case "websocket":
                await _websockets(scope, receive, send)
            case "lifespan":
                await self._live(receive, send)

    def _http(self, scope: Scope) -> Serve:
        path: str = scope["path"]
        if path.startswith("/v1/") or path == "/v1" or path in _PROBES:
            return _data_plane
        if path == "/metrics" and self._metrics is not None:
            return self._metrics
        return _django

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            self._metrics = metrics.MetricsEndpoint(lambda: generation.service().links, token=_metrics_token())
            await generation.service().open()
        except Exception as error:
            log.exception("the gateway can't start")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await generation.service().close()
        await send({"type": "lifespan.shutdown.complete"})


def _metrics_token() -> str | None:
    configuration = settings.CONFIGURATION
    if configuration.metrics_public:
        return None
    return configuration.metrics_token or metrics.keep_token(settings.LOCKGATE_HOME / "metrics.token")


application = Application()
