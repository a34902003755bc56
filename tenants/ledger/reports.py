"""What was used: sums out of the rollups, which stay small however long the ledger grows. All times are UTC."""

import base64
import binascii
import json
import uuid
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Literal, TypedDict, Unpack, get_args

from django.db.models import BigIntegerField, F, Q, QuerySet, Sum
from django.db.models.functions import Cast, TruncMonth

from tenants.errors import Invalid
from tenants.ledger.models import UsageDay, UsageHour

GroupBy = Literal["tenant", "project", "key", "model"]
Bucket = Literal["hour", "day", "month"]
GROUPS: tuple[GroupBy, ...] = get_args(GroupBy)
BUCKETS: tuple[Bucket, ...] = get_args(Bucket)

_COLUMNS = {"tenant": "tenant_id", "project": "project_id", "key": "key_id", "model": "model"}
_FIRST, _LAST = datetime(2000, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Whole numbers: requests, tokens, microseconds, blocks × milliseconds."""

    requests: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    generated_tokens: int = 0
    billed_tokens: int = 0
    wasted_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    queue_us: int = 0
    prefill_us: int = 0
    decode_us: int = 0
    kv_block_ms: int = 0
    preemptions: int = 0

    @property
    def charged_tokens(self) -> int:
        """What budgets were charged: prompt, cached or not, and billed output."""
        return self.prompt_tokens + self.billed_tokens


SUMMED = tuple(field.name for field in fields(Sums))


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow(Sums):
    """The sums of one bucket, of one group, or of both."""

    bucket: datetime | None = None
    """Where it begins; None in totals."""
    group: str | None = None
    """The tenant's, project's or key's id as text, or the model's name; None without `group_by`."""


class Within(TypedDict, total=False):
    """Whose usage; absent or None: everybody's."""

    tenant: uuid.UUID | None
    project: uuid.UUID | None
    key: uuid.UUID | None
    model: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePage:
    rows: list[UsageRow]
    next: str | None
    """Give it as `after` to read on; None at the end."""


def usage(
    *,
    group_by: GroupBy | None = None,
    bucket: Bucket = "day",
    start: datetime | date,
    end: datetime | date,
    **within: Unpack[Within],
) -> list[UsageRow]:
    """Every bucket that `start` (included) to `end` (excluded) touches, whole, and that has usage; by bucket, then group."""
    query = _series(_rows(bucket, start, end, within), group_by, bucket)
    return [_row(values) for values in query]


def usage_page(
    *,
    group_by: GroupBy | None = None,
    bucket: Bucket = "day",
    start: datetime | date,
    end: datetime | date,
    size: int,
    after: str = "",
    **within: Unpack[Within],
) -> UsagePage:
    """The next `size` rows of `usage`. Raises Invalid for another report's cursor."""
    query = _series(_rows(bucket, start, end, within), group_by, bucket, after=after)
    rows = [_row(values) for values in query[: size + 1]]
    more = len(rows) > size
    rows = rows[:size]
    return UsagePage(rows=rows, next=_cursor(rows[-1]) if more else None)


def totals(
    *,
    group_by: GroupBy | None = None,
    start: datetime | date,
    end: datetime | date,
    most: int | None = None,
    **within: Unpack[Within],
) -> list[UsageRow]:
    """Sums over the whole range, by days where it begins and ends at midnight, else by hours; the largest groups first, at most `most`.

    Without `group_by` there is exactly one row, of zeros where nothing was used.
    """
    aligned = _floor(_instant(start), "day") == _instant(start) and _floor(_instant(end), "day") == _instant(end)
    rows = _rows("day" if aligned else "hour", start, end, within)
    if group_by is None:
        return [_row(rows.aggregate(**_sums()))]
    query = rows.values(group=F(_COLUMNS[group_by])).annotate(**_sums())
    query = query.order_by(-(F("sum_prompt_tokens") + F("sum_billed_tokens")), "group")
    return [_row(values) for values in query[:most]]


def _rows(bucket: Bucket, start: datetime | date, end: datetime | date, within: Within) -> "QuerySet[Any]":
    """The rollup rows of whole buckets from the one `start` lies in to the one `end` lies in, if it is more than its beginning."""
    first, last = (min(max(_instant(moment), _FIRST), _LAST) for moment in (start, end))
    first, stop = _floor(first, bucket), _floor(last, bucket)
    if stop < last:
        stop = _next(stop, bucket)
    query: QuerySet[Any]
    if bucket == "hour":
        query = UsageHour.objects.filter(bucket__gte=first, bucket__lt=stop)
    else:
        query = UsageDay.objects.filter(bucket__gte=first.date(), bucket__lt=stop.date())
    return query.filter(**{_COLUMNS[name]: value for name, value in within.items() if value is not None})


def _series(query: "QuerySet[Any]", group_by: GroupBy | None, bucket: Bucket, *, after: str = "") -> "QuerySet[Any]":
    query = query.annotate(at=TruncMonth("bucket") if bucket == "month" else F("bucket"))
    order = ["at"]
    if group_by is not None:
        query = query.annotate(group=F(_COLUMNS[group_by]))
        order.append("group")
    if after:
        query = query.filter(_beyond(after, group_by, bucket))
    series: QuerySet[Any] = query.values(*order).annotate(**_sums()).order_by(*order)
    return series


def _sums() -> dict[str, Any]:
    # Postgres sums bigint into numeric; usage fits a bigint, and whole numbers stay whole.
    sums: dict[str, Any] = {f"sum_{name}": Cast(Sum(name, default=0), BigIntegerField()) for name in SUMMED}
    return sums


def _row(values: dict[str, Any]) -> UsageRow:
    group = values.get("group")
    return UsageRow(
        bucket=None if "at" not in values else _instant(values["at"]),
        group=None if group is None else str(group),
        **{name: values[f"sum_{name}"] for name in SUMMED},
    )


def _instant(moment: datetime | date) -> datetime:
    """A date is its midnight. Raises ValueError for a datetime without zone."""
    if not isinstance(moment, datetime):
        return datetime.combine(moment, time.min, UTC)
    if moment.tzinfo is None:
        raise ValueError("a report's range needs times with a zone")
    return moment.astimezone(UTC)


def _floor(moment: datetime, bucket: Bucket) -> datetime:
    hour = moment.replace(minute=0, second=0, microsecond=0)
    if bucket == "hour":
        return hour
    return hour.replace(hour=0) if bucket == "day" else hour.replace(day=1, hour=0)


def _next(begin: datetime, bucket: Bucket) -> datetime:
    if bucket == "month":
        return (begin + timedelta(days=32)).replace(day=1)
    return begin + (timedelta(hours=1) if bucket == "hour" else timedelta(days=1))


def _cursor(row: UsageRow) -> str:
    assert row.bucket is not None
    return base64.urlsafe_b64encode(json.dumps([row.bucket.isoformat(), row.group]).encode()).decode().rstrip("=")


def _beyond(cursor: str, group_by: GroupBy | None, bucket: Bucket) -> Q:
    try:
        begin, group = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        at = datetime.fromisoformat(begin)
        position: datetime | date = at if bucket == "hour" else at.date()
        if (group is None) != (group_by is None) or at.tzinfo is None or at != _floor(at, bucket):
            raise ValueError("not a cursor of this report")
        if group is None:
            return Q(at__gt=position)
        if group_by != "model":
            group = uuid.UUID(group)
        elif not isinstance(group, str):
            raise ValueError("not a cursor of this report")
    except (ValueError, TypeError, AttributeError, OverflowError, binascii.Error) as error:
        raise Invalid({"after": "this is no cursor of this report; leave it out to begin at the start"}) from error
    return Q(at__gt=position) | Q(at=position, group__gt=group)
