"""Claims and renewals against a real Valkey."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from inference.leases import Claim, Leases
from inference.protocol.frames import Lease


def lease(name: str = "r1", *, ttl_ms: int = 60_000) -> Lease:
    return Lease(hold_key=f"hold:{name}", expiry_keys=("flight:key", "flight:tenant"), member=name, ttl_ms=ttl_ms)


async def hold(redis: Redis, name: str = "r1") -> None:
    """What admission leaves behind: a hold, and an entry with little time left in each set of leases."""
    await redis.hset(f"hold:{name}", "state", "held")
    soon = await now_ms(redis) + 1000
    for key in ("flight:key", "flight:tenant"):
        await redis.zadd(key, {name: soon})


async def now_ms(redis: Redis) -> int:
    seconds, microseconds = await redis.time()
    return seconds * 1000 + microseconds // 1000


async def left_ms(redis: Redis, name: str = "r1") -> list[float]:
    """How long each of the leases has to live."""
    now = await now_ms(redis)
    return [(await redis.zscore(key, name)) - now for key in ("flight:key", "flight:tenant")]


@asynccontextmanager
async def running(leases: Leases) -> AsyncIterator[None]:
    task = asyncio.create_task(leases.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_claim_takes_the_hold_for_this_worker_and_renews_its_leases(redis: Redis) -> None:
    await hold(redis)
    leases = Leases(redis, worker_id="w1")
    assert await leases.claim("r1", lease()) is Claim.HELD
    assert await redis.hgetall("hold:r1") == {b"state": b"claimed", b"worker": b"w1"}
    assert min(await left_ms(redis)) > 50_000


@pytest.mark.parametrize("state", [None, "claimed", "settled"])
async def test_hold_that_is_gone_or_claimed_is_refused_and_nothing_moved(redis: Redis, state: str | None) -> None:
    await hold(redis)
    if state is None:
        await redis.delete("hold:r1")
    else:
        await redis.hset("hold:r1", "state", state)
    before, scores = await redis.hgetall("hold:r1"), await redis.zrange("flight:key", 0, -1, withscores=True)
    leases = Leases(redis, worker_id="w1")
    assert await leases.claim("r1", lease()) is Claim.EXPIRED
    assert await redis.hgetall("hold:r1") == before
    assert await redis.zrange("flight:key", 0, -1, withscores=True) == scores
    assert len(leases) == 0


async def test_many_claims_at_once_each_get_their_own_answer(redis: Redis) -> None:
    for n in range(0, 1200, 2):
        await hold(redis, f"r{n}")
    leases = Leases(redis, worker_id="w1")
    outcomes = await asyncio.gather(*(leases.claim(f"r{n}", lease(f"r{n}")) for n in range(1200)))
    assert outcomes == [Claim.HELD if n % 2 == 0 else Claim.EXPIRED for n in range(1200)]
    assert len(leases) == 600


async def test_claims_survive_a_redis_that_forgot_its_scripts(redis: Redis) -> None:
    leases = Leases(redis, worker_id="w1")
    for name in ("r1", "r2"):
        await hold(redis, name)
        await redis.script_flush()
        assert await leases.claim(name, lease(name)) is Claim.HELD


async def test_leases_are_renewed_until_they_are_released(redis: Redis) -> None:
    leases = Leases(redis, worker_id="w1")
    await hold(redis, "r1")
    await hold(redis, "r2")
    async with running(leases):
        for name in ("r1", "r2"):
            await leases.claim(name, lease(name, ttl_ms=300))
        leases.release("r2")
        released = await redis.zscore("flight:key", "r2")
        first = await redis.zscore("flight:key", "r1")
        while await redis.zscore("flight:key", "r1") <= first + 300:  # past what the claim alone gave
            assert min(await left_ms(redis, "r1")) > 0
        assert await redis.zscore("flight:key", "r2") == released


async def test_lease_that_was_taken_away_is_not_brought_back(redis: Redis) -> None:
    leases = Leases(redis, worker_id="w1")
    await hold(redis)
    await leases.claim("r1", lease())
    await redis.zrem("flight:key", "r1")
    await leases.renew()
    assert await redis.zscore("flight:key", "r1") is None
    assert (await redis.zscore("flight:tenant", "r1")) is not None


async def test_unreachable_redis_is_an_answer_and_no_exception() -> None:
    nowhere = Redis.from_url("redis://127.0.0.1:1")
    leases = Leases(nowhere, worker_id="w1")
    assert await leases.claim("r1", lease()) is Claim.UNREACHABLE
    assert len(leases) == 0
    await nowhere.aclose()


async def test_renewal_is_tried_again_after_an_outage(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = Leases(redis, worker_id="w1")
    await hold(redis)
    await leases.claim("r1", lease(ttl_ms=300))
    failed = asyncio.Event()
    renew = leases.renew

    async def renew_after_an_outage() -> None:
        if not failed.is_set():
            failed.set()
            raise RedisError("away")
        await renew()

    monkeypatch.setattr(leases, "renew", renew_after_an_outage)
    async with running(leases):
        first = await redis.zscore("flight:key", "r1")
        await failed.wait()
        while await redis.zscore("flight:key", "r1") == first:
            pass
