"""Web servers with the WebSocket API, each with generations of its own as a process has, over one real worker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest
import pytest_asyncio
import uvicorn
import websockets
from msgspec import json

from gateway import generation
from gateway.bounded_http import BoundedHttpProtocol
from gateway.generation import Generations
from gateway.realtime.routing import application
from tests.gateway.running_gateway import gateway
from tests.gateway.scripted_admissions import ScriptedAdmissions
from tests.inference.worker_process import WorkerProcess, running_worker

_of_this_server: ContextVar[Generations] = ContextVar("generations")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerProcess]:
    home = tmp_path_factory.mktemp("worker")
    async with running_worker(redis_url, home, model="synthetic:rate=200,eos=128") as process:
        yield process


@pytest.fixture
def admissions() -> ScriptedAdmissions:
    return ScriptedAdmissions(tranche=4_000)


class Server:
    """A running web server."""

    def __init__(self, port: int, generations: Generations) -> None:
        self.url = f"ws://127.0.0.1:{port}/v1/responses"
        self.generations = generations

    def connect(self, key: str = "acme", **options: Any) -> "websockets.connect":
        return websockets.connect(self.url, additional_headers={"Authorization": f"Bearer {key}"}, **options)


@asynccontextmanager
async def serving(generations: Generations) -> AsyncIterator[Server]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        _of_this_server.set(generations)
        await application(scope, receive, send)

    server = uvicorn.Server(
        uvicorn.Config(app, port=0, http=BoundedHttpProtocol, lifespan="off", log_config=None, log_level="warning", ws_max_size=1024 * 1024)
    )
    running = asyncio.create_task(server._serve())
    try:
        async with asyncio.timeout(20):
            while not server.started:
                await asyncio.sleep(0.01)
        yield Server(server.servers[0].sockets[0].getsockname()[1], generations)
    finally:
        server.should_exit = True
        await running


@pytest_asyncio.fixture(loop_scope="module")
async def server(redis_url, worker, admissions, monkeypatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(generation, "service", _of_this_server.get)
    async with gateway(redis_url, admissions) as generations, serving(generations) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def other_server(redis_url, worker, admissions, server) -> AsyncIterator[Server]:
    async with gateway(redis_url, admissions) as generations, serving(generations) as one:
        yield one


class Client:
    """Speaks JSON events over one connection."""

    def __init__(self, connection: websockets.ClientConnection) -> None:
        self.connection = connection

    async def send(self, **event: object) -> None:
        await self.connection.send(json.encode(event).decode())

    async def create(self, **fields: object) -> None:
        await self.send(**{"type": "response.create", "model": "synthetic", "input": "hello", "temperature": 0} | fields)

    async def receive(self) -> dict[str, Any]:
        async with asyncio.timeout(20):
            return json.decode(await self.connection.recv())

    async def until(self, *kinds: str, response_id: str | None = None) -> list[dict[str, Any]]:
        """Everything up to the first event of one of these kinds."""
        events = []
        while True:
            event = await self.receive()
            if response_id in (None, event.get("response_id")):
                events.append(event)
                if event["type"] in kinds:
                    return events
