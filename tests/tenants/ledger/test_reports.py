"""Reports read rollups only, group and page them, and round a range to whole buckets."""

from dataclasses import fields
from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tenants.errors import Invalid
from tenants.ledger import reports, settlement
from tenants.ledger.models import QUANTITIES
from tests.tenants.ledger.events import ACME, KEY, NOON, OTHER_KEY, OTHER_PROJECT, PROJECT, RIVAL, event

pytestmark = pytest.mark.django_db

MARCH = {"start": date(2026, 3, 1), "end": date(2026, 4, 1)}


@pytest.fixture
def usage():
    """Acme on two days in two projects, Rival on one, and something in February and April."""
    settlement.insert(
        [
            event(prompt_tokens=10, billed_tokens=5, generated_tokens=7, wasted_tokens=2),
            event(prompt_tokens=1, billed_tokens=1, at=NOON + timedelta(minutes=29)),
            event(prompt_tokens=100, at=NOON + timedelta(hours=1), model="large"),
            event(prompt_tokens=1000, at=NOON + timedelta(days=2), project_id=OTHER_PROJECT, key_id=OTHER_KEY),
            event(prompt_tokens=20_000, tenant_id=RIVAL, project_id=RIVAL, key_id=RIVAL),
            event(prompt_tokens=7, at=datetime(2026, 2, 28, 23, 59, 59, tzinfo=UTC)),
            event(prompt_tokens=9, at=datetime(2026, 4, 1, tzinfo=UTC)),
        ]
    )


def test_it_reports_every_quantity_of_the_ledger():
    assert {field.name for field in fields(reports.Sums)} == {"requests", *QUANTITIES}


def test_a_day_sums_all_requests_of_it(usage):
    rows = reports.usage(bucket="day", tenant=ACME, **MARCH)
    assert [(row.bucket, row.requests, row.prompt_tokens) for row in rows] == [
        (datetime(2026, 3, 14, tzinfo=UTC), 3, 111),
        (datetime(2026, 3, 16, tzinfo=UTC), 1, 1000),
    ]
    assert (rows[0].billed_tokens, rows[0].generated_tokens, rows[0].wasted_tokens, rows[0].charged_tokens) == (6, 7, 2, 117)


def test_hours_are_told_apart(usage):
    rows = reports.usage(bucket="hour", tenant=ACME, start=NOON.date(), end=NOON.date() + timedelta(days=1))
    assert [(row.bucket.hour, row.prompt_tokens) for row in rows] == [(12, 11), (13, 100)]


def test_months_are_told_apart(usage):
    rows = reports.usage(bucket="month", tenant=ACME, start=date(2026, 2, 1), end=date(2026, 5, 1))
    assert [(row.bucket.month, row.prompt_tokens) for row in rows] == [(2, 7), (3, 1111), (4, 9)]


@pytest.mark.parametrize(
    ("group_by", "sums"),
    [
        ("tenant", {str(RIVAL): 20_000, str(ACME): 1111}),
        ("project", {str(RIVAL): 20_000, str(OTHER_PROJECT): 1000, str(PROJECT): 111}),
        ("key", {str(RIVAL): 20_000, str(OTHER_KEY): 1000, str(KEY): 111}),
        ("model", {"small": 21_011, "large": 100}),
    ],
)
def test_totals_by_group_are_the_largest_first(usage, group_by, sums):
    rows = reports.totals(group_by=group_by, **MARCH)
    assert [(row.group, row.prompt_tokens) for row in rows] == list(sums.items())
    assert reports.totals(group_by=group_by, most=1, **MARCH) == rows[:1]


def test_a_series_by_group_has_a_row_for_each_bucket_and_group(usage):
    rows = reports.usage(group_by="tenant", bucket="day", **MARCH)
    assert [(row.bucket.day, row.group, row.prompt_tokens) for row in rows] == [
        (14, str(ACME), 111),
        (14, str(RIVAL), 20_000),
        (16, str(ACME), 1000),
    ]


@pytest.mark.parametrize(
    ("within", "prompt_tokens"),
    [
        ({"tenant": ACME}, 1111),
        ({"project": PROJECT}, 111),
        ({"key": OTHER_KEY}, 1000),
        ({"model": "large"}, 100),
        ({"tenant": RIVAL, "project": PROJECT}, 0),
        ({"tenant": None}, 21_111),
    ],
)
def test_totals_of_whatever_is_named(usage, within, prompt_tokens):
    (row,) = reports.totals(**within, **MARCH)
    assert (row.prompt_tokens, row.bucket, row.group) == (prompt_tokens, None, None)


def test_no_usage_is_a_total_of_zero_and_an_empty_series():
    assert reports.totals(**MARCH) == [reports.UsageRow()]
    assert reports.usage(**MARCH) == []


def test_a_range_takes_in_the_buckets_it_touches(usage):
    rows = reports.usage(bucket="hour", tenant=ACME, start=NOON + timedelta(minutes=20), end=NOON + timedelta(minutes=40))
    assert [row.bucket.hour for row in rows] == [12, 13]
    rows = reports.usage(bucket="hour", tenant=ACME, start=NOON, end=NOON.replace(hour=13, minute=0))
    assert [row.bucket.hour for row in rows] == [12]
    assert reports.totals(tenant=ACME, start=NOON, end=NOON.replace(hour=13, minute=0))[0].prompt_tokens == 11


def test_a_range_is_understood_in_any_zone(usage):
    berlin = timezone(timedelta(hours=1))
    start = datetime(2026, 3, 14, 13, tzinfo=berlin)
    assert reports.totals(tenant=ACME, start=start, end=start + timedelta(hours=1))[0].prompt_tokens == 11
    with pytest.raises(ValueError, match="zone"):
        reports.totals(start=datetime(2026, 3, 14), end=NOON)


@pytest.mark.parametrize("group_by", [None, "tenant", "model"])
@pytest.mark.parametrize("bucket", ["hour", "day", "month"])
def test_pages_put_together_are_the_whole_report(usage, group_by, bucket):
    after, rows = "", []
    while True:
        page = reports.usage_page(group_by=group_by, bucket=bucket, size=1, after=after, **MARCH)
        rows += page.rows
        if page.next is None:
            break
        after = page.next
    assert rows == reports.usage(group_by=group_by, bucket=bucket, **MARCH)


@pytest.mark.parametrize("after", ["!", "e30", "W10", "WyJ4IiwgbnVsbF0", "WyIyMDI2LTAzLTE0VDEyOjMwOjAwKzAwOjAwIiwgbnVsbF0"])
def test_a_cursor_of_another_report_is_refused(usage, after):
    for group_by in (None, "tenant", "model"):
        with pytest.raises(Invalid):
            reports.usage_page(group_by=group_by, size=1, after=after, **MARCH)


def test_the_ledger_itself_is_never_read(usage):
    with CaptureQueriesContext(
        connection,
    ) as queries:
        reports.usage(group_by="key", bucket="hour", **MARCH)
        reports.totals(group_by="key", **MARCH)
    assert len(queries) == 2
    assert not any("ledgerevent" in query["sql"] for query in queries)
