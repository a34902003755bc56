"""The cast of the console: Olga operates, Paul audits, Nick has no role; a fleet of workers as they announce themselves."""

import time

import msgspec
import pytest
from django.contrib.auth.models import User
from django.test import Client

from gateway.console import fleet
from inference.protocol.frames import Load
from inference.protocol.registry import WORKERS_KEY, Registration, worker_key
from tenants import services
from tenants.models import Tenant
from tenants.services import Actor

PASSWORD = "correct horse battery"
COMMAND_LINE = Actor(name="set-up")


@pytest.fixture(autouse=True)
def quick_passwords(settings):
    """Argon2 is slow on purpose; what it protects isn't tested here."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def empty_registry(redis_client):
    """No worker is registered; the console reads this Valkey."""
    fleet._client.cache_clear()
    return redis_client


def signed_in(name: str, role: str) -> Client:
    client = Client()
    client.force_login(services.create_operator(name, password=PASSWORD, role=role, actor=COMMAND_LINE).user)
    return client


@pytest.fixture
def olga(db, empty_registry) -> Client:
    return signed_in("olga", "operator")


@pytest.fixture
def paul(db, empty_registry) -> Client:
    return signed_in("paul", "auditor")


@pytest.fixture
def nick(db, empty_registry) -> Client:
    client = Client()
    client.force_login(User.objects.create_user("nick"))
    return client


@pytest.fixture
def acme(db) -> Tenant:
    return services.create_tenant("Acme", actor=COMMAND_LINE)


@pytest.fixture
def rival(db) -> Tenant:
    return services.create_tenant("Rival", actor=COMMAND_LINE)


def load(**changes) -> Load:
    usual = {
        "running": 3,
        "waiting": 1,
        "blocks_total": 1000,
        "blocks_free": 600,
        "blocks_cached": 150,
        "draining": False,
        "steps": 12_345,
        "preemptions": 2,
        "tokens_computed": 50_000,
        "tokens_cached": 20_000,
        "tokens_generated": 70_000,
        "requests_failed": 0,
        "step_ms_mean": 21.5,
    }
    return Load(**{**usual, **changes})


def announce(redis_client, worker_id: str = "worker-0", *, epoch: str = "e1", heartbeat: Load | None = None) -> None:
    """What a worker writes with every heartbeat."""
    registration = Registration(
        worker_id=worker_id,
        epoch=epoch,
        address="unix:/run/worker.sock",
        model="SmolLM2-135M-Instruct",
        started_at_ms=int(time.time() * 1000) - 60_000,
        pid=1,
    )
    redis_client.sadd(WORKERS_KEY, worker_id)
    values = {"registration": msgspec.json.encode(registration), "load": msgspec.json.encode(heartbeat or load())}
    redis_client.hset(worker_key(worker_id), mapping=values)
