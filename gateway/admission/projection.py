"""What admission must know of Postgres, copied into Redis; and how Redis is rebuilt when it has lost something.

`lockgate:key:<digest>`, `lockgate:project:<id>` and `lockgate:tenant:<id>` are hashes of strings; an empty string is "no limit". Each
carries the version of the transaction that it was read after, so that a slow writer never replaces a newer one.
"""

import logging
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from asgiref.sync import async_to_sync, sync_to_async
from django.conf import settings
from django.db import connection, transaction
from redis.asyncio import Redis

from gateway.admission.control import READY, AdmissionControl, run_id
from gateway.admission.scripts import Script
from tenants.ledger import settlement
from tenants.models import LIMIT_FIELDS, AccessChange, ApiKey, Limited, Project, Tenant

log = logging.getLogger(__name__)

Change = tuple[str, uuid.UUID]

_PROJECT, _REBUILD = Script("project"), Script("rebuild")
DAYS_AHEAD = 8
MONTHS_AHEAD = 2
"""Boundaries are refreshed daily; these leave room for a jobs process that is down for a week."""
REBUILD_LOCK = 0x10C6A7E1


def day_starts(zone: ZoneInfo, now: datetime) -> list[int]:
    """Unix seconds at which the current and the following days begin there, daylight-saving changes included."""
    today = now.astimezone(zone).date()
    return [int(datetime.combine(today + timedelta(days=i), datetime.min.time(), zone).timestamp()) for i in range(-1, DAYS_AHEAD)]


def month_starts(zone: ZoneInfo, now: datetime) -> list[int]:
    """Unix seconds at which the current and the following months begin there."""
    local = now.astimezone(zone)
    months = [local.year * 12 + local.month - 1 + i for i in range(-1, MONTHS_AHEAD + 1)]
    return [int(datetime(month // 12, month % 12 + 1, 1, tzinfo=zone).timestamp()) for month in months]


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _limits(scope: Limited) -> dict[str, str]:
    models = "".join(f"\n{name}" for name in scope.allowed_models)
    return {field: _text(getattr(scope, field)) for field in LIMIT_FIELDS} | {"models": f"{models}\n" if models else ""}


def key_fields(key: ApiKey) -> dict[str, str]:
    return {
        "id": str(key.pk),
        "project": str(key.project_id),
        "tenant": str(key.tenant_id),
        "state": "active" if key.revoked_at is None or key.revoked_at > datetime.now(UTC) else "revoked",
        "expires_ms": _expires_ms(key),
        **_limits(key),
    }


def _expires_ms(key: ApiKey) -> str:
    """When the key stops working: its expiry, or the end of its grace time after a rotation."""
    ends = [moment for moment in (key.expires_at, key.revoked_at) if moment is not None]
    return str(int(min(ends).timestamp() * 1000)) if ends else ""


def project_fields(project: Project) -> dict[str, str]:
    return {"tenant": str(project.tenant_id), "state": "suspended" if project.suspended_at else "active", **_limits(project)}


def tenant_fields(tenant: Tenant, now: datetime) -> dict[str, str]:
    zone = ZoneInfo(tenant.time_zone)
    return {
        "state": "suspended" if tenant.suspended_at else "active",
        "weight": str(tenant.weight),
        "priority": str(tenant.priority),
        "policy": tenant.cache_policy,
        "cache_epoch": str(tenant.cache_epoch),
        "group": _text(tenant.trust_group_id),
        "day_starts": str(day_starts(zone, now)),
        "month_starts": str(month_starts(zone, now)),
        **_limits(tenant),
    }


class Projection:
    """Writes projections into one Redis. Reads Postgres synchronously; call it off the event loop."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def write(self, changes: Iterable[Change]) -> None:
        """Project these tenants, projects and keys as they are now. Raises RedisError and database errors."""
        for name, version, fields in await sync_to_async(_read)(tuple(dict.fromkeys(changes))):
            await _PROJECT.run(self._redis, name, version, *(part for pair in fields.items() for part in pair))

    async def replay_outbox(self) -> int:
        """Write what the outbox holds, then empty it. Returns how many entries."""
        entries = await sync_to_async(lambda: list(AccessChange.objects.order_by("id").values_list("id", "kind", "target")[:1000]))()
        if entries:
            await self.write((kind, target) for _, kind, target in entries)
            await sync_to_async(AccessChange.objects.filter(id__in=[entry[0] for entry in entries]).delete)()
        return len(entries)

    async def write_all(self) -> None:
        """Project everything."""
        await self.write(await sync_to_async(_everything)())

    async def is_ready(self) -> bool:
        """Whether Redis is the one that was built: not emptied, not restarted since."""
        ready: bytes | None = await self._redis.get(READY)  # type: ignore[assignment]  # the client decodes nothing
        return ready is not None and ready.decode() == await run_id(self._redis)

    async def ensure_ready(self) -> bool:
        """Rebuild if anything may have been lost. Returns whether it was rebuilt."""
        if await self.is_ready():
            return False
        await self.rebuild()
        return True

    async def rebuild(self) -> None:
        """Close admission, project everything, count the budgets anew from ledger and holds, open admission."""
        log.warning("rebuilding limits from Postgres")
        await self._redis.delete(READY)
        await self.write_all()
        await sync_to_async(self._rebuild_counters)()

    def _rebuild_counters(self) -> None:
        """Under a lock that keeps every flusher out, so that no row is counted twice or not at all."""
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [REBUILD_LOCK])
            async_to_sync(self._count_anew)(settlement.last_row(), settlement.captured_by_scope(), settlement.rows_of)

    async def _count_anew(self, last_row: int, captured: list[tuple[str, str, str, int, int]], rows_of: Any) -> None:
        """Settle what the ledger has and Redis doesn't know of, then count."""
        requests = [name.decode().removeprefix("lockgate:hold:") async for name in self._redis.scan_iter("lockgate:hold:*", count=1000)]
        control = AdmissionControl(self._redis, secret=b"")
        for row in await sync_to_async(rows_of)(requests):
            await control.settle_from_ledger(row.request_id, row.total, account=row.account, row=row.id)
        counts = [part for scope, owner, period, start, tokens in captured for part in (scope, owner, period, start, tokens)]
        await _REBUILD.run(self._redis, await run_id(self._redis), last_row, *counts)


def _everything() -> list[Change]:
    return [
        *(("tenant", pk) for pk in Tenant.objects.values_list("pk", flat=True)),
        *(("project", pk) for pk in Project.objects.values_list("pk", flat=True)),
        *(("key", pk) for pk in ApiKey.objects.values_list("pk", flat=True)),
    ]


def _read(changes: tuple[Change, ...]) -> list[tuple[str, int, dict[str, str]]]:
    """(hash, version, fields) of each, read in one snapshot."""
    ids: dict[str, list[uuid.UUID]] = {"tenant": [], "project": [], "key": []}
    for kind, target in changes:
        ids[kind].append(target)
    now = datetime.now(UTC)
    with transaction.atomic(), connection.cursor() as cursor:
        # Everything that committed before the oldest running transaction is seen; a later reader gets a version at least as high.
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ" if not connection.savepoint_ids else "SELECT 1")
        cursor.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        version = int(cursor.fetchone()[0])
        found: list[tuple[str, int, dict[str, str]]] = []
        found += [(f"lockgate:tenant:{t.pk}", version, tenant_fields(t, now)) for t in Tenant.objects.filter(pk__in=ids["tenant"])]
        found += [(f"lockgate:project:{p.pk}", version, project_fields(p)) for p in Project.objects.filter(pk__in=ids["project"])]
        found += [(f"lockgate:key:{k.digest}", version, key_fields(k)) for k in ApiKey.objects.filter(pk__in=ids["key"])]
    return found


async def rebuild() -> None:
    """Rebuild the installation's own Redis if it isn't ready, and write every projection anew. For `manage.py initialise`."""
    async with Redis.from_url(settings.REDIS_URL) as redis:
        projection = Projection(redis)
        if not await projection.ensure_ready():
            await projection.write_all()
