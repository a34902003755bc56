"""Generations under the real admission, on a real Valkey and a real worker: slots and holds come back by themselves."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from gateway.admission.control import READY, AdmissionControl, run_id
from gateway.admission.outcomes import Call, Caller, Granted
from gateway.admission.projection import key_fields, project_fields, tenant_fields
from gateway.events import ChoiceFinished, Delta
from gateway.generation import AdmissionRefused, Generations, Invalid, connect
from tenants.models import ApiKey, Project, Tenant
from tests.gateway.running_gateway import answer, collect, failed, finished, gateway, request, text_of, until
from tests.gateway.scripted_admissions import digest_of
from tests.inference.worker_process import WorkerProcess, running_worker

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRANCHE = 32


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerProcess]:
    async with running_worker(redis_url, tmp_path_factory.mktemp("worker"), model="synthetic:rate=300") as process:
        yield process


@pytest_asyncio.fixture(loop_scope="module")
async def client(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def generations(redis_url: str, worker: WorkerProcess, client: Redis) -> AsyncIterator[Generations]:
    admissions = AdmissionControl(client, secret=b"s" * 32, tranche=TRANCHE, lease_ms=3_000)
    async with gateway(redis_url, admissions) as opened:
        yield opened


async def project(client: Redis, **limits: int) -> None:
    """Tell Valkey of tenant, project and key as they would be in Postgres, the key with these limits."""
    tenant = Tenant(name="Acme")
    home = Project(tenant=tenant, name="default")
    key = ApiKey(tenant=tenant, project=home, **limits)
    rows = {
        f"lockgate:key:{digest_of('acme')}": key_fields(key),
        f"lockgate:project:{home.pk}": project_fields(home),
        f"lockgate:tenant:{tenant.pk}": tenant_fields(tenant, datetime.now(UTC)),
    }
    for name, fields in rows.items():
        await client.hset(name, mapping=fields)
    await client.set(READY, await run_id(client))


async def held(client: Redis) -> list[bytes]:
    """Leases that are still there."""
    names = [name async for name in client.scan_iter("lockgate:inflight:*")]
    return [member for name in names for member in await client.zrange(name, 0, -1)]


async def test_a_finished_call_has_left_its_slot_when_its_end_is_told(generations, client):
    """G7."""
    await project(client, in_flight=1)
    for _ in range(3):
        finished(await collect(await generations.start(request(max_tokens=4))))
    assert await held(client) == []


async def test_one_too_many_is_refused_and_an_aborted_stream_leaves_its_slot(generations, client):
    """G6, E28."""
    await project(client, in_flight=1)
    running = await generations.start(request(max_tokens=4_000))
    with pytest.raises(AdmissionRefused) as refusal:
        await generations.start(request())
    assert refusal.value.refused.limit == "in_flight"
    async for event in running.events():
        if isinstance(event, Delta):
            break
    await running.abort()
    failed(await collect(running))
    finished(await collect(await generations.start(request(max_tokens=4))))


async def test_a_hold_grows_over_many_tranches(generations, client):
    await project(client, tokens_per_day=10_000)
    assert text_of(await collect(await generations.start(request(max_tokens=400)))) == answer("hello", 400)
    assert await held(client) == []


async def test_a_days_budget_ends_on_its_exact_token(generations, client):
    budget = 5 + TRANCHE + 41  # the prompt, and what may be answered
    await project(client, tokens_per_day=budget)
    events = await collect(await generations.start(request(max_tokens=400)))
    assert events[-2] == ChoiceFinished(choice=0, cause="length", stop_reason="budget")
    assert finished(events).counters.billed_tokens == budget - 5
    with pytest.raises(AdmissionRefused) as refusal:
        await generations.start(request())
    assert refusal.value.refused.code == "insufficient_quota"


async def test_what_the_worker_refuses_costs_nothing(generations, client):
    await project(client, in_flight=1, requests_per_minute=1)
    with pytest.raises(Invalid):
        await generations.start(request(logprobs=5_000))
    finished(await collect(await generations.start(request(max_tokens=4))))
    assert await held(client) == []


async def test_slots_of_a_gateway_that_died_come_back(generations, client, redis_url):
    """G5: nobody renews its leases."""
    await project(client, in_flight=1)
    control = AdmissionControl(client, secret=b"s" * 32, lease_ms=100)
    call = Call(digest=digest_of("acme"), request_id="dead", model="synthetic", endpoint="completions", prompt_tokens=5, max_tokens=9)
    assert isinstance(await control.admit(call), Granted)  # and the process is killed here

    async def let_in() -> bool:
        try:
            finished(await collect(await generations.start(request(max_tokens=4))))
        except AdmissionRefused:
            return False
        return True

    async with asyncio.timeout(20):
        while not await let_in():
            await asyncio.sleep(0.02)
    await until(lambda: generations.running == 0)


async def scope_counters(client: Redis) -> list[dict[bytes, bytes]]:
    return [await client.hgetall(name) async for name in client.scan_iter("lockgate:scope:*")]


async def test_several_prompts_are_one_call_of_which_a_refusal_leaves_nothing_charged(generations, client):
    """E41: the first ones are let in, the last one isn't."""
    await client.flushdb()
    await project(client, in_flight=3, requests_per_minute=4, tokens_per_day=10_000)
    with pytest.raises(AdmissionRefused) as refusal:
        await generations.start_all([request(max_tokens=400) for _ in range(5)])
    assert refusal.value.refused.limit == "in_flight"
    assert generations.running == 0
    assert await held(client) == []
    for counters in await scope_counters(client):
        assert not any(int(value) for name, value in counters.items() if name.startswith((b"held:", b"captured:"))), counters
    for one in await generations.start_all([request(max_tokens=4) for _ in range(3)]):
        finished(await collect(one))


async def test_several_prompts_of_which_a_worker_refuses_one_leave_nothing_held(generations, client):
    await project(client)
    with pytest.raises(Invalid):
        await generations.start_all([request(max_tokens=4_000), request(max_tokens=4_000, logprobs=5_000)])
    await until(lambda: generations.running == 0)
    assert await held(client) == []


async def test_connections_that_died_with_redis_refuse_nobody(redis_url, client):
    """G10: of many idle connections each would have met one request with a 503."""
    await project(client)
    async with connect(redis_url) as pooled:
        control = AdmissionControl(pooled, secret=b"s" * 32)
        for connection in set(await asyncio.gather(*(pooled.client_id() for _ in range(20)))):
            await client.client_kill_filter(_id=str(connection))
        for answer in await asyncio.gather(*(control.authenticate(digest_of("acme")) for _ in range(20))):
            assert isinstance(answer, Caller)


async def change_key(client: Redis, **fields: str) -> None:
    await client.hset(f"lockgate:key:{digest_of('acme')}", mapping=fields)


async def test_a_revoked_key_gets_no_more_for_what_it_started(generations, client):
    await project(client)
    running = await generations.start(request(max_tokens=4_000))
    await change_key(client, state="revoked")
    events = await collect(running)
    assert failed(events).code == "revoked"
    assert 0 < len(text_of(events)) <= 4 * TRANCHE
    assert await held(client) == []


async def test_a_suspended_tenants_streams_get_no_more(generations, client):
    await project(client)
    running = await generations.start(request(max_tokens=4_000))
    tenant = (await client.hget(f"lockgate:key:{digest_of('acme')}", "tenant")).decode()
    await client.hset(f"lockgate:tenant:{tenant}", "state", "suspended")
    assert failed(await collect(running)).code == "revoked"
    assert await held(client) == []


async def test_a_stream_whose_hold_redis_has_lost_ends_and_says_so(generations, client):
    await project(client)
    running = await generations.start(request(max_tokens=4_000))
    await client.flushdb()
    await project(client)
    events = await collect(running)
    assert failed(events).code == "hold_lost"
    assert not any(isinstance(event, ChoiceFinished) for event in events)
    finished(await collect(await generations.start(request(max_tokens=4))))
