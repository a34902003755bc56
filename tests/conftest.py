"""Real servers for every test that wants one: a Postgres and a Valkey of the session's own, unless DATABASE_URL / REDIS_URL name some."""

import logging
import os
from collections.abc import AsyncIterator, Iterator

import pytest
import redis as redis_sync
import redis.asyncio as redis_async
from hypothesis import HealthCheck, settings

# How long an example takes is the machine's business: no property may fail for it.
settings.register_profile("lockgate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lockgate")

logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every request would bury what a failed test logged


@pytest.fixture(scope="session")
def redis_url() -> str:
    return os.environ["REDIS_URL"]


@pytest.fixture(scope="session")
def valkey_url(redis_url: str) -> str:
    return redis_url


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[redis_async.Redis]:
    """An asynchronous client on an empty Valkey."""
    client = redis_async.Redis.from_url(redis_url)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis_sync.Redis]:
    """A synchronous client on an empty Valkey."""
    with redis_sync.Redis.from_url(redis_url) as client:
        client.flushall()
        yield client
