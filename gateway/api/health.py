"""GET /healthz and GET /readyz: for whoever restarts or routes, without a key."""

from gateway import generation
from gateway.api.connection import Connection


async def healthz(connection: Connection) -> None:
    """The process answers."""
    await connection.respond(200, b'{"status":"ok"}')


async def readyz(connection: Connection) -> None:
    """Requests can be served: at least one model is there."""
    if generation.service().models():
        await connection.respond(200, b'{"status":"ready"}')
    else:
        await connection.respond(503, b'{"status":"not ready","reason":"no worker is connected"}', [(b"retry-after", b"2")])
