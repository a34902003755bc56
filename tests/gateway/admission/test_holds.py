"""What happens to a hold: extended, claimed, settled, released, expired, given up, asked for twice."""

import asyncio
import itertools

import pytest

from gateway.admission.control import READY, SILENT_MS, UNBOOKED_MS, AdmissionControl
from gateway.admission.outcomes import Extension, Granted, Refused
from inference.leases import Claim, Leases
from tests.gateway.admission.stage import LEASE_MS, Stage

SCOPES = ["key", "project", "tenant"]
NOTHING_HELD = {"lockgate:holds", "lockgate:orphans", "lockgate:unbooked"}


async def assert_all_zero(stage: Stage) -> None:
    """Nothing is captured, held, in flight or charged to a rate (of 10 requests and 1000 tokens, as far as it hasn't drained)."""
    names = set(await stage.dump())
    assert not {name for name in names if name in NOTHING_HELD or name.startswith(("lockgate:hold:", "lockgate:inflight:"))}
    for scope in SCOPES:
        counters = {field.decode(): int(value) for field, value in (await stage.redis.hgetall(stage.counters(scope))).items()}
        for bucket, limit in (("requests", 10), ("tokens", 1000)):
            if bucket in counters:
                counters[bucket] -= (stage.now_ms - counters.pop(f"{bucket}_at")) * limit
        assert not any(value > 0 for value in counters.values()), counters


async def test_release_gives_everything_back(stage):
    for scope in SCOPES:
        await stage.limit(scope, requests_per_minute=10, tokens_per_minute=1000, tokens_per_day=1000)
    request = await stage.granted(most=500)
    await stage.control.extend(request, 400)
    assert await stage.control.release(request)
    await assert_all_zero(stage)
    assert not await stage.control.release(request)
    await assert_all_zero(stage)


async def test_a_mix_of_ends_leaves_no_hold(stage):
    """G10"""
    for scope in SCOPES:
        await stage.limit(scope, requests_per_minute=1000, tokens_per_minute=100_000, in_flight=50, tokens_per_day=100_000)
    requests = [await stage.granted(name=name) for name in ("acme", "mate") * 10]
    ends = itertools.cycle([stage.settle, stage.control.release, stage.claim, stage.control.release])
    await asyncio.gather(*(end(request) for end, request in zip(ends, requests, strict=False)))
    await stage.wait(LEASE_MS / 1000 + 1)
    await stage.control.tend()
    for request in requests:
        await stage.settle(request)
    for scope in SCOPES:
        assert (await stage.budget(scope))[1] == 0
        assert await stage.in_flight(scope) == 0
    assert not await stage.redis.exists("lockgate:holds")


async def test_settlement_charges_prompt_and_billed_output_and_frees_the_slot(stage):
    """G7: the slot is free when the settlement returns."""
    await stage.limit("key", in_flight=1, tokens_per_minute=1000)
    request = await stage.granted(prompt=10, most=500)
    assert isinstance(await stage.admit(), Refused)
    assert await stage.settle(request, prompt=10, billed=30)
    for scope in SCOPES:
        assert await stage.budget(scope) == (40, 0)
        assert await stage.budget(scope, kind="month") == (40, 0)
    assert (await stage.control.limits(stage.call().digest)).remaining_tokens == 960
    assert isinstance(await stage.admit(), Granted)


async def test_settling_again_changes_nothing_and_a_larger_total_posts_the_difference(stage):
    request = await stage.granted()
    assert await stage.settle(request, billed=30)
    settled = await stage.dump()
    assert not await stage.settle(request, billed=30)
    assert not await stage.settle(request, billed=5)
    assert await stage.dump() == settled
    assert await stage.settle(request, billed=31)
    assert await stage.budget() == (41, 0)
    assert not await stage.control.release(request), "what is settled stays charged"


async def test_what_was_never_admitted_is_neither_settled_nor_released(stage):
    before = await stage.dump()
    assert not await stage.settle("unknown", billed=30)
    assert not await stage.control.release("unknown")
    assert await stage.dump() == before


async def test_extensions_are_cumulative_and_bounded_by_what_was_asked(stage):
    request = await stage.granted(prompt=10, most=600)
    assert await stage.control.extend(request, 400) == Extension(allowance=400, ended_by=None)
    assert await stage.control.extend(request, 300) == Extension(allowance=400, ended_by=None)
    assert await stage.control.extend(request, 10_000) == Extension(allowance=600, ended_by=None)
    assert await stage.budget() == (0, 610)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("kind", ["day", "month"])
async def test_a_budget_ends_an_extension_on_its_last_token(stage, scope, kind):
    await stage.limit(scope, **{f"tokens_per_{kind}": 300})
    request = await stage.granted(prompt=10, most=600)
    assert await stage.control.extend(request, 600) == Extension(allowance=290, ended_by="budget")
    assert await stage.control.extend(request, 600) == Extension(allowance=290, ended_by="budget")
    assert await stage.budget(scope, kind=kind) == (0, 300)


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_minutes_rate_only_pauses_an_extension(stage, scope):
    await stage.limit(scope, tokens_per_minute=320)
    request = await stage.granted(prompt=10, most=600)
    partial = await stage.control.extend(request, 600)
    assert (partial.allowance, partial.ended_by) == (310, "rate")
    await stage.wait(partial.retry_after_s)
    more = await stage.control.extend(request, 600)
    assert more.allowance == 310 + 20, "a sixteenth of the minute's tokens is worth going on with"
    assert more.ended_by == "rate"


async def test_a_raised_budget_helps_a_running_request(stage):
    await stage.limit("key", tokens_per_day=100)
    request = await stage.granted(prompt=10, most=600)
    assert (await stage.control.extend(request, 600)).ended_by == "budget"
    await stage.limit("key", tokens_per_day=1000)
    assert await stage.control.extend(request, 600) == Extension(allowance=600, ended_by=None)


async def test_a_rate_limit_set_meanwhile_counts_what_comes_after(stage):
    request = await stage.granted(prompt=10, most=600)
    await stage.limit("key", tokens_per_minute=100)
    extension = await stage.control.extend(request, 600)
    assert (extension.allowance, extension.ended_by) == (356, "rate")
    await stage.settle(request, billed=356)
    assert (await stage.control.limits(stage.call().digest)).remaining_tokens == 0


async def test_a_lost_hold_is_neither_a_budget_nor_a_rate(stage):
    """A finish is never made up."""
    request = await stage.granted()
    await stage.redis.delete(f"lockgate:hold:{request}")
    assert await stage.control.extend(request, 600) == Extension(allowance=0, ended_by="lost")


async def test_a_stream_pauses_while_limits_cannot_be_checked(stage):
    request = await stage.granted(most=600)
    await stage.redis.delete(READY)
    assert await stage.control.extend(request, 600) == Extension(allowance=256, ended_by="rate", retry_after_s=1.0)


async def test_a_hold_that_nobody_claimed_expires_whole(stage):
    for scope in SCOPES:
        await stage.limit(scope, requests_per_minute=10, tokens_per_minute=1000)
    await stage.granted()
    await stage.wait(LEASE_MS / 1000 + 0.001)
    assert await stage.control.tend() == 1
    await assert_all_zero(stage)


async def test_expired_leases_free_the_slot_for_the_next_call(stage):
    """G5: the engine has timed out as often as calls are allowed in flight, and the next call works."""
    await stage.limit("key", in_flight=2)
    for _ in range(2):
        await stage.claim(await stage.granted())
    assert isinstance(await stage.admit(), Refused)
    await stage.wait(LEASE_MS / 1000 + 0.001)
    assert isinstance(await stage.admit(), Granted)


async def test_a_renewed_lease_holds(stage):
    await stage.limit("key", in_flight=1)
    request = await stage.granted()
    await stage.claim(request)
    for _ in range(5):
        await stage.wait(10)
        await stage.renew(request)
        assert await stage.control.tend() == 0
        assert isinstance(await stage.admit(), Refused)


async def test_a_silent_workers_tokens_stay_held_until_it_settles(stage):
    request = await stage.granted(prompt=10, most=100)
    await stage.claim(request)
    await stage.wait(LEASE_MS / 1000 + 1)
    await stage.control.tend()
    assert await stage.budget() == (0, 110)
    assert await stage.in_flight() == 0
    await stage.settle(request, billed=7)
    assert await stage.budget() == (17, 0)
    assert not await stage.redis.exists("lockgate:orphans")


async def test_what_no_ledger_will_ever_show_is_given_back(stage):
    silent, unbooked = await stage.granted(), await stage.granted()
    await stage.claim(silent)
    await stage.settle(unbooked, billed=5)
    await stage.wait(LEASE_MS / 1000 + 1)
    await stage.control.tend()
    await stage.wait(SILENT_MS / 1000 + 1)
    await stage.control.tend()
    assert await stage.budget() == (15, 0)
    await stage.wait(UNBOOKED_MS / 1000 + 1)
    await stage.control.tend()
    assert await stage.budget() == (0, 0)
    assert not [name for name in await stage.dump() if name.startswith("lockgate:hold")]


async def test_a_refund_gives_back_only_what_has_not_drained(stage):
    """Otherwise an idle hold, cancelled late, would let twice the limit pass."""
    await stage.limit("key", tokens_per_minute=60, in_flight=10)
    idle = await stage.granted(prompt=10, most=50)
    await stage.claim(idle)
    await stage.wait(60)
    assert isinstance(await stage.admit(prompt=60, most=0), Granted)
    await stage.control.release(idle)
    assert isinstance(await stage.admit(prompt=1, most=0), Refused)


async def test_an_admission_whose_answer_was_lost_can_be_asked_for_again(stage):
    call = stage.call(most=500)
    first = await stage.control.admit(call)
    before = await stage.dump()
    assert await stage.control.admit(call) == first
    assert await stage.dump() == before
    assert (await stage.admit(name="rival", request_id=call.request_id)).code == "unavailable"
    await stage.claim(call.request_id)
    assert (await stage.control.admit(call)).code == "unavailable", "it runs already"


async def test_the_workers_claim_and_renewals_fit_the_lease(redis, clock):
    stage = Stage(redis)
    await stage.open()
    admission = await stage.admit(request_id="r1")
    leases = Leases(redis, worker_id="w1")
    assert await leases.claim("r1", admission.lease) is Claim.HELD
    await leases.renew()
    hold = await redis.hgetall("lockgate:hold:r1")
    assert (hold[b"state"], hold[b"worker"]) == (b"claimed", b"w1")
    for name in admission.lease.expiry_keys:
        assert await redis.zscore(name, "r1") > stage.now_ms + LEASE_MS, "by the real clock"
    assert await Leases(redis, worker_id="w2").claim("r1", admission.lease) is Claim.EXPIRED
    await stage.settle("r1")
    for name in admission.lease.expiry_keys:
        assert await redis.zscore(name, "r1") is None


class Client:
    """Streams until it is refused for good."""

    def __init__(self, stage: Stage, control: AdmissionControl) -> None:
        self.stage = stage
        self.control = control
        self.captured = 0

    async def run(self) -> None:
        while True:
            call = self.stage.call(prompt=7, most=700)
            admission = await self.control.admit(call)
            if isinstance(admission, Refused):
                if admission.code == "insufficient_quota":
                    return
                continue
            generated, allowance = 0, admission.allowance
            ended = False
            while generated < 700 and not ended:
                generated = min(generated + 64, allowance)
                if 2 * (allowance - generated) <= 256:
                    extension = await self.control.extend(call.request_id, min(700, allowance + 256))
                    allowance = extension.allowance
                    ended = extension.ended_by == "budget" and generated == allowance
            await self.stage.settle(call.request_id, prompt=7, billed=generated)
            self.captured += 7 + generated


async def test_fifty_clients_use_a_budget_up_to_its_exact_token(stage, redis_url):
    await stage.limit("tenant", tokens_per_day=10_000)
    overshoot, done = 0, asyncio.Event()

    async def watch() -> None:
        nonlocal overshoot
        while not done.is_set():
            captured, held = await stage.budget("tenant")
            overshoot = max(overshoot, captured + held - 10_000)

    async with type(stage.redis).from_url(redis_url) as other:
        controls = [stage.control, AdmissionControl(other, secret=b"secret")]
        clients = [Client(stage, controls[i % 2]) for i in range(50)]
        watcher = asyncio.create_task(watch())
        await asyncio.gather(*(client.run() for client in clients))
        done.set()
        await watcher
    assert await stage.budget("tenant") == (10_000, 0)
    assert sum(client.captured for client in clients) == 10_000
    assert overshoot == 0
    assert await stage.in_flight("tenant") == 0
