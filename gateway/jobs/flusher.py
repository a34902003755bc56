"""Moves usage from the Redis stream into the ledger, exactly once, and keeps admission's view of Postgres fresh.

A batch is committed to Postgres first. Then, at one stroke for each entry, Redis counts it, the worker is told (it forgets the event then)
and the entry is acknowledged. A death in between only means that the next flusher does the rest again, with no effect on what was done.
"""

import asyncio
import logging
import os
import secrets
import socket
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
from asgiref.sync import sync_to_async
from django.db import DataError, IntegrityError, InterfaceError, OperationalError, close_old_connections
from django.utils import timezone
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from gateway.admission.booking import COMMITTED_TTL_MS, Booked, book
from gateway.admission.control import AdmissionControl
from gateway.admission.projection import Projection
from inference.protocol.registry import USAGE_STREAM, committed_key
from inference.protocol.usage import UsageEvent
from tenants.ledger import settlement

log = logging.getLogger(__name__)

GROUP = "flusher"
DEAD_LETTERS = f"{USAGE_STREAM}:dead"
HEARTBEAT = "lockgate:flusher"
HEARTBEAT_TTL_S = 15
BATCH = 1000
BLOCK_MS = 500
CLAIM_IDLE_MS = 30_000
CONSUMER_GONE_MS = 3_600_000
TEND_S = 1.0
LONGEST_RETRY_S = 5.0
PARTITION_MONTHS = 3

_OUTAGES = (RedisError, OSError, OperationalError, InterfaceError)

_decoder = msgspec.msgpack.Decoder(UsageEvent)
_account = msgspec.json.Decoder(dict[str, str])

Entry = tuple[bytes, dict[bytes, bytes]]


class Flusher:
    """One flusher. Any number may run; each entry is worked on by one of them at a time."""

    def __init__(self, redis: Redis, *, name: str | None = None, claim_idle_ms: int = CLAIM_IDLE_MS) -> None:
        self._redis = redis
        self._control = AdmissionControl(redis, secret=b"")
        self._projection = Projection(redis)
        self._name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._claim_idle_ms = claim_idle_ms
        self._stop = asyncio.Event()
        self._alive_at = 0.0

    def stop(self) -> None:
        """Finish what is in hand, empty the stream once more, and return from `run`."""
        self._stop.set()

    async def run(self) -> None:
        """Flush until stopped. Outages of Redis or Postgres are waited out; nothing is lost meanwhile."""
        async with asyncio.TaskGroup() as tasks:
            tending = tasks.create_task(self._keep_tending())
            await self._keep_flushing()
            tending.cancel()

    async def _keep_flushing(self) -> None:
        retry_s = 0.1
        while True:
            stopping = self._stop.is_set()
            try:
                moved = await self.flush_once(block_ms=0 if stopping else BLOCK_MS)
                await self._say_alive()
                if stopping and not moved:
                    await self._leave_group()
                retry_s = 0.1
            except _OUTAGES as error:
                log.warning("usage waits in the stream: %s", error)
                if stopping:
                    return
                await sync_to_async(close_old_connections)()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), retry_s)
                retry_s = min(2 * retry_s, LONGEST_RETRY_S)
                continue
            if stopping and not moved:
                return

    async def _say_alive(self) -> None:
        if time.monotonic() - self._alive_at > HEARTBEAT_TTL_S / 5:
            self._alive_at = time.monotonic()
            await self._redis.set(HEARTBEAT, self._name, ex=HEARTBEAT_TTL_S)

    async def _keep_tending(self) -> None:
        partitions_made: str | None = None
        while True:
            try:
                await self.tend_once()
                if partitions_made != (month := f"{timezone.now():%Y-%m}"):
                    await sync_to_async(settlement.make_partitions)(first=timezone.now().date(), months=PARTITION_MONTHS)
                    partitions_made = month
            except _OUTAGES as error:
                log.warning("admission isn't kept fresh: %s", error)
                await sync_to_async(close_old_connections)()
            await asyncio.sleep(TEND_S)

    async def tend_once(self) -> None:
        """Is Redis the one we built, what does the outbox hold, which holds have run out of time."""
        await self._projection.ensure_ready()
        await self._projection.replay_outbox()
        await self._control.tend()

    async def flush_once(self, *, block_ms: int = 0) -> int:
        """Move one batch; returns how many entries."""
        await self._make_group()
        entries = await self._abandoned() or await self._own() or await self._new(block_ms)
        if entries:
            await self._move(entries)
        return len(entries)

    async def _make_group(self) -> None:
        try:
            await self._redis.xgroup_create(USAGE_STREAM, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def _leave_group(self) -> None:
        """Take this flusher's name out of the group, and those of flushers long dead: only where nothing is pending under them."""
        consumers: Any = await self._redis.xinfo_consumers(USAGE_STREAM, GROUP)
        for consumer in consumers:
            own = consumer["name"] == self._name.encode()
            if not consumer["pending"] and (own or consumer["idle"] > CONSUMER_GONE_MS):
                await self._redis.xgroup_delconsumer(USAGE_STREAM, GROUP, consumer["name"])

    async def _abandoned(self) -> list[Entry]:
        """Entries that a flusher took and never acknowledged."""
        answer: Any = await self._redis.xautoclaim(USAGE_STREAM, GROUP, self._name, min_idle_time=self._claim_idle_ms, count=BATCH)
        return [entry for entry in answer[1] if entry[1]]

    async def _own(self) -> list[Entry]:
        """Entries that this flusher took before an outage."""
        answer: Any = await self._redis.xreadgroup(GROUP, self._name, {USAGE_STREAM: "0"}, count=BATCH)
        entries = [entry for _, entries in answer for entry in entries]
        if gone := [identifier for identifier, fields in entries if not fields]:
            await self._redis.xack(USAGE_STREAM, GROUP, *gone)  # somebody deleted them: there is nothing to move
        return [entry for entry in entries if entry[1]]

    async def _new(self, block_ms: int) -> list[Entry]:
        answer: Any = await self._redis.xreadgroup(GROUP, self._name, {USAGE_STREAM: ">"}, count=BATCH, block=block_ms or None)
        return [entry for _, entries in answer for entry in entries]

    async def _move(self, entries: Sequence[Entry]) -> None:
        readable: list[settlement.Event] = []
        for identifier, fields in entries:
            event: UsageEvent | None = None
            try:
                event = _decoder.decode(fields[b"event"])
                readable.append(ledger_event(event, source=identifier.decode()))
            except (msgspec.MsgspecError, KeyError, ValueError, OverflowError, OSError) as error:
                await self._bury(identifier.decode(), fields, error, None if event is None else (event.epoch, event.sequence))
        unbookable: list[tuple[settlement.Event, Exception]] = []
        rows = await sync_to_async(_insert)(readable, unbookable)
        raw = dict(entries)
        for refused, reason in unbookable:
            await self._bury(refused.source, raw[refused.source.encode()], reason, (refused.epoch, refused.sequence))
        booked = [
            Booked(entry=event.source, event=event, row=row.row, is_source=row.source == event.source)
            for event in readable
            if (row := rows.get(event.identity)) is not None
        ]
        await book(self._redis, booked, stream=USAGE_STREAM, group=GROUP)

    async def _bury(self, identifier: str, fields: dict[bytes, bytes], error: Exception, of: tuple[str, int] | None) -> None:
        """It can't be booked by anyone: it is kept for a person to look at, and doesn't stop the others.

        `of`, its epoch and sequence: its worker is told that it arrived, or would send it again for ever.
        """
        log.error("usage entry %s can't be booked and goes to %s: %s", identifier, DEAD_LETTERS, error)
        letter = {"entry": identifier, "error": str(error), **{name.decode(errors="replace"): value for name, value in fields.items()}}
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.xadd(DEAD_LETTERS, letter)  # type: ignore[arg-type]  # text and bytes in one dict
            if of is not None:
                epoch, sequence = of
                pipeline.sadd(committed_key(epoch), sequence)
                pipeline.pexpire(committed_key(epoch), COMMITTED_TTL_MS)
            pipeline.xack(USAGE_STREAM, GROUP, identifier)
            pipeline.xdel(USAGE_STREAM, identifier)
            await pipeline.execute()


def _insert(
    events: list[settlement.Event], unbookable: list[tuple[settlement.Event, Exception]]
) -> dict[tuple[str, str, int], settlement.Inserted]:
    """Insert them; where Postgres refuses some for what they are, all others."""
    close_old_connections()
    try:
        return settlement.insert(events)
    except (DataError, IntegrityError) as error:
        if len(events) == 1:
            unbookable.append((events[0], error))
            return {}
    middle = len(events) // 2
    return _insert(events[:middle], unbookable) | _insert(events[middle:], unbookable)


def ledger_event(event: UsageEvent, *, source: str = "") -> settlement.Event:
    """The usage event in the ledger's terms. Raises ValueError, KeyError or msgspec's if its account isn't one that admission made."""
    account = _account.decode(event.account)
    c = event.counters
    return settlement.Event(
        occurred_at=datetime.fromtimestamp(event.occurred_at_ms / 1000, UTC),
        worker=event.worker,
        epoch=event.epoch,
        sequence=event.sequence,
        request_id=event.request_id,
        tenant_id=str(uuid.UUID(account["t"])),
        project_id=str(uuid.UUID(account["p"])),
        key_id=str(uuid.UUID(account["k"])),
        model=account["m"],
        endpoint=account["e"],
        reason=event.reason.value,
        budget_day=int(account["d"]),
        budget_month=int(account["o"]),
        source=source,
        quantities=(
            c.prompt_tokens,
            c.computed_tokens,
            c.cached_tokens,
            c.recomputed_tokens,
            c.generated_tokens,
            c.billed_tokens,
            c.wasted_tokens,
            c.drafted_tokens,
            c.accepted_tokens,
            round(c.queue_s * 1e6),
            round(c.prefill_s * 1e6),
            round(c.decode_s * 1e6),
            round(c.kv_block_s * 1e3),
            c.preemptions,
        ),
    )
