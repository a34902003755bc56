"""`manage.py reconcile` agrees where all is settled, and finds every kind of difference."""

import asyncio
import io
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import connection, connections
from msgspec import msgpack

from gateway.admission.control import AdmissionControl, digest_of
from gateway.admission.outcomes import Call, Granted
from gateway.admission.projection import Projection
from gateway.jobs.flusher import DEAD_LETTERS, Flusher
from inference.protocol.registry import USAGE_STREAM
from inference.protocol.usage import Counters, FinishReason, UsageEvent
from tenants import services
from tenants.services import Actor

pytestmark = pytest.mark.django_db(transaction=True)

USED = Counters(prompt_tokens=10, computed_tokens=10, generated_tokens=30, billed_tokens=30)


@pytest.fixture(autouse=True)
async def clean_ledger(transactional_db) -> AsyncIterator[None]:
    yield
    await sync_to_async(_empty_ledger)()


def _empty_ledger() -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE tenants_ledgerevent")
    connections.close_all()


class System:
    """One request after another through admission, and its usage into the stream."""

    def __init__(self, redis, digest: str) -> None:
        self.redis = redis
        self.control = AdmissionControl(redis, secret=b"x" * 32)
        self.flusher = Flusher(redis, claim_idle_ms=0)
        self.digest = digest
        self.accounts: dict[str, str] = {}

    async def admit(self, request_id: str) -> None:
        call = Call(digest=self.digest, request_id=request_id, model="m", endpoint="chat", prompt_tokens=10, max_tokens=100)
        admission = await self.control.admit(call)
        assert isinstance(admission, Granted)
        self.accounts[request_id] = admission.account

    async def settle(self, request_id: str) -> None:
        await self.control.settle(request_id, USED, FinishReason.STOP)

    async def publish(self, request_id: str) -> None:
        event = UsageEvent(
            worker="w",
            epoch="e",
            sequence=int(request_id[1:]),
            request_id=request_id,
            account=self.accounts[request_id],
            occurred_at_ms=time.time_ns() // 1_000_000,
            reason=FinishReason.STOP,
            counters=USED,
        )
        await self.redis.xadd(USAGE_STREAM, {"event": msgpack.encode(event)})


@pytest.fixture
async def system(redis) -> System:
    """Five requests settled and booked, one running."""

    def create() -> str:
        tenant = services.create_tenant("Acme", {"time_zone": "Asia/Kolkata"}, actor=Actor(name="olga"))
        return services.create_key(tenant.projects.get().pk, actor=Actor(name="olga")).secret

    system = System(redis, digest_of(await sync_to_async(create)()))
    await Projection(redis).ensure_ready()
    for number in range(1, 6):
        await system.admit(f"r{number}")
        await system.settle(f"r{number}")
        await system.publish(f"r{number}")
    await system.admit("r6")
    await system.flusher.flush_once()
    return system


def reconcile(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command("reconcile", *arguments, stdout=out)
    except SystemExit as end:
        return int(str(end.code)), out.getvalue()
    return 0, out.getvalue()


async def run(*arguments: str) -> tuple[int, str]:
    def in_a_thread_of_its_own() -> tuple[int, str]:
        try:
            return reconcile(*arguments)
        finally:
            connections.close_all()

    return await sync_to_async(in_a_thread_of_its_own, thread_sensitive=False)()


def sql(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


async def test_it_agrees_with_a_system_where_all_is_settled(system):
    code, text = await run()
    assert code == 0, text
    assert "No difference." in text
    assert (await run("--since", f"{datetime.now(UTC):%Y-%m-%d}"))[0] == 0


async def test_it_agrees_with_an_empty_system(redis):
    await Projection(redis).ensure_ready()
    code, text = await run()
    assert code == 0, text


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ("UPDATE tenants_usagehour SET billed_tokens = billed_tokens + 1", "ledger = rollups by hour"),
        ("DELETE FROM tenants_usageday", "ledger = rollups by day"),
        ("UPDATE tenants_budgetuse SET tokens = tokens + 1 WHERE scope = 'project' AND period = 'month'", "ledger = charged budgets"),
        ("TRUNCATE tenants_ledgerevent", "ledger = rollups by hour"),
    ],
)
async def test_it_finds_sums_that_differ(system, damage, what):
    await sync_to_async(sql)(damage)
    code, text = await run()
    assert code == 1
    assert f"{what} (expected / found)" in text


@pytest.mark.parametrize("scope", ["key", "project", "tenant"])
@pytest.mark.parametrize(("what", "shown"), [("captured", "running periods"), ("held", "held tokens = holds")])
async def test_it_finds_counters_that_differ(system, scope, what, shown):
    (name,) = await system.redis.keys(f"lockgate:scope:{scope}:*")
    for field in await system.redis.hkeys(name):
        if field.startswith(f"{what}:day".encode()):
            await system.redis.hincrby(name, field, 1)
    code, text = await run()
    assert code == 1
    assert f"{shown} (expected / found)" in text
    assert name.decode() in text


async def test_it_finds_a_counter_that_is_gone(system):
    (name,) = await system.redis.keys("lockgate:scope:tenant:*")
    await system.redis.delete(name)
    assert (await run())[0] == 1


async def test_it_finds_a_lease_without_a_hold(system):
    (name,) = await system.redis.keys("lockgate:inflight:key:*")
    await system.redis.zadd(name, {"stray": 1})
    code, text = await run()
    assert code == 1
    assert "stray has no hold" in text


async def test_what_cannot_be_booked_is_a_difference(system):
    await system.redis.xadd(DEAD_LETTERS, {"event": b"?"})
    code, text = await run()
    assert code == 1
    assert DEAD_LETTERS in text


async def test_what_is_on_its_way_is_not_settled_yet(system):
    await system.settle("r6")
    code, text = await run()
    assert code == 1
    assert "1 requests settled by a gateway, not yet in the ledger" in text
    assert "No difference so far." in text
    await system.publish("r6")
    code, text = await run()
    assert code == 1
    assert "1 usage entries in the stream" in text
    await system.flusher.flush_once()
    assert (await run())[0] == 0


async def test_it_waits_for_what_is_on_its_way(system):
    await system.settle("r6")
    await system.publish("r6")
    system.flusher.stop()
    flushing = asyncio.create_task(system.flusher.run())
    assert (await run("--wait", "30"))[0] == 0
    await flushing


async def test_a_silent_worker_is_waited_for(system):
    await system.redis.hset("lockgate:hold:r6", "state", "claimed")
    for name in ("lockgate:holds", *await system.redis.keys("lockgate:inflight:*")):
        await system.redis.zadd(name, {"r6": 1}, xx=True)
    await system.control.tend()
    code, text = await run()
    assert code == 1
    assert "1 requests whose worker is silent" in text
    await system.publish("r6")
    await system.flusher.flush_once()
    assert (await run())[0] == 0


async def test_a_redis_that_is_not_rebuilt_yet_is_not_settled(system):
    await system.redis.flushall()
    code, text = await run()
    assert code == 1
    assert "rebuilding" in text
    await system.flusher.tend_once()
    assert (await run())[0] == 0
