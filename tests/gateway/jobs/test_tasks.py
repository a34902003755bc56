"""What the clock does."""

import uuid
from datetime import UTC, datetime

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from gateway.admission.control import digest_of
from gateway.jobs import tasks
from gateway.jobs.celery import app
from tenants import services
from tenants.models import ApiKey
from tenants.services import Actor, CreatedKey

pytestmark = pytest.mark.django_db
EARLY, LATE = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC)


@pytest.fixture
def created() -> CreatedKey:
    actor = Actor(name="olga")
    return services.create_key(services.create_tenant("Acme", actor=actor).projects.get().pk, {"name": "k"}, actor=actor)


def used(redis_client, created: CreatedKey, at: datetime) -> None:
    redis_client.hset(tasks.KEYS_USED, str(created.key.pk), int(at.timestamp()))


def last_used_at(created: CreatedKey) -> datetime | None:
    return ApiKey.objects.get(pk=created.key.pk).last_used_at


def test_schedule_names_tasks_that_there_are():
    app.loader.import_default_modules()
    assert {entry["task"] for entry in app.conf.beat_schedule.values()} <= set(app.tasks)


def test_keys_know_when_they_were_last_used(redis_client, created):
    used(redis_client, created, LATE)
    redis_client.hset(tasks.KEYS_USED, str(uuid.uuid4()), 1)  # of a key that is gone
    tasks.note_key_use()
    assert last_used_at(created) == LATE
    assert not redis_client.keys(f"{tasks.KEYS_USED}*")


def test_last_use_never_moves_back(redis_client, created):
    for at in (LATE, EARLY):
        used(redis_client, created, at)
        tasks.note_key_use()
    assert last_used_at(created) == LATE


def test_uses_survive_a_run_that_failed(redis_client, created, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise OperationalError("the server is away")

    used(redis_client, created, EARLY)
    with monkeypatch.context() as patched:
        patched.setattr(ApiKey.objects, "filter", fails)
        with pytest.raises(OperationalError):
            tasks.note_key_use()
    tasks.note_key_use()
    assert last_used_at(created) == EARLY
    used(redis_client, created, LATE)
    tasks.note_key_use()
    assert last_used_at(created) == LATE


def test_partitions_of_this_month_and_the_next_ones_are_made_once():
    tasks.make_partitions()
    tasks.make_partitions()
    with connection.cursor() as cursor:
        cursor.execute("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'tenants_ledgerevent'::regclass")
        partitions = {name for (name,) in cursor.fetchall()}
    assert f"tenants_ledgerevent_{timezone.now():%Y_%m}" in partitions
    assert len(partitions) == tasks.MONTHS_AHEAD + 1


@pytest.mark.django_db(transaction=True)
def test_projection_is_written_anew(redis_client, created):
    tasks.renew_projection()
    assert redis_client.hget(f"lockgate:key:{digest_of(created.secret)}", "state") == b"active"
