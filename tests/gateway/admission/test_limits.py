"""Every limit, at every scope: who is let in, what a refusal says, and that it debits nothing."""

import asyncio

import pytest

from gateway.admission.control import AdmissionControl
from gateway.admission.outcomes import Granted, Refused
from tests.gateway.admission.stage import DAY_S, MONTH_S, START, Stage

SCOPES = ["key", "project", "tenant"]


async def fill(stage: Stage, limit: str) -> None:
    """Use up a limit of 100 tokens, or of two requests."""
    if limit in ("requests_per_minute", "in_flight"):
        await stage.granted(prompt=10, most=1)
        await stage.granted(prompt=10, most=1)
    elif limit == "tokens_per_minute":
        await stage.granted(prompt=60, most=40)
    else:
        await stage.settle(await stage.granted(prompt=60, most=40), prompt=60, billed=40)


CASES = [
    ("requests_per_minute", 2, "rate_limit_exceeded", 30.0),
    ("tokens_per_minute", 100, "rate_limit_exceeded", 6.6),
    ("in_flight", 2, "concurrency_limit_exceeded", 1.0),
    ("tokens_per_day", 100, "insufficient_quota", DAY_S - 60.0),
    ("tokens_per_month", 100, "insufficient_quota", MONTH_S - 60.0),
]


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(("limit", "value", "code", "wait_s"), CASES, ids=[case[0] for case in CASES])
async def test_a_refusal_names_limit_scope_and_reset_and_debits_nothing(stage, scope, limit, value, code, wait_s):
    await stage.limit(scope, **{limit: value})
    await fill(stage, limit)
    before = await stage.dump()

    refusal = await stage.admit(prompt=10, most=50)

    assert isinstance(refusal, Refused)
    assert (refusal.code, refusal.limit, refusal.scope, refusal.retry_after_s) == (code, limit, scope, wait_s)
    assert str(value) in refusal.message
    assert scope in refusal.message
    assert await stage.dump() == before
    assert isinstance(await stage.admit(name="rival"), Granted), "nobody else is limited by it"


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_minute", "tokens_per_day", "tokens_per_month"])
async def test_after_exactly_the_stated_wait_the_call_is_let_in_and_not_before(stage, scope, limit):
    await stage.limit(scope, **{limit: 7 if limit == "requests_per_minute" else 131})
    while not isinstance(refusal := await stage.control.admit(call := stage.call(prompt=37, most=0)), Refused):
        await stage.settle(call.request_id, prompt=37)
    wait_s = refusal.retry_after_s
    await stage.wait(wait_s - 0.001)
    early = await stage.admit(prompt=37, most=0)
    assert isinstance(early, Refused)
    assert early.retry_after_s == pytest.approx(0.001)
    await stage.wait(0.001)
    assert isinstance(await stage.admit(prompt=37, most=0), Granted)


@pytest.mark.parametrize("limit", ["tokens_per_minute", "tokens_per_day", "tokens_per_month"])
async def test_a_call_that_can_never_fit_is_told_so(stage, limit):
    await stage.limit("project", **{limit: 100})
    before = await stage.dump()
    refusal = await stage.admit(prompt=100, most=1)
    assert isinstance(refusal, Refused)
    assert (refusal.code, refusal.limit, refusal.scope, refusal.retry_after_s) == ("request_too_large", limit, "project", None)
    assert await stage.dump() == before
    assert isinstance(await stage.admit(prompt=99, most=500), Granted)


@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_minute", "in_flight", "tokens_per_day", "tokens_per_month"])
async def test_a_limit_of_zero_lets_nobody_in_and_promises_nothing(stage, limit):
    await stage.limit("key", **{limit: 0})
    refusal = await stage.admit()
    assert isinstance(refusal, Refused)
    assert (refusal.code, refusal.retry_after_s) == ("request_too_large", None)


async def test_of_several_reasons_the_one_that_lasts_longest_is_told(stage):
    await stage.limit("key", requests_per_minute=1, in_flight=1)
    await stage.limit("tenant", tokens_per_day=11)
    await stage.settle(await stage.granted(prompt=10, most=1), billed=1)
    assert (await stage.admit(prompt=10, most=0)).limit == "tokens_per_day"
    assert (await stage.admit(prompt=12, most=0)).code == "request_too_large"
    await stage.limit("tenant", tokens_per_day="")
    assert (await stage.admit(prompt=10, most=0)).limit == "requests_per_minute"


async def test_a_budget_that_others_hold_may_come_back_soon(stage):
    await stage.limit("key", tokens_per_day=100)
    running = await stage.granted(prompt=10, most=85)
    refusal = await stage.admit(prompt=10, most=5)
    assert isinstance(refusal, Refused)
    assert (refusal.code, refusal.limit, refusal.retry_after_s) == ("concurrency_limit_exceeded", "tokens_per_day", 1.0)
    await stage.settle(running, billed=20)
    assert isinstance(await stage.admit(prompt=10, most=5), Granted)


async def test_requests_and_tokens_have_windows_of_their_own(stage):
    """G3: near one limit nobody is held up by the other, and each is open again at its stated reset."""
    await stage.limit("key", requests_per_minute=10, tokens_per_minute=1000)
    for _ in range(10):
        await stage.settle(await stage.granted(prompt=99, most=1), prompt=99, billed=1)
    both = await stage.admit(prompt=99, most=1)
    assert both.retry_after_s == 6.0
    await stage.wait(6)
    assert isinstance(await stage.admit(prompt=99, most=1), Granted), "a tenth of both is back"
    await stage.wait(60)
    for _ in range(5):  # many tokens, few requests
        await stage.granted(prompt=199, most=1)
    refusal = await stage.admit(prompt=1, most=0)
    assert refusal.limit == "tokens_per_minute"
    assert refusal.limits.remaining_requests == 5
    await stage.wait(refusal.retry_after_s)
    assert isinstance(await stage.admit(prompt=1, most=0), Granted)


async def test_a_full_minutes_rate_is_sustained(stage):
    """G3: throttled at the limit, not at 70 % of it."""
    await stage.limit("key", tokens_per_minute=600)
    passed = 0
    for _ in range(300):  # two minutes, starting with an empty bucket
        while isinstance(await stage.control.admit(call := stage.call(prompt=20, most=0)), Granted):
            await stage.settle(call.request_id, prompt=20)
            passed += 20
        await stage.wait(0.4)
    assert passed == 600 + 1180, "a full bucket, and what drained until the last call"


async def test_a_call_refused_for_concurrency_burns_no_rate(stage):
    """E41"""
    await stage.limit("key", requests_per_minute=2, in_flight=1)
    running = await stage.granted()
    for _ in range(5):
        assert (await stage.admit()).code == "concurrency_limit_exceeded"
    await stage.settle(running)
    assert isinstance(await stage.admit(), Granted)


@pytest.mark.parametrize("scope", SCOPES)
async def test_parallel_calls_never_pass_a_minutes_tokens(stage, scope):
    """G1, E40"""
    await stage.limit(scope, tokens_per_minute=100)
    admissions = await asyncio.gather(*(stage.admit(prompt=size, most=20) for size in (58, 70, 90, 99, 30)))
    held = sum(p + a.allowance for p, a in zip((58, 70, 90, 99, 30), admissions, strict=True) if isinstance(a, Granted))
    assert 0 < held <= 100


async def test_a_budget_for_ten_serves_ten_of_fifty_parallel_calls(stage):
    """G8"""
    await stage.limit("tenant", tokens_per_month=100)
    admissions = await asyncio.gather(*(stage.admit(name=name, prompt=9, most=1) for name in ("acme", "mate") * 25))
    assert sum(isinstance(a, Granted) for a in admissions) == 10
    assert await stage.budget("tenant", kind="month") == (0, 100)


async def test_two_processes_share_one_count(stage, redis_url):
    """G2"""
    await stage.limit("key", requests_per_minute=6, tokens_per_day=1000)
    async with type(stage.redis).from_url(redis_url) as other_client:
        controls = [stage.control, AdmissionControl(other_client, secret=b"secret")]
        outcomes = [await controls[i % 2].admit(stage.call(prompt=10, most=0)) for i in range(8)]
    assert [isinstance(outcome, Granted) for outcome in outcomes] == [True] * 6 + [False] * 2
    assert await stage.budget() == (0, 60)


async def test_what_is_left_of_a_limit_is_granted_and_no_more(stage):
    await stage.limit("project", tokens_per_day=100)
    assert (await stage.admit(prompt=10, most=500)).allowance == 90
    await stage.limit("project", tokens_per_day=113)
    assert (await stage.admit(prompt=10, most=500)).allowance == 3
    assert await stage.budget("project") == (0, 113)


async def test_the_first_tranche_is_small_and_never_more_than_asked(stage):
    assert (await stage.admit(most=10_000)).allowance == 256
    assert (await stage.admit(most=3)).allowance == 3
    assert (await stage.admit(most=0)).allowance == 0


async def test_limits_take_effect_on_the_next_call(stage):
    await stage.limit("key", tokens_per_minute=1000)
    await stage.granted(prompt=900, most=0)
    await stage.limit("key", tokens_per_minute=100)
    refusal = await stage.admit(prompt=50, most=0)
    assert refusal.retry_after_s == 30.0, "a lowered limit locks nobody out for more than its own minute"
    await stage.limit("key", tokens_per_minute=2000)
    assert isinstance(await stage.admit(prompt=1100, most=0), Granted)
    await stage.limit("key", tokens_per_minute="")
    assert isinstance(await stage.admit(prompt=10**9, most=0), Granted)


async def test_a_clock_that_was_set_back_locks_nobody_out(stage):
    await stage.limit("key", requests_per_minute=1)
    await stage.granted()
    await stage.wait(-3600)
    assert isinstance(await stage.admit(), Granted)


@pytest.mark.parametrize("limit", [7, 60_000, 59_999_999, 10**11, 10**15])
async def test_any_limit_is_exact(stage, limit):
    await stage.limit("key", tokens_per_minute=limit)
    await stage.granted(prompt=min(limit, 10**11) - 1, most=0)
    assert isinstance(await stage.admit(prompt=1, most=0), Granted)
    assert isinstance(await stage.admit(prompt=1, most=0), Refused)


async def test_headers_show_the_keys_own_scope_only(stage):
    await stage.limit("tenant", requests_per_minute=1000, tokens_per_minute=100_000)
    limits = (await stage.admit()).limits
    assert (limits.limit_requests, limits.remaining_requests, limits.limit_tokens) == (None, None, None)
    await stage.limit("key", requests_per_minute=100, tokens_per_minute=1000)
    limits = (await stage.admit(prompt=90, most=10)).limits
    assert (limits.limit_requests, limits.remaining_requests, limits.reset_requests_s) == (100, 99, 0.6)
    assert (limits.limit_tokens, limits.remaining_tokens, limits.reset_tokens_s) == (1000, 900, 6.0)
    assert await stage.control.limits(stage.call().digest) == limits


async def test_remaining_tokens_fall_by_what_was_used(stage):
    """G15"""
    await stage.limit("key", tokens_per_minute=1000)
    await stage.settle(await stage.granted(prompt=30, most=500), prompt=30, billed=150)
    assert (await stage.control.limits(stage.call().digest)).remaining_tokens == 820


async def test_each_period_has_its_own_budget_and_the_past_is_swept(stage):
    await stage.limit("key", tokens_per_day=100)
    await stage.settle(await stage.granted(prompt=99, most=1), prompt=99, billed=1)
    await stage.set_clock((START + DAY_S) * 1000)
    await stage.settle(await stage.granted(prompt=99, most=1), prompt=99, billed=1)
    assert await stage.budget(start=START) == (100, 0)
    assert await stage.budget(start=START + DAY_S) == (100, 0)
    assert await stage.budget(kind="month") == (200, 0)
    await stage.set_clock((START + MONTH_S) * 1000)
    await stage.granted(prompt=1, most=0)
    fields = {field.decode() for field in await stage.redis.hkeys(stage.counters("key"))}
    assert {field for field in fields if ":" in field} == {
        f"{what}:{kind}:{START + MONTH_S}" for what in ("captured", "held") for kind in ("day", "month")
    }


async def test_admission_is_closed_where_the_calendar_has_run_out(stage):
    await stage.set_clock((START + 8 * DAY_S) * 1000)
    assert (await stage.admit()).code == "unavailable"
