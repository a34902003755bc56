"""Whether what was summed still equals what was booked. Reads the whole ledger, or all since a day."""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from django.db import connection

from tenants.ledger.models import QUANTITIES

_SHOWN = 20
_COUNTED = ("requests", *QUANTITIES)
_OWNER = ("tenant_id", "project_id", "key_id", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sources of the same numbers. `differing` counts all differences, `examples` describes the first few."""

    what: str
    checked: int
    differing: int
    examples: list[str]


def compare_rollups(*, since: date | None = None) -> list[Comparison]:
    """The ledger against hours, days and the budgets' use. `since` is a UTC day; periods that began before it are left out."""
    start = since or date(1970, 1, 1)
    ledger = [f"sum({name})::bigint AS {name}" for name in QUANTITIES]
    bound = datetime(start.year, start.month, start.day, tzinfo=UTC)
    rollups = [
        _compare(
            f"ledger = rollups by {unit}",
            keys=("bucket", *_OWNER),
            values=_COUNTED,
            left=f"SELECT {expression} AS bucket, {', '.join(_OWNER)}, count(*) AS requests, {', '.join(ledger)} "  # noqa: S608 - own names
            "FROM tenants_ledgerevent WHERE occurred_at >= %s GROUP BY 1, 2, 3, 4, 5",
            right=f"SELECT * FROM {table} WHERE bucket >= %s",  # noqa: S608 - own names
            parameters=[bound, bound if unit == "hour" else start],
        )
        for unit, expression, table in (
            ("hour", "date_trunc('hour', occurred_at, 'UTC')", "tenants_usagehour"),
            ("day", "(occurred_at AT TIME ZONE 'UTC')::date", "tenants_usageday"),
        )
    ]
    scopes = " UNION ALL ".join(
        f"SELECT '{scope}' AS scope, {scope}_id AS owner, '{period}' AS period, budget_{period} AS start, "  # noqa: S608 - own names
        "prompt_tokens + billed_tokens AS charged FROM tenants_ledgerevent"
        for scope in ("key", "project", "tenant")
        for period in ("day", "month")
    )
    first_period = int(bound.timestamp())
    budgets = _compare(
        "ledger = charged budgets",
        keys=("scope", "owner", "period", "start"),
        values=("tokens",),
        left=f"SELECT scope, owner, period, start, sum(charged)::bigint AS tokens FROM ({scopes}) AS each "  # noqa: S608 - own names
        "WHERE start >= %s GROUP BY 1, 2, 3, 4",
        right="SELECT * FROM tenants_budgetuse WHERE start >= %s",
        parameters=[first_period, first_period],
    )
    return [*rollups, budgets]


def _compare(what: str, *, keys: tuple[str, ...], values: tuple[str, ...], left: str, right: str, parameters: list[Any]) -> Comparison:
    differs = f"({', '.join(f'l.{name}' for name in values)}) IS DISTINCT FROM ({', '.join(f'r.{name}' for name in values)})"
    joined = f"({left}) AS l FULL JOIN ({right}) AS r USING ({', '.join(keys)})"
    key = ", ".join(f"{name}::text" for name in keys)
    pairs = ", ".join(f"l.{name}, r.{name}" for name in values)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*), count(*) FILTER (WHERE {differs}) FROM {joined}", parameters)  # noqa: S608 - own names
        checked, differing = cursor.fetchone()
        examples = []
        if differing:
            cursor.execute(f"SELECT {key}, {pairs} FROM {joined} WHERE {differs} LIMIT {_SHOWN}", parameters)  # noqa: S608 - own names
            for row in cursor.fetchall():
                owner, numbers = row[: len(keys)], row[len(keys) :]
                changes = [
                    f"{name} {_number(numbers[2 * i])} / {_number(numbers[2 * i + 1])}"
                    for i, name in enumerate(values)
                    if numbers[2 * i] != numbers[2 * i + 1]
                ]
                examples.append(f"{' '.join(owner)}: {', '.join(changes)}")
    return Comparison(what=what, checked=checked, differing=differing, examples=examples)


def _number(value: int | None) -> str:
    return "none" if value is None else str(value)
