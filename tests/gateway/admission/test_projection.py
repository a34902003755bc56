"""Calendars in every time zone, and projections that never go back in time."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.admission.projection import Projection, _version, day_starts, month_starts, tenant_fields
from tenants.models import Tenant

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/Los_Angeles",
    "America/St_Johns",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Pacific/Apia",
    "Pacific/Kiritimati",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "America/Havana",
    "Asia/Beirut",
    "America/Santiago",
]
moments = st.datetimes(datetime(2005, 1, 1), datetime(2037, 12, 1), timezones=st.just(UTC))


def around(starts: list[int], now: datetime) -> tuple[int, int]:
    """What the script picks: the last one that is over, and the first one to come."""
    return max(s for s in starts if s <= now.timestamp()), min(s for s in starts if s > now.timestamp())


@given(zone=st.sampled_from(ZONES), now=moments)
@example(zone="Pacific/Apia", now=datetime(2011, 12, 30, 9, 59, tzinfo=UTC))  # the day before the one that Samoa left out
@example(zone="Pacific/Apia", now=datetime(2011, 12, 30, 10, 0, tzinfo=UTC))
@example(zone="Europe/Berlin", now=datetime(2026, 3, 29, 1, 0, tzinfo=UTC))
@example(zone="Africa/Cairo", now=datetime(2026, 4, 23, 22, 0, tzinfo=UTC))  # a day that begins at 01:00
@example(zone="America/Havana", now=datetime(2026, 11, 1, 5, 30, tzinfo=UTC))  # a day with two midnights
def test_a_day_is_the_whole_local_date_and_nothing_else(zone, now):
    tz = ZoneInfo(zone)
    starts = day_starts(tz, now)
    assert starts == sorted(starts)
    begin, following = around(starts, now)
    today = now.astimezone(tz).date()
    first, last = (datetime.fromtimestamp(seconds, tz) for seconds in (begin, following - 1))
    assert first.date() == last.date() == today
    assert datetime.fromtimestamp(begin - 1, tz).date() < today
    assert datetime.fromtimestamp(following, tz).date() > today
    assert 20 * 3600 <= following - begin <= 28 * 3600


@given(zone=st.sampled_from(ZONES), now=moments)
@example(zone="Pacific/Apia", now=datetime(2011, 12, 31, 12, 0, tzinfo=UTC))
def test_a_month_is_the_whole_local_month(zone, now):
    tz = ZoneInfo(zone)
    begin, following = around(month_starts(tz, now), now)
    local = now.astimezone(tz)
    first, last = (datetime.fromtimestamp(seconds, tz) for seconds in (begin, following - 1))
    assert (first.year, first.month) == (last.year, last.month) == (local.year, local.month)
    before, after = datetime.fromtimestamp(begin - 1, tz), datetime.fromtimestamp(following, tz)
    assert (before.year, before.month) < (local.year, local.month) < (after.year, after.month)
    assert begin in day_starts(tz, first + timedelta(hours=12)), "a month begins with a day"


@given(zone=st.sampled_from(ZONES), now=moments, days=st.integers(0, 6))
def test_a_calendar_lasts_a_week_and_agrees_with_the_one_that_replaces_it(zone, now, days):
    tz = ZoneInfo(zone)
    later = now + timedelta(days=days)
    assert around(day_starts(tz, now), later) == around(day_starts(tz, later), later)
    assert around(month_starts(tz, now), later) == around(month_starts(tz, later), later)


def test_every_field_is_text_and_no_limit_is_empty():
    fields = tenant_fields(Tenant(name="Acme", tokens_per_day=5), datetime(2026, 1, 1, tzinfo=UTC))
    assert all(isinstance(value, str) for value in fields.values())
    assert (fields["tokens_per_day"], fields["tokens_per_month"], fields["models"]) == ("5", "", "")


async def test_an_older_projection_never_replaces_a_newer_one(redis):
    projection = Projection(redis)
    await projection._write([("lockgate:key:d", 7, {"state": "revoked"})])
    await projection._write([("lockgate:key:d", 6, {"state": "active", "more": "x"})])
    assert await redis.hgetall("lockgate:key:d") == {b"version": b"7", b"state": b"revoked"}
    await projection._write([("lockgate:key:d", 8, {"state": "active"})])
    assert await redis.hget("lockgate:key:d", "state") == b"active"


@pytest.mark.django_db(transaction=True)
def test_a_reader_that_sees_more_has_a_higher_version():
    """Also where no transaction began in between: one that was running has ended."""
    other = connection.copy()
    try:
        with other.cursor() as writing:
            writing.execute("BEGIN")
            writing.execute("SELECT pg_current_xact_id()")
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())")
            before = _version()
            assert _version() == before
            writing.execute("COMMIT")
            assert _version() > before
    finally:
        other.close()
