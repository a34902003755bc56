"""Finding workers in Valkey."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from msgspec import json
from redis.asyncio import Redis

from gateway.dispatch.registry import WorkerRegistry
from inference.protocol.registry import WORKERS_KEY, Registration, worker_key
from tests.gateway.dispatch.scripted_worker import ScriptedWorker, scripted_worker
from tests.gateway.running_gateway import until


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lg-") as name:
        yield Path(name)


@pytest.fixture
async def worker(folder: Path) -> AsyncIterator[ScriptedWorker]:
    async with scripted_worker(folder) as serving:
        yield serving


@pytest.fixture
async def registry(redis: Redis) -> AsyncIterator[WorkerRegistry]:
    opened = WorkerRegistry(redis, gateway_id="g1")
    yield opened
    await opened.close()


async def register(redis: Redis, registration: Registration) -> None:
    await redis.hset(worker_key(registration.worker_id), "registration", json.encode(registration))
    await redis.sadd(WORKERS_KEY, registration.worker_id)


async def test_a_registered_worker_is_linked(redis, registry, worker):
    await registry.refresh()
    assert not list(registry.links)
    await register(redis, worker.registration)
    await registry.refresh()
    await until(lambda: registry.link("w1").up)


async def test_a_worker_that_redis_has_lost_is_kept_while_its_link_is_up(redis, registry, worker):
    await register(redis, worker.registration)
    await registry.refresh()
    await until(lambda: registry.link("w1").up)
    await redis.flushall()
    await registry.refresh()
    assert registry.link("w1").up
    assert not registry.link("w1").registered


async def test_a_worker_that_is_gone_from_both_is_dropped(redis, registry, worker):
    unreachable = Registration(worker_id="w1", epoch="e1", address="unix:/nowhere/w1.sock", model="scripted", started_at_ms=0, pid=1)
    await register(redis, unreachable)
    await registry.refresh()
    assert not registry.link("w1").up
    await redis.delete(worker_key("w1"))
    await registry.refresh()
    assert registry.link("w1") is None


async def test_a_worker_that_has_moved_is_linked_at_its_new_address(redis, registry, worker):
    old = Registration(worker_id="w1", epoch="e0", address="unix:/nowhere/w1.sock", model="scripted", started_at_ms=0, pid=1)
    await register(redis, old)
    await registry.refresh()
    await register(redis, worker.registration)
    await registry.refresh()
    await until(lambda: registry.link("w1").up)


async def test_a_registration_that_cannot_be_read_harms_no_other(redis, registry, worker, caplog):
    await redis.hset(worker_key("w0"), "registration", b"{")
    await redis.sadd(WORKERS_KEY, "w0")
    await register(redis, worker.registration)
    await registry.refresh()
    await until(lambda: registry.link("w1").up)
    assert registry.link("w0") is None
    assert "w0" in caplog.text


async def test_links_stay_when_redis_is_away(redis, registry, worker, monkeypatch):
    await register(redis, worker.registration)
    await registry.open()
    await until(lambda: registry.link("w1").up)

    async def away() -> None:
        raise ConnectionError("Redis is away")

    monkeypatch.setattr(registry, "_read", away)
    await registry._look()
    assert registry.link("w1").up
