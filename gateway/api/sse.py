"""Server-sent events on one connection: the headers with the first byte, comments while nothing happens."""

import asyncio
from collections.abc import Sequence
from types import TracebackType

from gateway.api.connection import Connection
from gateway.api.errors import Header

PING_INTERVAL_S = 15.0
PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class EventStream:
    """Sends events in order; between them, after each idle interval, a comment that keeps the connection alive.

    The status goes out with the first event, so that a failure before it can still have its own. After one idle interval the comment
    comes first: then the status is 200, and a failure is an event.
    """

    def __init__(self, connection: Connection, headers: Sequence[Header], *, ping_interval_s: float | None = None) -> None:
        self._connection = connection
        self._headers = headers
        self._interval_s = PING_INTERVAL_S if ping_interval_s is None else ping_interval_s
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._last_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._ping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "EventStream":
        self._timer = self._loop.call_later(self._interval_s, self._look)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._ping is not None:
            self._ping.cancel()
            await asyncio.gather(self._ping, return_exceptions=True)

    def _look(self) -> None:
        idle_s = self._loop.time() - self._last_s
        wait_s = self._interval_s - idle_s
        if wait_s <= 0:
            wait_s = self._interval_s
            if not self._turn.locked():  # else something is being sent: the client reads slowly, it isn't left without news
                self._ping = asyncio.create_task(self._send_ping())
        self._timer = self._loop.call_later(wait_s, self._look)

    async def _send_ping(self) -> None:
        async with self._turn:
            if not self._connection.finished and not self._connection.gone:
                await self._send(PING, last=False)

    async def _send(self, data: bytes, *, last: bool) -> None:
        if not self._connection.started:
            self._connection.streaming = True
            await self._connection.start(200, [*HEADERS, *self._headers])
        await self._connection.send(data, last=last)
        self._last_s = self._loop.time()

    async def write(self, data: bytes) -> None:
        """Send events. Waits for a client that reads slowly; nothing is sent for empty data."""
        if data:
            async with self._turn:
                await self._send(data, last=False)

    async def close(self, data: bytes) -> None:
        """Send the last events and end the answer."""
        async with self._turn:
            await self._send(data, last=True)
