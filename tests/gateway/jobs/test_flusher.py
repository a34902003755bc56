"""From the stream into the ledger, exactly once, on a real Postgres and a real Valkey."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections
from django.db.models import Sum
from msgspec import msgpack
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.admission.control import READY, AdmissionControl, digest_of
from gateway.admission.outcomes import Call, Granted
from gateway.admission.projection import Projection
from gateway.jobs import flusher as flusher_module
from gateway.jobs.flusher import DEAD_LETTERS, GROUP, Flusher
from inference.protocol.registry import USAGE_STREAM, committed_key
from inference.protocol.usage import Counters, FinishReason, UsageEvent
from tenants import services
from tenants.ledger import settlement
from tenants.ledger.models import QUANTITIES
from tenants.models import BudgetUse, LedgerEvent, UsageDay, UsageHour
from tenants.services import Actor, CreatedKey

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
async def clean_ledger(transactional_db: None) -> AsyncIterator[None]:
    """The ledger's table is none of Django's, so nobody empties it after a test; and a thread's connection must not outlive the test."""
    yield
    await sync_to_async(_empty_ledger)()


def _empty_ledger() -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE tenants_ledgerevent")
    connections.close_all()


@pytest.fixture
def created() -> CreatedKey:
    """A key of a tenant with a budget."""
    actor = Actor(name="olga")
    tenant = services.create_tenant("Acme", {"tokens_per_day": 100_000}, actor=actor)
    return services.create_key(tenant.projects.get().pk, {"name": "k"}, actor=actor)


@pytest.fixture
async def opened(redis: Redis, created: CreatedKey) -> CreatedKey:
    await Projection(redis).ensure_ready()
    return created


@pytest.fixture
def control(redis: Redis) -> AdmissionControl:
    return AdmissionControl(redis, secret=b"x" * 32)


@pytest.fixture
def flusher(redis: Redis) -> Flusher:
    return Flusher(redis, claim_idle_ms=0)


def call(key: CreatedKey, request_id: str) -> Call:
    return Call(digest=digest_of(key.secret), request_id=request_id, model="m", endpoint="completions", prompt_tokens=10, max_tokens=500)


async def admitted(control: AdmissionControl, key: CreatedKey, request_id: str) -> Granted:
    admission = await control.admit(call(key, request_id))
    assert isinstance(admission, Granted), admission
    return admission


def used(generated: int) -> Counters:
    return Counters(
        prompt_tokens=10, computed_tokens=10, generated_tokens=generated, billed_tokens=generated, decode_s=1.5, kv_block_s=0.25
    )


def event(granted: Granted, request_id: str, sequence: int, generated: int = 30, *, epoch: str = "e") -> UsageEvent:
    return UsageEvent(
        worker="w",
        epoch=epoch,
        sequence=sequence,
        request_id=request_id,
        account=granted.account,
        occurred_at_ms=time.time_ns() // 1_000_000,
        reason=FinishReason.LENGTH,
        counters=used(generated),
    )


async def publish(redis: Redis, *events: UsageEvent) -> None:
    for each in events:
        await redis.xadd(USAGE_STREAM, {"event": msgpack.encode(each)})


def sums(model: type[LedgerEvent] | type[UsageHour] | type[UsageDay]) -> dict[str, int]:
    return {name: total or 0 for name, total in model.objects.aggregate(**{name: Sum(name) for name in QUANTITIES}).items()}


async def counted(redis: Redis, what: str) -> dict[str, int]:
    """Captured or held tokens of the running day, of each scope; scopes that count none are left out."""
    found: dict[str, int] = {}
    for name in await redis.keys("lockgate:scope:*"):
        for field, value in (await redis.hgetall(name)).items():
            if field.startswith(f"{what}:day:".encode()) and int(value):
                found[name.decode().split(":")[2]] = int(value)
    return found


def every_scope(tokens: int) -> dict[str, int]:
    return dict.fromkeys(("key", "project", "tenant"), tokens)


async def nothing_is_open(redis: Redis) -> bool:
    leases = [await redis.zcard(name) for name in ("lockgate:holds", "lockgate:orphans", "lockgate:unbooked")]
    inflight = [await redis.zcard(name) for name in await redis.keys("lockgate:inflight:*")]
    return not any(leases) and not any(inflight) and not await redis.keys("lockgate:hold:*") and not await counted(redis, "held")


async def test_batch_goes_into_ledger_and_rollups_and_the_worker_is_told(redis, opened, control, flusher):
    for number in range(1, 4):
        granted = await admitted(control, opened, f"r{number}")
        await control.settle(f"r{number}", used(30), FinishReason.LENGTH)
        await publish(redis, event(granted, f"r{number}", number))

    assert await flusher.flush_once() == 3

    ledger = await sync_to_async(sums)(LedgerEvent)
    assert ledger["billed_tokens"] == 90
    assert ledger["decode_us"] == 4_500_000
    assert ledger["kv_block_ms"] == 750
    assert await sync_to_async(sums)(UsageHour) == ledger
    assert await sync_to_async(sums)(UsageDay) == ledger
    assert await redis.smembers(committed_key("e")) == {b"1", b"2", b"3"}
    assert await redis.ttl(committed_key("e")) > 0
    assert await redis.xlen(USAGE_STREAM) == 0
    assert (await redis.xpending(USAGE_STREAM, GROUP))["pending"] == 0
    assert await counted(redis, "captured") == every_scope(120)
    assert await nothing_is_open(redis)
    assert not await redis.keys("lockgate:hold:*")


async def test_what_no_gateway_settled_is_settled_by_the_flusher(redis, opened, control, flusher):
    granted = await admitted(control, opened, "r1")
    await redis.hset("lockgate:hold:r1", "state", "claimed")
    await publish(redis, event(granted, "r1", 1))
    await flusher.flush_once()
    assert await counted(redis, "captured") == every_scope(40)
    assert await nothing_is_open(redis)
    assert not await redis.zcard("lockgate:holds")
    assert not await control.settle("r1", used(30), FinishReason.LENGTH)
    assert await counted(redis, "captured") == every_scope(40)


async def test_duplicates_count_once_in_one_batch_and_in_two(redis, opened, control, flusher):
    granted = await admitted(control, opened, "r1")
    once = event(granted, "r1", 1)
    await publish(redis, once, once)
    assert await flusher.flush_once() == 2
    await publish(redis, once)
    assert await flusher.flush_once() == 1
    assert await LedgerEvent.objects.acount() == 1
    assert (await sync_to_async(sums)(UsageDay))["billed_tokens"] == 30
    assert await counted(redis, "captured") == every_scope(40)


async def test_entries_of_a_dead_flusher_are_taken_over(redis, opened, control, flusher):
    granted = await admitted(control, opened, "r1")
    await publish(redis, event(granted, "r1", 1))
    await redis.xgroup_create(USAGE_STREAM, GROUP, id="0")
    await redis.xreadgroup(GROUP, "dead", {USAGE_STREAM: ">"})
    assert await flusher.flush_once() == 1
    assert await LedgerEvent.objects.acount() == 1
    assert (await redis.xpending(USAGE_STREAM, GROUP))["pending"] == 0


async def dies(*_: object, **__: object) -> None:
    raise RedisConnectionError("killed")


async def test_death_between_commit_and_acknowledgement_changes_nothing(redis, opened, control, flusher, monkeypatch):
    granted = await admitted(control, opened, "r1")
    await publish(redis, event(granted, "r1", 1))
    with monkeypatch.context() as patched:
        patched.setattr(flusher_module, "book", dies)
        with pytest.raises(RedisConnectionError):
            await flusher.flush_once()
    assert await LedgerEvent.objects.acount() == 1
    assert await redis.xlen(USAGE_STREAM) == 1

    assert await Flusher(redis, claim_idle_ms=0).flush_once() == 1
    assert await LedgerEvent.objects.acount() == 1
    assert (await sync_to_async(sums)(UsageHour))["billed_tokens"] == 30
    assert await counted(redis, "captured") == every_scope(40)
    assert await nothing_is_open(redis)


async def test_death_before_the_acknowledgement_and_a_repeated_event_count_once(redis, opened, control, flusher, monkeypatch):
    granted = await admitted(control, opened, "r1")
    once = event(granted, "r1", 1)
    await publish(redis, once)
    with monkeypatch.context() as patched:
        patched.setattr(flusher_module, "book", dies)
        with pytest.raises(RedisConnectionError):
            await flusher.flush_once()
    await publish(redis, once, once)  # its worker has heard nothing
    while await redis.xlen(USAGE_STREAM):
        await flusher.flush_once()
    assert await LedgerEvent.objects.acount() == 1
    assert await counted(redis, "captured") == every_scope(40)


async def test_event_that_comes_after_its_worker_was_given_up_is_charged(redis, opened, control, flusher):
    granted = await admitted(control, opened, "r1")
    await redis.hset("lockgate:hold:r1", "state", "claimed")
    for name in ("lockgate:holds", *await redis.keys("lockgate:inflight:*")):
        await redis.zadd(name, {"r1": 1})
    await control.tend()
    assert await counted(redis, "held") == every_scope(266), "the worker's journal may still come"
    await redis.zadd("lockgate:orphans", {"r1": 1})
    await control.tend()
    assert await nothing_is_open(redis)
    await publish(redis, event(granted, "r1", 1))
    await flusher.flush_once()
    assert await counted(redis, "captured") == every_scope(40)
    assert await nothing_is_open(redis)


async def test_emptied_redis_is_closed_until_it_is_counted_anew(redis, opened, control, flusher):
    first, second = await admitted(control, opened, "r1"), await admitted(control, opened, "r2")
    await publish(redis, event(first, "r1", 1))
    await flusher.flush_once()
    await redis.flushall()
    refusal = await control.admit(call(opened, "r3"))
    assert not isinstance(refusal, Granted)
    assert refusal.code == "unavailable"

    await flusher.tend_once()
    assert await counted(redis, "captured") == every_scope(40)
    assert isinstance(await control.admit(call(opened, "r3")), Granted)
    # What ran meanwhile comes from its worker's journal, and counts though its hold is lost; twice it counts once.
    late = event(second, "r2", 2, generated=7)
    await publish(redis, late)
    await flusher.flush_once()
    await publish(redis, late)
    await flusher.flush_once()
    assert await counted(redis, "captured") == every_scope(57)


async def test_restarted_redis_is_closed_and_keeps_its_open_holds(redis, opened, control, flusher):
    granted = await admitted(control, opened, "r1")
    await admitted(control, opened, "r2")
    await control.settle("r2", used(5), FinishReason.LENGTH)
    before = await counted(redis, "captured"), await counted(redis, "held")
    await redis.set(READY, "the run id before the restart")
    await redis.script_flush()
    refusal = await control.admit(call(opened, "r3"))
    assert not isinstance(refusal, Granted)
    assert refusal.code == "unavailable"
    await flusher.tend_once()
    assert (await counted(redis, "captured"), await counted(redis, "held")) == before == (every_scope(15), every_scope(266))
    await publish(redis, event(granted, "r1", 1))
    await flusher.flush_once()
    assert await counted(redis, "captured") == every_scope(55)


async def test_event_committed_before_a_rebuild_but_not_yet_forgotten_counts_once(redis, opened, control, flusher, monkeypatch):
    granted = await admitted(control, opened, "r1")
    await publish(redis, event(granted, "r1", 1))
    with monkeypatch.context() as patched:
        patched.setattr(flusher_module, "book", dies)
        with pytest.raises(RedisConnectionError):
            await flusher.flush_once()
    await Projection(redis).rebuild()
    assert await counted(redis, "captured") == every_scope(40)
    await flusher.flush_once()
    assert await counted(redis, "captured") == every_scope(40)


async def test_what_cannot_be_booked_is_kept_aside_and_stops_nobody(redis, opened, control, flusher, caplog):
    granted = await admitted(control, opened, "r1")
    stranger = event(granted, "r9", 9)
    stranger.account = "not ours"
    crooked = event(granted, "r8", 8)
    crooked.counters.billed_tokens = -1
    await redis.xadd(USAGE_STREAM, {"event": b"\xff\xff"})
    await redis.xadd(USAGE_STREAM, {"other": b"field"})
    await publish(redis, stranger, crooked, event(granted, "r1", 1))
    assert await flusher.flush_once() == 5
    assert await LedgerEvent.objects.acount() == 1
    assert await redis.xlen(DEAD_LETTERS) == 4
    assert await redis.xlen(USAGE_STREAM) == 0
    assert caplog.text.count("can't be booked") == 4
    # Their worker must not send them for ever: they are kept here now.
    assert await redis.smembers(committed_key("e")) == {b"1", b"8", b"9"}


async def test_row_that_postgres_alone_refuses_goes_aside_without_the_others(redis, opened, control, flusher):
    events = []
    for number in range(1, 8):
        granted = await admitted(control, opened, f"r{number}")
        events.append(event(granted, f"r{number}", number))
    events[3].sequence = 2**63  # out of bigint's range
    await publish(redis, *events)
    await flusher.flush_once()
    assert await LedgerEvent.objects.acount() == 6
    assert await redis.xlen(DEAD_LETTERS) == 1


async def test_flusher_outlives_postgres_and_loses_nothing(redis, opened, control, flusher, monkeypatch):
    from django.db import OperationalError

    granted = await admitted(control, opened, "r1")
    insert, failures = settlement.insert, iter([OperationalError("the server is away")] * 2)

    def flaky(*arguments, **named):
        for failure in failures:
            raise failure
        return insert(*arguments, **named)

    monkeypatch.setattr(settlement, "insert", flaky)
    await publish(redis, event(granted, "r1", 1))
    running = asyncio.create_task(flusher.run())
    async with asyncio.timeout(30):
        while await redis.xlen(USAGE_STREAM):
            await asyncio.wait((running,), timeout=0.02)
    flusher.stop()
    await asyncio.wait_for(running, 30)
    assert await LedgerEvent.objects.acount() == 1
    assert await counted(redis, "captured") == every_scope(40)
    assert not await redis.xinfo_consumers(USAGE_STREAM, GROUP)


async def test_stopped_flusher_empties_the_stream_first(redis, opened, control, flusher):
    for number in range(1, 6):
        granted = await admitted(control, opened, f"r{number}")
        await publish(redis, event(granted, f"r{number}", number))
    flusher.stop()
    await asyncio.wait_for(flusher.run(), 30)
    assert await LedgerEvent.objects.acount() == 5


async def test_several_flushers_share_the_work_and_the_sums_are_exact(redis, opened, control):
    """G34: four writers, overlapping keys, in any order."""
    events = []
    for number in range(1, 101):
        granted = await admitted(control, opened, f"r{number}")
        await control.settle(f"r{number}", used(number % 7), FinishReason.LENGTH)
        events.append(event(granted, f"r{number}", number, generated=number % 7))
    await publish(redis, *events, *reversed(events))
    flushers = [Flusher(redis, claim_idle_ms=0) for _ in range(4)]
    while await redis.xlen(USAGE_STREAM):
        await asyncio.gather(*(each.flush_once() for each in flushers))
    billed = sum(number % 7 for number in range(1, 101))
    ledger = await sync_to_async(sums)(LedgerEvent)
    assert await LedgerEvent.objects.acount() == 100
    assert ledger["billed_tokens"] == billed
    assert await sync_to_async(sums)(UsageHour) == ledger
    assert await sync_to_async(sums)(UsageDay) == ledger
    assert {use.tokens async for use in BudgetUse.objects.filter(period="day")} == {billed + 1000}
    assert await counted(redis, "captured") == every_scope(billed + 1000)
