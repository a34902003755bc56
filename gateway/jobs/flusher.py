"""Moves usage from the Redis stream into the ledger, exactly once, and keeps admission's view of Postgres fresh.

A batch is committed to Postgres first; then Redis is settled where the gateway hasn't, the worker is told (it forgets the events then), and
the entries are acknowledged. A death in between only means that the next flusher does the rest again, with no effect on the ledger.
"""

import asyncio
import json
import logging
import os
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
from asgiref.sync import sync_to_async
from django.db import InterfaceError, OperationalError, close_old_connections
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

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
COMMITTED_TTL_S = 7 * 86_400
LONGEST_RETRY_S = 5.0

_decoder = msgspec.msgpack.Decoder(UsageEvent)
_account = msgspec.json.Decoder(dict[str, str])

Entry = tuple[bytes, dict[bytes, bytes]]


class Flusher:
    """One flusher. Any number may run; each entry is worked on by one of them at a time."""

    def __init__(self, redis: Redis, *, secret: bytes, name: str | None = None) -> None:
        self._redis = redis
        self._control = AdmissionControl(redis, secret=secret)
        self._projection = Projection(redis)
        self._name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Finish what is in hand, empty the stream once more, and return from `run`."""
        self._stop.set()

    async def run(self) -> None:
        """Flush until stopped. Outages of Redis or Postgres are waited out; nothing is lost meanwhile."""
        retry_s = 0.1
        tending = asyncio.create_task(self._tend())
        try:
            while True:
                stopping = self._stop.is_set()
                try:
                    moved = await self.flush_once(block_ms=0 if stopping else BLOCK_MS)
                    retry_s = 0.1
                except (RedisError, OSError, OperationalError, InterfaceError) as error:
                    log.warning("usage waits in the stream: %s", error)
                    if stopping:
                        return
                    await self._pause(retry_s)
                    retry_s = min(2 * retry_s, LONGEST_RETRY_S)
                    continue
                if stopping and not moved:
                    return
        finally:
            tending.cancel()
            with suppress(asyncio.CancelledError):
                await tending

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

    async def _abandoned(self) -> list[Entry]:
        """Entries that a flusher took and never acknowledged."""
        answer: Any = await self._redis.xautoclaim(USAGE_STREAM, GROUP, self._name, min_idle_time=CLAIM_IDLE_MS, count=BATCH)
        return [entry for entry in answer[1] if entry[1]]

    async def _own(self) -> list[Entry]:
        """Entries that this flusher took before an outage."""
        answer: Any = await self._redis.xreadgroup(GROUP, self._name, {USAGE_STREAM: "0"}, count=BATCH)
        return [entry for _, entries in answer for entry in entries if entry[1]]

    async def _new(self, block_ms: int) -> list[Entry]:
        answer: Any = await self._redis.xreadgroup(GROUP, self._name, {USAGE_STREAM: ">"}, count=BATCH, block=block_ms or None)
        return [entry for _, entries in answer for entry in entries]

    async def _move(self, entries: Sequence[Entry]) -> None:
        events: list[UsageEvent] = []
        rows: list[settlement.Event] = []
        for identifier, fields in entries:
            try:
                event = _decoder.decode(fields[b"event"])
                rows.append(ledger_event(event))
                events.append(event)
            except (msgspec.DecodeError, KeyError, ValueError) as error:
                # It can't be booked by anyone: it is kept for a person to look at, and doesn't stop the others.
                log.error("usage entry %s can't be read and goes to %s: %s", identifier.decode(), DEAD_LETTERS, error)
                await self._redis.xadd(
                    DEAD_LETTERS, {"entry": identifier, "error": str(error), **{k.decode(): v for k, v in fields.items()}}
                )
        numbers = await sync_to_async(_insert)(rows)
        for event, row in zip(events, rows, strict=True):
            account = _account.decode(event.account)
            await self._control.settle_from_ledger(event.request_id, row.charged, account=account, row=numbers[row.identity])
        async with self._redis.pipeline(transaction=False) as pipeline:
            for epoch in {event.epoch for event in events}:
                pipeline.sadd(committed_key(epoch), *(event.sequence for event in events if event.epoch == epoch))
                pipeline.expire(committed_key(epoch), COMMITTED_TTL_S)
            identifiers = [identifier for identifier, _ in entries]
            pipeline.xack(USAGE_STREAM, GROUP, *identifiers)
            pipeline.xdel(USAGE_STREAM, *identifiers)
            await pipeline.execute()

    async def _tend(self) -> None:
        """Every second: is Redis the one we built, what does the outbox hold, which holds have expired."""
        while True:
            try:
                await self._projection.ensure_ready()
                await self._projection.replay_outbox()
                await self._control.reap()
                await self._redis.set(HEARTBEAT, self._name, ex=HEARTBEAT_TTL_S)
            except (RedisError, OSError, OperationalError, InterfaceError) as error:
                log.warning("admission isn't kept fresh: %s", error)
                await sync_to_async(close_old_connections)()
            await asyncio.sleep(1.0)

    async def _pause(self, seconds: float) -> None:
        await sync_to_async(close_old_connections)()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)


def _insert(rows: list[settlement.Event]) -> dict[tuple[str, str, int], int]:
    close_old_connections()
    return settlement.insert(rows)


def ledger_event(event: UsageEvent) -> settlement.Event:
    """The usage event in the ledger's terms. Raises ValueError or KeyError if its account isn't one that admission made."""
    account = _account.decode(event.account)
    c = event.counters
    return settlement.Event(
        occurred_at=datetime.fromtimestamp(event.occurred_at_ms / 1000, UTC),
        worker=event.worker,
        epoch=event.epoch,
        sequence=event.sequence,
        request_id=event.request_id,
        tenant_id=account["t"],
        project_id=account["p"],
        key_id=account["k"],
        model=account["m"],
        endpoint=account["e"],
        reason=event.reason.value,
        budget_day=int(account["d"]),
        budget_month=int(account["o"]),
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


def account_text(**fields: str) -> str:
    """An account as admission writes it; for tests and tools."""
    return json.dumps(fields, separators=(",", ":"))
