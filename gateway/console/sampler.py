"""One reader of the fleet for all open pages of this process, once a second, and only while somebody looks."""

import asyncio
from collections.abc import AsyncGenerator
from weakref import WeakKeyDictionary

from gateway.console import fleet, latency
from gateway.console.fleet import Fleet
from gateway.console.history import History
from gateway.console.latency import Buckets

INTERVAL_S = 1.0


def look() -> tuple[Fleet, dict[str, Buckets]]:
    """All that is sampled. Blocks for the time of two round trips to Valkey."""
    return fleet.read(), latency.read()


class Sampler:
    def __init__(self) -> None:
        self.history = History()
        self._watchers = 0
        self._task: asyncio.Task[None] | None = None
        self._next: asyncio.Future[None] | None = None
        self._ended = False

    def end(self) -> None:
        """Let every watcher go: the process is about to stop, and would wait for their streams."""
        self._ended = True
        self._wake()

    async def watch(self) -> AsyncGenerator[History]:
        """The history after each sample. A watcher that is slow misses samples, it delays nobody."""
        loop = asyncio.get_running_loop()
        self._watchers += 1
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._sample())
        try:
            if self.history.latest is not None:
                yield self.history
            while not self._ended:
                if self._next is None or self._next.done():
                    self._next = loop.create_future()
                await asyncio.shield(self._next)
                if not self._ended:
                    yield self.history
        finally:
            self._watchers -= 1
            if not self._watchers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _sample(self) -> None:
        try:
            while True:
                self.history.add(*await asyncio.to_thread(look))
                self._wake()
                await asyncio.sleep(INTERVAL_S)
        except Exception as error:
            if self._next is not None and not self._next.done():
                self._next.set_exception(error)
            raise

    def _wake(self) -> None:
        if self._next is not None and not self._next.done():
            self._next.set_result(None)


_samplers: WeakKeyDictionary[asyncio.AbstractEventLoop, Sampler] = WeakKeyDictionary()


def sampler() -> Sampler:
    """The running event loop's sampler."""
    return _samplers.setdefault(asyncio.get_running_loop(), Sampler())
