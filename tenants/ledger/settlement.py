"""The only writer of the ledger: events once, and their sums in the same transaction."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from operator import itemgetter
from typing import Any, NamedTuple

from django.db import connection, transaction

from tenants.ledger.models import QUANTITIES

INSERT_LOCK = 0x10C6A7E1
"""Held shared while events go in, and exclusively by whoever counts budgets anew from the ledger."""
_EVENT_COLUMNS = {
    "occurred_at": "timestamptz",
    "worker": "text",
    "epoch": "text",
    "sequence": "bigint",
    "request_id": "text",
    "tenant_id": "uuid",
    "project_id": "uuid",
    "key_id": "uuid",
    "model": "text",
    "endpoint": "text",
    "reason": "text",
    "budget_day": "bigint",
    "budget_month": "bigint",
    "source": "text",
    **dict.fromkeys(QUANTITIES, "bigint"),
}
_ROLLUP_KEY = ("bucket", "tenant_id", "project_id", "key_id", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A usage event in the ledger's own terms; see `LedgerEvent`. Ids are UUIDs as text."""

    occurred_at: datetime
    worker: str
    epoch: str
    sequence: int
    request_id: str
    tenant_id: str
    project_id: str
    key_id: str
    model: str
    endpoint: str
    reason: str
    budget_day: int
    budget_month: int
    source: str = ""
    """The stream entry that brought it. Not part of its identity."""
    quantities: tuple[int, ...]
    """In the order of QUANTITIES."""

    @property
    def identity(self) -> tuple[str, str, int]:
        return self.worker, self.epoch, self.sequence

    @property
    def charged(self) -> int:
        """Tokens that the budgets are charged: prompt and billed output."""
        return self.quantities[QUANTITIES.index("prompt_tokens")] + self.quantities[QUANTITIES.index("billed_tokens")]

    def row(self) -> tuple[Any, ...]:
        return (
            *(self.occurred_at, self.worker, self.epoch, self.sequence, self.request_id, self.tenant_id, self.project_id, self.key_id),
            *(self.model, self.endpoint, self.reason, self.budget_day, self.budget_month, self.source),
            *self.quantities,
        )


class Inserted(NamedTuple):
    """Where an event is in the ledger, and which stream entry brought it there."""

    row: int
    source: str


def insert(events: Sequence[Event]) -> dict[tuple[str, str, int], Inserted]:
    """Insert what isn't there yet and add just that to the rollups, all or nothing. Returns all events, old ones included, by identity."""
    if not events:
        return {}
    # Each once, the first to come; and in order, so that writers who bring the same events wait for each other and never deadlock.
    events = sorted({event.identity: event for event in reversed(events)}.values(), key=lambda event: event.identity)
    columns = ", ".join(_EVENT_COLUMNS)
    arrays = ", ".join(f"%s::{kind}[]" for kind in _EVENT_COLUMNS.values())
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", [INSERT_LOCK])
        # Names and types are this module's own; values go in as arrays.
        cursor.execute(
            f"INSERT INTO tenants_ledgerevent ({columns}) SELECT * FROM unnest({arrays}) "  # noqa: S608 - own names only
            "ON CONFLICT DO NOTHING RETURNING worker, epoch, sequence, id, source",
            [list(column) for column in zip(*(event.row() for event in events), strict=True)],
        )
        inserted = {(worker, epoch, sequence): Inserted(row, source) for worker, epoch, sequence, row, source in cursor.fetchall()}
        _add_to_rollups(cursor, [event for event in events if event.identity in inserted])
        old = [event for event in events if event.identity not in inserted]
        if old:
            cursor.execute(
                "SELECT worker, epoch, sequence, id, source FROM tenants_ledgerevent JOIN unnest(%s::text[], %s::text[], %s::bigint[], "
                "%s::timestamptz[]) AS known (w, e, s, at) ON worker = w AND epoch = e AND sequence = s AND occurred_at = at",
                [[e.worker for e in old], [e.epoch for e in old], [e.sequence for e in old], [e.occurred_at for e in old]],
            )
            inserted |= {(worker, epoch, sequence): Inserted(row, source) for worker, epoch, sequence, row, source in cursor.fetchall()}
    return inserted


def _add_to_rollups(cursor: Any, events: list[Event]) -> None:
    hours: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0] * (len(QUANTITIES) + 1))
    days: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0] * (len(QUANTITIES) + 1))
    budgets: dict[tuple[str, str, str, int], int] = defaultdict(int)
    for event in events:
        at = event.occurred_at.astimezone(UTC)
        owner = (event.tenant_id, event.project_id, event.key_id, event.model)
        for sums in (hours[at.replace(minute=0, second=0, microsecond=0), *owner], days[at.date(), *owner]):
            sums[0] += 1
            for i, quantity in enumerate(event.quantities, 1):
                sums[i] += quantity
        for scope, identifier in (("key", event.key_id), ("project", event.project_id), ("tenant", event.tenant_id)):
            budgets[scope, identifier, "day", event.budget_day] += event.charged
            budgets[scope, identifier, "month", event.budget_month] += event.charged
    # Sorted, so that writers who touch the same rows lock them in the same order and never deadlock.
    _upsert(cursor, "tenants_usagehour", "timestamptz", hours)
    _upsert(cursor, "tenants_usageday", "date", days)
    rows = sorted((*key, tokens) for key, tokens in budgets.items())
    if rows:
        cursor.execute(
            "INSERT INTO tenants_budgetuse AS b (scope, owner, period, start, tokens) "
            "SELECT * FROM unnest(%s::text[], %s::uuid[], %s::text[], %s::bigint[], %s::bigint[]) "
            "ON CONFLICT (scope, owner, period, start) DO UPDATE SET tokens = b.tokens + excluded.tokens",
            [list(column) for column in zip(*rows, strict=True)],
        )


def _upsert(cursor: Any, table: str, bucket_type: str, sums: dict[tuple[Any, ...], list[int]]) -> None:
    if not sums:
        return
    rows = sorted(((*key, *values) for key, values in sums.items()), key=itemgetter(*range(len(_ROLLUP_KEY))))
    names = ("requests", *QUANTITIES)
    arrays = ", ".join([f"%s::{bucket_type}[]", *["%s::uuid[]"] * 3, "%s::text[]", *["%s::bigint[]"] * len(names)])
    cursor.execute(
        f"INSERT INTO {table} AS r ({', '.join(_ROLLUP_KEY + names)}) SELECT * FROM unnest({arrays}) "  # noqa: S608 - own names only
        f"ON CONFLICT ({', '.join(_ROLLUP_KEY)}) DO UPDATE SET {', '.join(f'{n} = r.{n} + excluded.{n}' for n in names)}",
        [list(column) for column in zip(*rows, strict=True)],
    )


def last_row() -> int:
    """The highest row id; with INSERT_LOCK held, no lower one can appear any more."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT coalesce(max(id), 0) FROM tenants_ledgerevent")
        return int(cursor.fetchone()[0])


def captured_by_scope() -> list[tuple[str, str, str, int, int]]:
    """(scope, owner, period, start, tokens) of every period that may still be running."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT scope, owner::text, period, start, tokens FROM tenants_budgetuse "
            "WHERE (period = 'day' AND start > extract(epoch FROM now()) - 3 * 86400) "
            "OR (period = 'month' AND start > extract(epoch FROM now()) - 63 * 86400)"
        )
        return [(scope, owner, period, start, tokens) for scope, owner, period, start, tokens in cursor.fetchall()]


def in_ledger(request_ids: Iterable[str]) -> list[str]:
    """Those of these requests that the ledger has."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT DISTINCT request_id FROM tenants_ledgerevent WHERE request_id = ANY(%s)", [list(request_ids)])
        return [request for (request,) in cursor.fetchall()]


def make_partitions(*, first: date, months: int) -> list[str]:
    """Make the monthly partitions from `first` on that aren't there yet; returns their names."""
    made = []
    first = first.replace(day=1)
    for i in range(months):
        number = first.year * 12 + first.month - 1 + i
        begin, end = (date(n // 12, n % 12 + 1, 1) for n in (number, number + 1))
        name = f"tenants_ledgerevent_{begin:%Y_%m}"
        low, high = (f"{day} 00:00:00+00" for day in (begin, end))
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [INSERT_LOCK])
            cursor.execute("SELECT to_regclass(%s) IS NULL", [name])
            if not cursor.fetchone()[0]:
                continue
            # Rows that came before their partition lie in the default one: they move along.
            cursor.execute(f"CREATE TABLE {name} (LIKE tenants_ledgerevent INCLUDING DEFAULTS INCLUDING CONSTRAINTS)")
            cursor.execute("ALTER TABLE tenants_ledgerevent_default DISABLE TRIGGER append_only")
            cursor.execute(
                f"WITH moved AS (DELETE FROM tenants_ledgerevent_default WHERE occurred_at >= %s AND occurred_at < %s RETURNING *) "  # noqa: S608 - own names only
                f"INSERT INTO {name} SELECT * FROM moved",
                [low, high],
            )
            cursor.execute("ALTER TABLE tenants_ledgerevent_default ENABLE TRIGGER append_only")
            cursor.execute(f"ALTER TABLE tenants_ledgerevent ATTACH PARTITION {name} FOR VALUES FROM ('{low}') TO ('{high}')")
            made.append(name)
    return made
