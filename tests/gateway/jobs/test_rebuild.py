"""Whatever dies, comes twice or is lost, and in whatever order: in the end Redis counts what the ledger has, once."""

import os
import time
from collections.abc import AsyncIterator

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import msgpack
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.admission.control import READY, AdmissionControl, digest_of
from gateway.admission.outcomes import Call, Granted, Refused
from gateway.admission.projection import Projection
from gateway.jobs import flusher as flusher_module
from gateway.jobs.flusher import Flusher
from gateway.jobs.reconcile import reconcile
from inference.protocol.registry import USAGE_STREAM, committed_key
from inference.protocol.usage import Counters, FinishReason, UsageEvent
from tenants import services
from tenants.models import BudgetUse
from tenants.services import Actor

pytestmark = pytest.mark.django_db(transaction=True)

EXAMPLES = int(os.environ.get("PROOF_EXAMPLES", "12"))
STEPS = ["admit", "admit", "settle", "finish", "finish", "resend", "flush", "crash", "rebuild", "empty", "restart"]


@pytest.fixture(autouse=True)
async def clean_ledger(transactional_db) -> AsyncIterator[None]:
    yield
    await sync_to_async(_empty_ledger)()
    await sync_to_async(connections.close_all)()


def _empty_ledger() -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE tenants_ledgerevent, tenants_budgetuse, tenants_usagehour, tenants_usageday")


class World:
    """Gateways, one worker with its journal, and flushers that may die between their commit and Redis."""

    def __init__(self, redis, digest: str, patch) -> None:
        self.redis = redis
        self.digest = digest
        self.patch = patch
        self.control = AdmissionControl(redis, secret=b"x" * 32)
        self.running: dict[str, str] = {}
        self.journal: dict[int, UsageEvent] = {}
        self.admitted = 0
        self.events = 0

    async def admit(self) -> None:
        self.admitted += 1
        call = Call(digest=self.digest, request_id=f"r{self.admitted}", model="m", endpoint="chat", prompt_tokens=10, max_tokens=100)
        admission = await self.control.admit(call)
        if isinstance(admission, Refused):
            assert admission.code == "unavailable"
            self.admitted -= 1
        else:
            assert isinstance(admission, Granted)
            self.running[call.request_id] = admission.account

    def used(self, request: str) -> Counters:
        billed = int(request[1:])
        return Counters(prompt_tokens=10, computed_tokens=10, generated_tokens=billed, billed_tokens=billed)

    async def settle(self) -> None:
        for request in self.running:
            await self.control.settle(request, self.used(request), FinishReason.STOP)
            return

    async def finish(self) -> None:
        """The worker ends a request: its event is in the journal, and on its way."""
        if not self.running:
            return
        request, account = self.running.popitem()
        self.events += 1
        self.journal[self.events] = UsageEvent(
            worker="w",
            epoch="e",
            sequence=self.events,
            request_id=request,
            account=account,
            occurred_at_ms=time.time_ns() // 1_000_000,
            reason=FinishReason.STOP,
            counters=self.used(request),
        )
        await self._send(self.journal[self.events])

    async def _send(self, event: UsageEvent) -> None:
        await self.redis.xadd(USAGE_STREAM, {"event": msgpack.encode(event)})

    async def resend(self) -> None:
        for sequence in await self.redis.spop(committed_key("e"), 1000):
            self.journal.pop(int(sequence), None)
        for event in self.journal.values():
            await self._send(event)

    async def flush(self) -> None:
        await Flusher(self.redis, claim_idle_ms=0).flush_once()

    async def crash(self) -> None:
        async def dies(*_: object, **__: object) -> None:
            raise RedisConnectionError("killed")

        with self.patch.context() as patched:
            patched.setattr(flusher_module, "book", dies)
            try:
                await self.flush()
            except RedisConnectionError:
                return

    async def rebuild(self) -> None:
        await Projection(self.redis).rebuild()

    async def empty(self) -> None:
        await self.redis.flushall()
        await Flusher(self.redis).tend_once()

    async def restart(self) -> None:
        await self.redis.set(READY, "the run id before")
        await self.redis.script_flush()
        await self.admit()  # closed: it must not get in
        await Flusher(self.redis).tend_once()

    async def quiet(self) -> None:
        while self.running:
            await self.finish()
        while self.journal:
            await self.resend()
            await self.flush()
        while await self.redis.xlen(USAGE_STREAM):
            await self.flush()


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(st.sampled_from(STEPS), min_size=4, max_size=25))
async def test_every_token_counts_once(redis, redis_url, monkeypatch, steps):
    await sync_to_async(_empty_ledger)()
    await redis.flushall()

    def create() -> str:
        tenant = services.create_tenant(f"Acme {time.time_ns()}", actor=Actor(name="olga"))
        return services.create_key(tenant.projects.get().pk, actor=Actor(name="olga")).secret

    world = World(redis, digest_of(await sync_to_async(create)()), monkeypatch)
    await Projection(redis).ensure_ready()
    for step in steps:
        await getattr(world, step)()
    await world.quiet()

    report = await sync_to_async(reconcile)(redis_url)
    assert not report.differs, report
    assert report.settled, report
    expected = sum(10 + number for number in range(1, world.admitted + 1))
    uses = await sync_to_async(lambda: set(BudgetUse.objects.values_list("tokens", flat=True)))()
    assert uses == ({expected} if expected else set())
    held = [await redis.hgetall(name) for name in await redis.keys("lockgate:scope:*")]
    assert not any(int(value) for fields in held for field, value in fields.items() if field.startswith(b"held:"))
