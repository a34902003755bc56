"""Compares everything that counts tokens: ledger, rollups, charged budgets, Valkey's counters, holds and leases."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from asgiref.sync import async_to_sync
from django.db import connection, transaction
from redis.asyncio import Redis

from gateway.admission.projection import day_starts, month_starts
from gateway.admission.scripts import Script
from gateway.jobs.flusher import DEAD_LETTERS
from inference.protocol.registry import USAGE_STREAM
from tenants.ledger import settlement
from tenants.ledger.consistency import Comparison, compare_rollups
from tenants.models import ApiKey, Project, Tenant

_INSPECT = Script("inspect")
_SHOWN = 20

Counter = tuple[str, str]
"""A scope's hash and a field of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    comparisons: list[Comparison]
    pending: dict[str, int]
    """What isn't settled yet, by what it waits for."""

    @property
    def differs(self) -> bool:
        return any(comparison.differing for comparison in self.comparisons)

    @property
    def settled(self) -> bool:
        return not any(self.pending.values())


def reconcile(redis_url: str, *, since: date | None = None) -> Report:
    """Compare as of one moment: no usage is booked while the ledger and Valkey are read."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [settlement.INSERT_LOCK])
        seen = json.loads(async_to_sync(_inspect)(redis_url))
        comparisons = compare_rollups(since=since)
        charged = {
            (f"lockgate:scope:{scope}:{owner}", f"captured:{kind}:{start}"): tokens
            for scope, owner, kind, start, tokens in settlement.captured_by_scope()
        }
        running = set(_running_periods(datetime.now(UTC)))
    holds: list[dict[str, str]] = list(seen["holds"].values())
    unbooked = [hold for hold in holds if hold["state"] == "settled"]
    pending = {
        "usage entries in the stream": int(seen["stream"]),
        "requests settled by a gateway, not yet in the ledger": len(unbooked),
        "requests whose worker is silent": len(seen["orphans"]),
        "rebuilding of Valkey's counters": 0 if seen["ready"] else 1,
    }
    if not seen["stream"] and seen["ready"]:
        # Otherwise some usage is in the ledger and not yet counted in Valkey, or the other way round.
        comparisons.append(_compare_captured(seen["scopes"], charged, unbooked, running))
    comparisons.append(_compare_held(seen["scopes"], holds))
    comparisons.append(_compare_leases(seen))
    dead = int(seen["dead"])
    comparisons.append(
        Comparison(
            what="usage that can't be booked", checked=dead, differing=dead, examples=[f"see the stream {DEAD_LETTERS}"] if dead else []
        )
    )
    return Report(comparisons=comparisons, pending=pending)


async def _inspect(redis_url: str) -> str:
    async with Redis.from_url(redis_url, decode_responses=True) as redis:
        return str(await _INSPECT.run(redis, USAGE_STREAM, DEAD_LETTERS))


def _running_periods(now: datetime) -> Iterator[Counter]:
    """Every counter of captured tokens that admission looks at now."""
    seconds = now.timestamp()
    fields: dict[Any, list[str]] = {}
    for tenant, time_zone in Tenant.objects.values_list("pk", "time_zone"):
        zone = ZoneInfo(time_zone)
        starts = {"day": day_starts(zone, now), "month": month_starts(zone, now)}
        fields[tenant] = [f"captured:{kind}:{max(s for s in begins if s <= seconds)}" for kind, begins in starts.items()]
    owners = [("tenant", tenant, tenant) for tenant in fields]
    owners += [("project", pk, tenant) for pk, tenant in Project.objects.values_list("pk", "tenant_id")]
    owners += [("key", pk, tenant) for pk, tenant in ApiKey.objects.values_list("pk", "tenant_id")]
    for scope, owner, tenant in owners:
        for field in fields.get(tenant, ()):
            yield f"lockgate:scope:{scope}:{owner}", field


def _counters_of(hold: dict[str, str], what: str) -> Iterator[Counter]:
    for scope in ("key", "project", "tenant"):
        for kind in ("day", "month"):
            yield f"lockgate:scope:{scope}:{hold[scope]}", f"{what}:{kind}:{hold[kind]}"


def _compare_captured(
    scopes: dict[str, dict[str, str]], charged: dict[Counter, int], unbooked: list[dict[str, str]], running: set[Counter]
) -> Comparison:
    expected: dict[Counter, int] = defaultdict(int, charged)
    for hold in unbooked:
        for counter in _counters_of(hold, "captured"):
            expected[counter] += int(hold["captured"])
    return _compare("charged budgets = Valkey's counters, running periods", expected, scopes, running)


def _compare_held(scopes: dict[str, dict[str, str]], holds: list[dict[str, str]]) -> Comparison:
    expected: dict[Counter, int] = defaultdict(int)
    for hold in holds:
        for counter in _counters_of(hold, "held"):
            expected[counter] += int(hold["held"])
    known = {(name, field) for name, fields in scopes.items() for field in fields if field.startswith("held:")}
    return _compare("held tokens = holds", expected, scopes, known | expected.keys())


def _compare(what: str, expected: dict[Counter, int], scopes: dict[str, dict[str, str]], counters: set[Counter]) -> Comparison:
    found = {(name, field): int(float(scopes.get(name, {}).get(field, 0))) for name, field in counters}
    wrong = sorted(counter for counter in counters if found[counter] != expected.get(counter, 0))
    examples = [f"{name} {field}: {expected.get((name, field), 0)} / {found[name, field]}" for name, field in wrong[:_SHOWN]]
    return Comparison(what=what, checked=len(counters), differing=len(wrong), examples=examples)


def _compare_leases(seen: dict[str, Any]) -> Comparison:
    """Whatever has a slot or waits for its lease is held."""
    live = {name for name, hold in seen["holds"].items() if hold["state"] != "settled"}
    leases = [("lockgate:holds", request) for request in seen["leases"]]
    leases += [(name, request) for name, requests in seen["inflight"].items() for request in requests]
    wrong = [(name, request) for name, request in leases if f"lockgate:hold:{request}" not in live]
    examples = [f"{name}: {request} has no hold" for name, request in islice(wrong, _SHOWN)]
    return Comparison(what="leases = holds", checked=len(leases), differing=len(wrong), examples=examples)
