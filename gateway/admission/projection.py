"""What admission must know of Postgres, copied into Redis; and how Redis is rebuilt when it has lost something.

`lockgate:key:<digest>`, `lockgate:project:<id>` and `lockgate:tenant:<id>` are hashes of strings; an empty string is "no limit". Each
carries the version of the snapshot that it was read in, so that a slow writer never replaces a newer one.
"""

import json
import logging
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from itertools import chain
from zoneinfo import ZoneInfo

from asgiref.sync import async_to_sync, sync_to_async
from django.conf import settings
from django.db import connection, transaction
from redis.asyncio import Redis

from gateway.admission.control import READY, run_id
from gateway.admission.scripts import Argument, Script
from tenants.ledger import settlement
from tenants.models import LIMIT_FIELDS, AccessChange, ApiKey, Limited, Project, Tenant

log = logging.getLogger(__name__)

Change = tuple[str, uuid.UUID | str]
Projected = tuple[str, int, dict[str, str]]

_PROJECT, _FORGET, _REBUILD = Script("project"), Script("forget"), Script("rebuild")
DAYS_AHEAD = 8
MONTHS_AHEAD = 2
"""Boundaries are written anew every hour; these leave room for a jobs process that is down for a week."""


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
    """Writes projections into one Redis. Reads Postgres in threads of its own."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def write(self, changes: Iterable[Change]) -> None:
        """Project these tenants, projects and keys as they are now. Raises RedisError and database errors."""
        await self._write(await sync_to_async(_read)(tuple(dict.fromkeys(changes))))

    async def _write(self, found: "list[Projected]") -> None:
        calls: list[tuple[Argument, ...]] = [(name, version, *chain.from_iterable(fields.items())) for name, version, fields in found]
        await _PROJECT.run_each(self._redis, calls)

    async def replay_outbox(self) -> int:
        """Write what the outbox holds, then empty it. Returns how many entries."""
        entries = await sync_to_async(lambda: list(AccessChange.objects.order_by("id").values_list("id", "kind", "target")[:1000]))()
        if entries:
            await self.write((kind, target) for _, kind, target in entries)
            await sync_to_async(AccessChange.objects.filter(id__in=[entry[0] for entry in entries]).delete)()
        return len(entries)

    async def write_all(self) -> None:
        """Project everything, and forget what Postgres no longer has."""
        found = await sync_to_async(_read)(None)
        await self._write(found)
        names = {name for name, _, _ in found}
        gone = [name for kind in ("key", "project", "tenant") async for name in self._names(kind) if name not in names]
        version = found[0][1] if found else await sync_to_async(_version)()
        await _FORGET.run_each(self._redis, [(version, name) for name in gone])

    async def _names(self, kind: str) -> AsyncIterator[str]:
        async for name in self._redis.scan_iter(f"lockgate:{kind}:*", count=1000):
            yield name.decode()

    async def is_ready(self) -> bool:
        """Whether Redis is the one that was built: not emptied, not restarted since."""
        ready: bytes | None = await self._redis.get(READY)  # type: ignore[assignment]  # the client decodes nothing
        return ready is not None and ready.decode() == await run_id(self._redis)

    async def ensure_ready(self) -> bool:
        """Rebuild if anything may have been lost. Returns whether it was rebuilt."""
        if await self.is_ready():
            return False
        log.warning("admission is closed until limits are rebuilt from Postgres")
        await self._redis.delete(READY)
        return await self.rebuild(force=False)

    async def rebuild(self, *, force: bool = True) -> bool:
        """Close admission, project everything, count the budgets anew from ledger and holds, open admission. Without `force` somebody
        else may have done so meanwhile: then False."""
        await self.write_all()
        return await sync_to_async(self._rebuild_counters)(force)

    def _rebuild_counters(self, force: bool) -> bool:
        """Under a lock that keeps every flusher out, so that no row is counted twice or not at all."""
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [settlement.INSERT_LOCK])
            return async_to_sync(self._count_anew)(force)

    async def _count_anew(self, force: bool) -> bool:
        """Nothing is admitted meanwhile; what runs may still settle: the script takes holds as they are when it runs."""
        if not force and await self.is_ready():
            return False
        await self._redis.delete(READY)
        captured: dict[str, dict[str, int]] = defaultdict(dict)
        for scope, owner, kind, start, tokens in await sync_to_async(settlement.captured_by_scope)():
            captured[f"lockgate:scope:{scope}:{owner}"][f"captured:{kind}:{start}"] = tokens
        requests = [name.removeprefix("lockgate:hold:") async for name in self._names("hold")]
        in_ledger = await sync_to_async(settlement.in_ledger)(requests)
        last_row = await sync_to_async(settlement.last_row)()
        await _REBUILD.run(self._redis, await run_id(self._redis), last_row, json.dumps(captured), *in_ledger)
        return True


def _version() -> int:
    """Of two readers the one that sees more has the higher version: it grows with every transaction that begins or ends."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_snapshot_xmax(s)::text::bigint * 4096 - least((SELECT count(*) FROM pg_snapshot_xip(s)), 4095) "
            "FROM (SELECT pg_current_snapshot() AS s) AS now"
        )
        return int(cursor.fetchone()[0])


def _read(changes: tuple[Change, ...] | None) -> list[Projected]:
    """(hash, version, fields) of each, or of all there are, read in one snapshot."""
    tenants, projects, keys = Tenant.objects.all(), Project.objects.all(), ApiKey.objects.all()
    if changes is not None:
        ids: dict[str, list[uuid.UUID | str]] = {"tenant": [], "project": [], "key": []}
        for kind, target in changes:
            ids[kind].append(target)
        tenants, projects, keys = (
            tenants.filter(pk__in=ids["tenant"]),
            projects.filter(pk__in=ids["project"]),
            keys.filter(pk__in=ids["key"]),
        )
    now = datetime.now(UTC)
    with transaction.atomic(), connection.cursor() as cursor:
        if not connection.savepoint_ids:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        version = _version()
        return [
            *((f"lockgate:tenant:{tenant.pk}", version, tenant_fields(tenant, now)) for tenant in tenants.iterator()),
            *((f"lockgate:project:{project.pk}", version, project_fields(project)) for project in projects.iterator()),
            *((f"lockgate:key:{key.digest}", version, key_fields(key)) for key in keys.iterator()),
        ]


async def rebuild() -> None:
    """Rebuild the installation's own Redis if it isn't ready, and write every projection anew. For `manage.py initialise`."""
    async with Redis.from_url(settings.REDIS_URL) as redis:
        projection = Projection(redis)
        if not await projection.ensure_ready():
            await projection.write_all()
