"""One web process: `python -m gateway.serve --port 8000`, or `--fd N` on a listening socket that several of them share."""

import argparse
import asyncio
import logging
import os
import resource
import signal
import socket
from types import FrameType

import uvicorn

from gateway import configuration
from gateway.bounded_http import BoundedHttpProtocol

DRAIN_S = 20.0
"""After SIGTERM, running streams get this long to come to their end; then they end with an error event."""
_LAST_WORDS_S = 5
_KEEP_ALIVE_S = 30
_BACKLOG = 2048
_MAX_MESSAGE_BYTES = 1024 * 1024
_PING_S = 20.0


class Server(uvicorn.Server):
    """Ends what runs in order: streams in time, or by an error that the client hears."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        from gateway import generation
        from gateway.console.sampler import sampler

        sampler().end()
        draining = asyncio.create_task(generation.service().drain(DRAIN_S))
        try:
            await super().shutdown(sockets)
        finally:
            draining.cancel()


def server() -> Server:
    """The web server of this process."""
    return Server(
        uvicorn.Config(
            "gateway.asgi:application",
            loop="uvloop",
            http=BoundedHttpProtocol,
            lifespan="on",
            interface="asgi3",
            log_config=None,
            log_level=logging.WARNING,  # uvicorn would log WebSocket URLs with their query strings
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(DRAIN_S) + _LAST_WORDS_S,
            ws_max_size=_MAX_MESSAGE_BYTES,
            ws_ping_interval=_PING_S,
            ws_ping_timeout=_PING_S,
            ws_per_message_deflate=False,
        )
    )


def listener(arguments: argparse.Namespace) -> socket.socket:
    """The socket to serve: an inherited one, or a new one."""
    if arguments.fd is not None:
        return socket.socket(fileno=arguments.fd)
    family = socket.AF_INET6 if ":" in arguments.host else socket.AF_INET
    return socket.create_server((arguments.host, arguments.port), family=family, backlog=_BACKLOG)


def _heard(number: int, frame: FrameType | None) -> None:
    """uvicorn raises the signal again after its shutdown: by then there is nothing left to do."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gateway.serve", description="One web process.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=configuration.read().port)
    parser.add_argument("--fd", type=int, help="an inherited listening socket, instead of --host and --port")
    arguments = parser.parse_args()
    _allow_many_connections()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _heard)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
    from gateway import metrics

    metrics.forget_dead_processes()
    try:
        server().run(sockets=[listener(arguments)])
    finally:
        metrics.leave()


def _allow_many_connections() -> None:
    """A connection is a file: take as many as this user may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
