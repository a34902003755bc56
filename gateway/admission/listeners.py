"""Hears of changes in the domain and tells Redis at once; the outbox replays whatever this misses."""

import logging
import uuid
from typing import Any

from asgiref.sync import async_to_sync
from django.conf import settings
from django.db import DatabaseError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tenants.signals import access_changed

log = logging.getLogger(__name__)


def connect() -> None:
    """Connect to tenants.signals.access_changed. Called once, from GatewayConfig.ready."""
    access_changed.connect(_project, dispatch_uid="gateway.admission")


def _project(*, changes: tuple[tuple[str, uuid.UUID], ...], **_: Any) -> None:
    """Project at once, so that a revoked key is refused on its next request. If it can't be, the outbox does it within seconds."""
    try:
        async_to_sync(_write)(changes)
    except (RedisError, OSError, DatabaseError) as error:
        log.warning("admission will hear of this change from the outbox: %s", error)


async def _write(changes: tuple[tuple[str, uuid.UUID], ...]) -> None:
    from gateway.admission.projection import Projection  # reads models, which aren't loaded yet when this module is

    async with Redis.from_url(settings.REDIS_URL) as redis:
        await Projection(redis).write(changes)
