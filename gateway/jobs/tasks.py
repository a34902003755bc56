"""Periodic tasks. Each may run late, twice or at the same time as itself without harm."""

import datetime
import uuid

from asgiref.sync import async_to_sync
from celery import shared_task
from django.conf import settings
from django.db.models import Q
from django.utils import timezone
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from gateway.admission.projection import Projection
from tenants.ledger import settlement
from tenants.models import ApiKey

MONTHS_AHEAD = 3
KEYS_USED = "lockgate:used"
"""Hash: key id → Unix seconds of its last admitted call. Written by admission, moved to Postgres by `note_key_use`."""
_BEING_NOTED = f"{KEYS_USED}:being-noted"


@shared_task  # type: ignore[untyped-decorator,unused-ignore]
def make_partitions() -> None:
    """Make the ledger's monthly partitions of this month and the next ones."""
    settlement.make_partitions(first=timezone.now().date().replace(day=1), months=MONTHS_AHEAD)


@shared_task  # type: ignore[untyped-decorator,unused-ignore]
def note_key_use() -> None:
    """Bring `last_used_at` of the keys that were used up to date."""
    with Redis.from_url(settings.REDIS_URL) as redis:
        # Set aside until Postgres has it; what a run that failed set aside goes first.
        if redis.exists(KEYS_USED):
            redis.renamenx(KEYS_USED, _BEING_NOTED)
        for key_id, seconds in sorted(redis.hgetall(_BEING_NOTED).items()):
            at = datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)
            ApiKey.objects.filter(Q(last_used_at=None) | Q(last_used_at__lt=at), pk=uuid.UUID(key_id.decode())).update(last_used_at=at)
        redis.delete(_BEING_NOTED)


@shared_task  # type: ignore[untyped-decorator,unused-ignore]
def renew_projection() -> None:
    """Write every projection anew: the days and months that lie ahead move on."""
    async_to_sync(_renew)()


async def _renew() -> None:
    async with AsyncRedis.from_url(settings.REDIS_URL) as redis:
        await Projection(redis).write_all()
