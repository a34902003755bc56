"""What is done by the clock: registered, scheduled, and right when it runs twice."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, connections

from gateway.jobs import tasks
from gateway.jobs.celery import app
from tenants import services
from tenants.models import ApiKey
from tenants.services import Actor

OLGA = Actor(name="olga")


@pytest.fixture
def key(transactional_db):
    tenant = services.create_tenant("Acme", actor=OLGA)
    yield services.create_key(tenant.projects.get().pk, actor=OLGA).key
    connections.close_all()


def test_everything_scheduled_is_a_task():
    app.loader.import_default_modules()
    assert {entry["task"] for entry in app.conf.beat_schedule.values()} <= set(app.tasks)
    assert all(name.startswith("gateway.jobs.tasks.") for name in app.tasks if not name.startswith("celery."))


@pytest.mark.django_db(transaction=True)
def test_partitions_are_made_ahead_of_time_once():
    def partitions() -> list[str]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'tenants_ledgerevent'::regclass")
            return sorted(name for (name,) in cursor.fetchall())

    tasks.make_partitions()
    made = partitions()
    now = datetime.now(UTC)
    months = [now.year * 12 + now.month - 1 + i for i in range(tasks.MONTHS_AHEAD)]
    assert {f"tenants_ledgerevent_{month // 12}_{month % 12 + 1:02}" for month in months} <= set(made)
    tasks.make_partitions()
    assert partitions() == made


@pytest.mark.django_db(transaction=True)
def test_a_keys_last_use_is_noted_and_never_set_back(redis_client, key):
    now = datetime.now(UTC).replace(microsecond=0)
    redis_client.hset("lockgate:used", str(key.pk), int(now.timestamp()))
    tasks.note_key_use()
    assert ApiKey.objects.get().last_used_at == now
    assert not redis_client.exists("lockgate:used")
    redis_client.hset("lockgate:used", str(key.pk), int((now - timedelta(hours=1)).timestamp()))
    tasks.note_key_use()
    tasks.note_key_use()
    assert ApiKey.objects.get().last_used_at == now


@pytest.mark.django_db(transaction=True)
def test_the_calendar_is_renewed_before_it_runs_out(redis_client, key):
    redis_client.hset(f"lockgate:tenant:{key.tenant_id}", mapping={"day_starts": "[1, 2]", "version": "0"})
    tasks.renew_projection()
    fields = redis_client.hgetall(f"lockgate:tenant:{key.tenant_id}")
    assert max(int(start) for start in fields[b"day_starts"].strip(b"[]").split(b",")) > datetime.now(UTC).timestamp() + 6 * 86_400
