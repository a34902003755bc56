"""Events reach the stream, come again until they are confirmed, and only then leave the journal."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import msgpack
from redis.asyncio import Redis

from inference.journal import Journal, left_behind
from inference.protocol.registry import USAGE_STREAM, committed_key
from inference.protocol.usage import Counters, FinishReason, UsageEvent
from inference.usage import UsageOutbox
from tests.inference.worker_process import eventually


def finished(journal: Journal, request_id: str = "r1") -> UsageEvent:
    return journal.finish(journal.open(request_id, "acme"), Counters(prompt_tokens=5), reason=FinishReason.STOP, occurred_at_ms=17)


async def in_stream(redis: Redis) -> list[UsageEvent]:
    return [msgpack.decode(entry[b"event"], type=UsageEvent) for _, entry in await redis.xrange(USAGE_STREAM)]


async def appended(redis: Redis, count: int) -> list[UsageEvent]:
    """The stream once it has so many entries."""

    async def enough() -> list[UsageEvent] | None:
        events = await in_stream(redis)
        return events if len(events) >= count else None

    return await eventually(enough)


async def confirmed(outbox: UsageOutbox) -> bool:
    return not outbox.unconfirmed


@asynccontextmanager
async def running(outbox: UsageOutbox) -> AsyncIterator[None]:
    task = asyncio.create_task(outbox.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_event_comes_again_until_it_is_committed_and_then_leaves_the_journal(redis: Redis, tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, worker="w", epoch="e1")
    outbox = UsageOutbox(redis, journal, retry_s=0.05, poll_s=0.02)
    event = finished(journal)
    async with running(outbox):
        outbox.publish(event)
        assert set(map(repr, await appended(redis, 3))) == {repr(event)}
        assert journal.in_use == 1
        await redis.sadd(committed_key("e1"), str(event.sequence))
        await eventually(lambda: confirmed(outbox))
    assert journal.in_use == 0
    assert await redis.scard(committed_key("e1")) == 0
    outbox.close()
    assert not list(tmp_path.iterdir())


async def test_confirmation_of_an_unknown_event_is_taken_out_and_ignored(redis: Redis, tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, worker="w", epoch="e1")
    outbox = UsageOutbox(redis, journal, poll_s=0.02)
    event = finished(journal)
    outbox.publish(event)
    await redis.sadd(committed_key("e1"), "77")

    async def taken_out() -> bool:
        return not await redis.exists(committed_key("e1"))

    async with running(outbox):
        await eventually(taken_out)
    assert list(journal.pending()) == [event]
    outbox.close()


async def test_journals_of_dead_processes_are_settled_and_deleted_once_committed(redis: Redis, tmp_path: Path) -> None:
    dead = Journal.create(tmp_path, worker="w0", epoch="e0")
    dead.record(dead.open("r1", "acme"), Counters(prompt_tokens=5, generated_tokens=3, billed_tokens=3))
    dead.close()
    journal = Journal.create(tmp_path, worker="w", epoch="e1")
    outbox = UsageOutbox(redis, journal, poll_s=0.02)
    assert outbox.settle_left_behind(tmp_path) == 1
    async with running(outbox):
        (event,) = await appended(redis, 1)
        assert (event.worker, event.epoch, event.request_id, event.reason) == ("w0", "e0", "r1", FinishReason.CRASH)
        assert event.counters.billed_tokens == 3
        await redis.sadd(committed_key("e0"), str(event.sequence))
        await eventually(lambda: confirmed(outbox))
    assert not dead.path.exists()
    assert journal.path.exists()
    outbox.close()


async def test_what_is_not_confirmed_stays_for_the_next_start(redis: Redis, tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, worker="w", epoch="e1")
    outbox = UsageOutbox(redis, journal)
    event = finished(journal)
    outbox.publish(event)
    assert not await outbox.flush(timeout_s=0.1)
    outbox.close()
    assert await in_stream(redis) == [event]
    (found,) = left_behind(tmp_path).journals
    assert list(found.pending()) == [event]
    found.close()


async def test_events_wait_out_an_outage(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, worker="w", epoch="e1")
    nowhere = Redis.from_url("redis://127.0.0.1:1")
    outbox = UsageOutbox(nowhere, journal, poll_s=0.02)
    event = finished(journal)
    outbox.publish(event)
    async with running(outbox):
        assert not await outbox.flush(timeout_s=0.1)
        nowhere.connection_pool = Redis.from_url(redis_url).connection_pool  # it is back
        assert await appended(redis, 1) == [event]
    outbox.close()
    await nowhere.aclose()
