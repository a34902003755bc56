import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import uvicorn

from gateway import generation
from gateway.api.application import application
from tests.gateway.api.scripted import AUTHORIZATION, ScriptedGenerations


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> ScriptedGenerations:
    scripted = ScriptedGenerations()
    monkeypatch.setattr(generation, "service", lambda: scripted)
    return scripted


@pytest.fixture
async def client(service: ScriptedGenerations) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=application)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=AUTHORIZATION) as client:
        yield client


@pytest.fixture
def server(service: ScriptedGenerations) -> Iterator[str]:
    """The application behind a real server in a thread of its own; its address."""
    config = uvicorn.Config(application, host="127.0.0.1", port=0, lifespan="off", log_level="warning")
    server = uvicorn.Server(config)
    ready = threading.Event()
    startup = server.startup

    async def started(*args: Any, **kwargs: Any) -> None:
        await startup(*args, **kwargs)
        ready.set()

    server.startup = started  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    assert ready.wait(10)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


class Browser:
    """Drives the application as a server would, message by message."""

    def __init__(self, path: str, body: Any, *, headers: dict[str, str] | None = None) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": raw, "more_body": False})
        self.sent: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        self.reading = asyncio.Event()
        """Cleared: the client doesn't read, so that whoever sends to it waits."""
        self.reading.set()
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in (AUTHORIZATION | (headers or {})).items()],
        }
        self.task = asyncio.create_task(application(scope, self._inbox.get, self._send))

    async def _send(self, message: dict[str, Any]) -> None:
        await self.reading.wait()
        self.sent.append(message)
        self._news.set()

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent if message["type"] == "http.response.body"]

    @property
    def data(self) -> bytes:
        return b"".join(self.bodies)

    async def until(self, part: bytes) -> None:
        """Wait until the answer contains this."""
        while part not in self.data:
            self._news.clear()
            async with asyncio.timeout(10):
                await self._news.wait()

    def hang_up(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def done(self) -> None:
        async with asyncio.timeout(10):
            await self.task


def events(data: bytes) -> list[Any]:
    """The data of server-sent events, comments left out; `[DONE]` as a string."""
    found = []
    for block in data.decode().split("\n\n"):
        for line in block.split("\n"):
            if line.startswith("data: "):
                text = line.removeprefix("data: ")
                found.append(text if text == "[DONE]" else json.loads(text))
    return found
