"""Usage by day and by tenant, project, key or model, out of the rollups."""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from gateway.console import charts
from gateway.console.forms import UsageFilter
from gateway.console.shell import page, reading
from tenants import selectors
from tenants.ledger import reports
from tenants.ledger.reports import GroupBy, UsageRow
from tenants.models import Tenant

SHOWN = 25
COLUMNS = ("requests", "prompt_tokens", "cached_tokens", "billed_tokens", "wasted_tokens", "charged_tokens", "preemptions")
FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, kw_only=True)
class Asked:
    days: int
    group: GroupBy
    tenant: Tenant | None
    start: date
    end: date
    """The day after the last."""

    @property
    def within(self) -> reports.Within:
        return {"tenant": None if self.tenant is None else self.tenant.pk}


def _asked(form: UsageFilter) -> Asked:
    """What the form asks for; what is missing or odd is as usual."""
    form.is_valid()
    days = form.cleaned_data.get("days") or 30
    end = datetime.now(UTC).date() + timedelta(days=1)
    return Asked(
        days=days,
        group=form.cleaned_data.get("group") or "tenant",
        tenant=form.cleaned_data.get("tenant"),
        start=end - timedelta(days=days),
        end=end,
    )


@require_GET
@reading
def usage(request: HttpRequest) -> HttpResponse:
    form = UsageFilter({"days": "30", "group": "tenant", **request.GET.dict()})
    asked = _asked(form)
    [total] = reports.totals(start=asked.start, end=asked.end, **asked.within)
    groups = reports.totals(group_by=asked.group, start=asked.start, end=asked.end, **asked.within)
    days = _every_day(asked, reports.usage(bucket="day", start=asked.start, end=asked.end, **asked.within))
    names = selectors.names(asked.group, [row.group for row in groups[:SHOWN] if row.group])
    context = {
        "form": form,
        "asked": asked,
        "last_day": asked.end - timedelta(days=1),
        "total": total,
        "groups": [(names.get(row.group or "", row.group), row, _share(row, total)) for row in groups[:SHOWN]],
        "shown": min(SHOWN, len(groups)),
        "group_count": len(groups),
        "days": list(reversed(days)),
        "chart": charts.columns(
            "Tokens per day",
            [("prompt, computed", 3), ("prompt, cached", 4), ("output", 1)],
            [(f"{day:%d %b}", (row.prompt_tokens - row.cached_tokens, row.cached_tokens, row.billed_tokens)) for day, row in days],
        ),
        "most_rows": len(groups) * asked.days,
    }
    return page(request, "console/usage/page.html", context)


@require_GET
@reading
def export(request: HttpRequest) -> HttpResponse:
    """The same slice as CSV, by day and group."""
    asked = _asked(UsageFilter({"days": "30", "group": "tenant", **request.GET.dict()}))
    rows = reports.usage(group_by=asked.group, bucket="day", start=asked.start, end=asked.end, **asked.within)
    names = selectors.names(asked.group, {row.group for row in rows if row.group})
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response.headers["Content-Disposition"] = f'attachment; filename="usage-{asked.start}-{asked.end - timedelta(days=1)}.csv"'
    response.headers["Cache-Control"] = "no-store"
    writer = csv.writer(response)
    writer.writerow(["day_utc", asked.group, f"{asked.group}_name", *COLUMNS])
    writer.writerows(_lines(rows, names))
    return response


def _lines(rows: Iterable[UsageRow], names: dict[str, str]) -> Iterator[list[object]]:
    for row in rows:
        group = row.group or ""
        assert row.bucket is not None
        yield [row.bucket.date(), _text(group), _text(names.get(group, "")), *(getattr(row, column) for column in COLUMNS)]


def _text(value: str) -> str:
    """As text even for a spreadsheet that would take it for a formula."""
    return f"'{value}" if value.startswith(FORMULA) else value


def _share(row: UsageRow, total: UsageRow) -> float | None:
    return row.charged_tokens / total.charged_tokens if total.charged_tokens else None


def _every_day(asked: Asked, rows: list[UsageRow]) -> list[tuple[date, UsageRow]]:
    """A row for each day of the range; a day without usage is zero, for nothing is missing from the rollups."""
    by_day = {row.bucket.date(): row for row in rows if row.bucket is not None}
    every = (asked.start + timedelta(days=offset) for offset in range(asked.days))
    return [(day, by_day.get(day, UsageRow())) for day in every]


def today(most: int = 5) -> dict[str, Any]:
    """The UTC day so far, and its largest tenants."""
    start = datetime.now(UTC).date()
    end = start + timedelta(days=1)
    [total] = reports.totals(start=start, end=end)
    rows = reports.totals(group_by="tenant", start=start, end=end, most=most)
    names = selectors.names("tenant", [row.group for row in rows if row.group])
    return {"total": total, "tenants": [(row.group, names.get(row.group or "", "deleted"), row, _share(row, total)) for row in rows]}
