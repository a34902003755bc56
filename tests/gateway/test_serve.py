"""Web processes as the supervisor starts them: one shared socket, probes, metrics, bounds, and an orderly end."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis

from gateway.bounded_http import MAX_HEAD_BYTES
from tests.gateway.running_gateway import until
from tests.inference.worker_process import running_worker


@dataclass
class Web:
    url: str
    port: int
    processes: list[asyncio.subprocess.Process]
    home: Path

    async def get(self, path: str, **headers: str) -> httpx.Response:
        async with httpx.AsyncClient() as client:
            return await client.get(self.url + path, headers=headers)


@asynccontextmanager
async def web(home: Path, *, processes: int = 1, **variables: str) -> AsyncIterator[Web]:
    """Web processes on one inherited socket, serving."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        environment = os.environ | {
            "LOCKGATE_HOME": str(home),
            "LOCKGATE_SECRET_KEY": "s" * 40,
            "PROMETHEUS_MULTIPROC_DIR": str(home / "metrics"),
            **variables,
        }
        started = [
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "gateway.serve",
                "--fd",
                str(listener.fileno()),
                env=environment,
                pass_fds=(listener.fileno(),),
                stderr=asyncio.subprocess.DEVNULL,
            )
            for _ in range(processes)
        ]
    serving = Web(f"http://127.0.0.1:{port}", port, started, home)
    try:
        async with asyncio.timeout(60), httpx.AsyncClient(timeout=60) as client:
            assert (await client.get(f"{serving.url}/healthz")).status_code == 200
        yield serving
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_two_processes_share_a_socket_serve_and_end_in_order(redis: Redis, redis_url: str, tmp_path: Path):
    async with web(tmp_path, processes=2) as serving:
        for path, status in (("/readyz", 503), ("/v1/models", 401), ("/v1/nowhere", 404), ("/metrics", 401)):
            assert (await serving.get(path)).status_code == status, path
        assert "server" not in (await serving.get("/healthz")).headers

        token = (tmp_path / "metrics.token").read_text().strip()
        assert (await serving.get("/metrics", authorization=f"Bearer {token}")).status_code == 200

        async with running_worker(redis_url, tmp_path):

            async def ready() -> bool:
                return (await serving.get("/readyz")).status_code == 200

            async with asyncio.timeout(30):
                while not await ready():
                    await asyncio.sleep(0.05)
            told = (await serving.get("/metrics", authorization=f"Bearer {token}")).text
            assert 'lockgate_worker_up{model="synthetic",worker="w1"} 1.0' in told

            for process in serving.processes:
                process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                assert [await process.wait() for process in serving.processes] == [0, 0]


async def test_metrics_by_a_given_token_or_public(redis: Redis, tmp_path: Path):
    async with web(tmp_path, LOCKGATE_METRICS_TOKEN="given") as serving:
        assert (await serving.get("/metrics", authorization="Bearer given")).status_code == 200
        assert not (tmp_path / "metrics.token").exists()


@pytest.mark.parametrize("part", [b"x: ", b"x-more: y\r\n"], ids=["one endless header", "endless headers"])
async def test_an_endless_head_is_refused(redis: Redis, tmp_path: Path, part: bytes):
    async with web(tmp_path) as serving:
        reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + part)
        for _ in range(2 * MAX_HEAD_BYTES // 1024):
            writer.write(part * (1024 // len(part)) if part.endswith(b"\n") else b"a" * 1024)
        status = await reader.readline()
        assert b"400" in status
        writer.close()


async def test_a_socket_that_says_nothing_is_closed(monkeypatch):
    """The bound on the time for a head holds from the connection on."""
    from gateway import bounded_http

    monkeypatch.setattr(bounded_http, "HEAD_S", 0.05)
    import uvicorn

    server = uvicorn.Server(
        uvicorn.Config(lambda *_: None, port=0, http=bounded_http.BoundedHttpProtocol, lifespan="off", log_config=None, log_level="error")
    )
    running = asyncio.create_task(server._serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTT")
    async with asyncio.timeout(10):
        assert await reader.read() == b""
    writer.close()
    server.should_exit = True
    await running
