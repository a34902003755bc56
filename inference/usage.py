"""Brings usage events from the journals to the Redis stream, again and again until the ledger has committed them.

The flusher answers each committed event by adding its sequence to the set `committed_key(epoch)`; only then does the journal let go of it.
An event appended twice is harmless: `(worker, epoch, sequence)` is unique in the ledger.
"""

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from msgspec import msgpack
from redis.asyncio import Redis
from redis.exceptions import RedisError

from inference.journal import Journal, left_behind
from inference.protocol.registry import USAGE_STREAM, committed_key
from inference.protocol.usage import UsageEvent

log = logging.getLogger(__name__)

_BATCH = 500
_SLOWEST_RETRY_S = 60.0


@dataclass(slots=True)
class _Unconfirmed:
    event: bytes
    due: float
    delay_s: float


class UsageOutbox:
    """The events of this process's journal, and of those that dead processes left in the same folder. Belongs to the event loop."""

    def __init__(self, redis: Redis, journal: Journal, *, retry_s: float = 5.0, poll_s: float = 1.0) -> None:
        self._redis = redis
        self._own = journal
        self._journals: dict[str, Journal] = {journal.epoch: journal}
        self._unconfirmed: dict[tuple[str, int], _Unconfirmed] = {}
        self._fresh: list[tuple[str, int]] = []
        self._retry_s = retry_s
        self._poll_s = poll_s
        self._wake = asyncio.Event()
        self._redis_run: str | None = None

    @property
    def unconfirmed(self) -> int:
        """Events that the ledger hasn't confirmed."""
        return len(self._unconfirmed)

    def publish(self, event: UsageEvent) -> None:
        """Append this event to the stream soon. It is in the journal already."""
        key = (event.epoch, event.sequence)
        self._unconfirmed[key] = _Unconfirmed(msgpack.encode(event), 0.0, self._retry_s)
        self._fresh.append(key)
        self._wake.set()

    def settle_left_behind(self, folder: Path) -> int:
        """Settle the journals of dead processes and publish what is in them. Returns how many events that are."""
        found = left_behind(folder)
        for path in found.unreadable:
            log.error("%s is no journal of this version; its usage is not settled", path)
        events = 0
        for journal in found.journals:
            journal.settle(occurred_at_ms=time.time_ns() // 1_000_000)
            self._journals[journal.epoch] = journal
            for event in journal.pending():
                self.publish(event)
                events += 1
            log.warning("settled the journal of worker %s, epoch %s: %d events", journal.worker, journal.epoch, journal.in_use)
            self._forget_when_empty(journal)
        return events

    async def run(self) -> None:
        """Append and poll until cancelled. An outage of Redis is outlived."""
        reachable = True
        polled = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._append(self._take_fresh())
                if time.monotonic() - polled >= self._poll_s:
                    polled = time.monotonic()
                    await self._poll()
                    await self._append(self._take_due(polled))
                reachable = True
            except (RedisError, OSError) as error:
                if reachable:
                    log.warning("usage stays in the journal until Redis answers: %s", error)
                reachable = False
                await asyncio.sleep(self._poll_s)

    async def flush(self, *, timeout_s: float) -> bool:
        """Append everything once more and wait for the ledger. False: the rest stays in the journal for the next start."""
        deadline = time.monotonic() + timeout_s
        try:
            self._fresh.clear()
            await self._append(self._take_due(time.monotonic()))
            while self._unconfirmed and time.monotonic() < deadline:
                await self._poll()
                if self._unconfirmed:
                    await asyncio.sleep(0.05)
        except (RedisError, OSError) as error:
            log.warning("Redis doesn't take the last usage events: %s", error)
        return not self._unconfirmed

    def close(self) -> None:
        """Close every journal; one with nothing left in it is deleted."""
        for journal in self._journals.values():
            if journal.in_use:
                journal.close()
            else:
                journal.delete()
        self._journals.clear()

    def _take_fresh(self) -> list[tuple[str, int]]:
        fresh, self._fresh = self._fresh, []
        return fresh

    def _take_due(self, now: float) -> list[tuple[str, int]]:
        return [key for key, event in self._unconfirmed.items() if event.due <= now]

    async def _append(self, keys: list[tuple[str, int]]) -> None:
        """XADD these. What fails stays due."""
        for start in range(0, len(keys), _BATCH):
            events = [event for key in keys[start : start + _BATCH] if (event := self._unconfirmed.get(key)) is not None]
            async with self._redis.pipeline(transaction=False) as pipe:
                for event in events:
                    pipe.xadd(USAGE_STREAM, {"event": event.event})
                await pipe.execute()
            now = time.monotonic()
            for event in events:
                event.due = now + event.delay_s
                # A flusher that is away for long must not find each event a thousand times.
                event.delay_s = min(event.delay_s * 2, max(_SLOWEST_RETRY_S, self._retry_s))

    async def _poll(self) -> None:
        """Take out what the ledger has committed; notice a Redis that was started anew."""
        epochs = list(self._journals)
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.info("server")
            for epoch in epochs:
                pipe.spop(committed_key(epoch), 10_000)
            server, *committed = await pipe.execute()
        for epoch, sequences in zip(epochs, committed, strict=True):
            journal = self._journals[epoch]
            for raw in sequences or ():
                sequence = int(raw)
                journal.commit(sequence)
                self._unconfirmed.pop((epoch, sequence), None)
            self._forget_when_empty(journal)
        run = str(server["run_id"])
        if self._redis_run is not None and run != self._redis_run:
            log.warning("Redis was started anew: appending %d unconfirmed events again", len(self._unconfirmed))
            for event in self._unconfirmed.values():
                event.due, event.delay_s = 0.0, self._retry_s
        self._redis_run = run

    def _forget_when_empty(self, journal: Journal) -> None:
        if journal is not self._own and not journal.in_use:
            del self._journals[journal.epoch]
            journal.delete()
