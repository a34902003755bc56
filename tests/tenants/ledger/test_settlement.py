"""The ledger's one writer: events once, sums exact, rows for ever."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models import Sum
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from tenants.ledger import settlement
from tenants.ledger.models import QUANTITIES
from tenants.models import BudgetUse, LedgerEvent, UsageDay, UsageHour
from tests.tenants.ledger.events import KEY, NOON, OTHER_KEY, OTHER_PROJECT, PROJECT, RIVAL, event


def sums(model: type[LedgerEvent] | type[UsageHour] | type[UsageDay]) -> dict[str, int]:
    return {name: total or 0 for name, total in model.objects.aggregate(**{name: Sum(name) for name in QUANTITIES}).items()}


def partition_of(request_id: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT tableoid::regclass::text FROM tenants_ledgerevent WHERE request_id = %s", [request_id])
        return cursor.fetchone()[0]


@pytest.mark.django_db
def test_event_is_in_the_ledger_with_all_its_figures_and_in_every_sum():
    settlement.insert([event(request_id="r1", prompt_tokens=10, billed_tokens=5, generated_tokens=6, wasted_tokens=1, decode_us=7)])
    row = LedgerEvent.objects.get()
    assert (row.request_id, row.prompt_tokens, row.billed_tokens, row.wasted_tokens, row.decode_us) == ("r1", 10, 5, 1, 7)
    assert row.occurred_at == NOON
    assert UsageHour.objects.get().bucket == datetime(2026, 3, 14, 12, tzinfo=UTC)
    assert UsageDay.objects.get().bucket == date(2026, 3, 14)
    assert UsageDay.objects.get().requests == 1
    assert sums(LedgerEvent) == sums(UsageHour) == sums(UsageDay)
    assert set(BudgetUse.objects.values_list("scope", "period", "start", "tokens")) == {
        (scope, period, start, 15) for scope in ("key", "project", "tenant") for period, start in (("day", 1000), ("month", 500))
    }


@pytest.mark.django_db
def test_event_that_is_there_already_adds_nothing_and_gives_its_old_row():
    first = event(sequence=901, billed_tokens=5)
    inserted = settlement.insert([first, first])
    again = settlement.insert([first, event(sequence=902, billed_tokens=7)])
    assert again[first.identity] == inserted[first.identity]
    assert LedgerEvent.objects.count() == 2
    assert sums(UsageHour)["billed_tokens"] == 12
    assert UsageDay.objects.get().requests == 2


@pytest.mark.django_db
def test_nothing_is_inserted_where_one_event_is_refused():
    with pytest.raises(IntegrityError), transaction.atomic():
        settlement.insert([event(billed_tokens=5), event(billed_tokens=-1)])
    assert not LedgerEvent.objects.exists()
    assert not UsageHour.objects.exists()
    assert not BudgetUse.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "statement",
    ["UPDATE tenants_ledgerevent SET billed_tokens = 0", "DELETE FROM tenants_ledgerevent"],
)
def test_rows_can_be_neither_changed_nor_deleted(statement):
    settlement.make_partitions(first=NOON.date(), months=1)
    settlement.insert([event(billed_tokens=5), event(at=datetime(2031, 1, 1, tzinfo=UTC), billed_tokens=5)])
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)
    assert sums(LedgerEvent)["billed_tokens"] == 10


@pytest.mark.django_db
def test_events_go_into_their_months_partition_and_without_one_into_the_default():
    assert settlement.make_partitions(first=date(2026, 3, 20), months=2) == ["tenants_ledgerevent_2026_03", "tenants_ledgerevent_2026_04"]
    assert settlement.make_partitions(first=date(2026, 3, 20), months=2) == []
    settlement.insert([event(request_id="march"), event(request_id="may", at=datetime(2026, 5, 1, tzinfo=UTC))])
    assert partition_of("march") == "tenants_ledgerevent_2026_03"
    assert partition_of("may") == "tenants_ledgerevent_default"


@pytest.mark.django_db
def test_partition_made_late_takes_what_lies_in_the_default_one():
    late = event(request_id="may", at=datetime(2026, 5, 1, tzinfo=UTC), billed_tokens=3)
    others = [event(request_id="april", at=datetime(2026, 4, 30, 23, 59, 59, 999_999, tzinfo=UTC))]
    others.append(event(request_id="june", at=datetime(2026, 6, 1, tzinfo=UTC)))
    settlement.insert([late, *others])
    settlement.make_partitions(first=date(2026, 5, 1), months=1)
    assert partition_of("may") == "tenants_ledgerevent_2026_05"
    assert {partition_of("april"), partition_of("june")} == {"tenants_ledgerevent_default"}
    assert LedgerEvent.objects.count() == 3
    settlement.insert([late])
    assert LedgerEvent.objects.count() == 3, "it is still known"


@pytest.mark.django_db
def test_budgets_are_charged_to_the_day_and_month_that_the_event_names():
    settlement.insert([event(day=1000, month=500, prompt_tokens=1, billed_tokens=2), event(day=2000, month=500, prompt_tokens=4)])
    charged = dict(BudgetUse.objects.filter(scope="tenant").values_list("start", "tokens"))
    assert charged == {1000: 3, 2000: 4, 500: 7}


@pytest.mark.django_db(transaction=True)
def test_four_writers_with_overlapping_events_in_any_order_are_exact():
    """G34: no deadlock, no increment lost."""
    events = [event(key_id=(KEY, OTHER_KEY)[i % 2], model=f"m{i % 3}", billed_tokens=i) for i in range(60)]
    orders = [events, events[::-1], events[::2] + events[1::2], events[30:] + events[:30]]
    barrier = threading.Barrier(4)

    def write(order: list[settlement.Event]) -> None:
        try:
            barrier.wait(10)
            for start in range(0, len(order), 10):
                settlement.insert(order[start : start + 10])
        finally:
            connection.close()

    try:
        with ThreadPoolExecutor(4) as writers:
            for written in [writers.submit(write, order) for order in orders]:
                written.result(60)
        assert LedgerEvent.objects.count() == 60
        assert sums(LedgerEvent)["billed_tokens"] == sum(range(60))
        assert sums(LedgerEvent) == sums(UsageHour) == sums(UsageDay)
        assert BudgetUse.objects.get(scope="tenant", period="day").tokens == sum(range(60))
    finally:
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE tenants_ledgerevent")  # none of Django's tables, so none that it empties


class AnyUsage(TestCase):
    """Whatever comes in whatever batches, however often."""

    @settings(max_examples=40, deadline=None)
    @given(data=st.data())
    def test_sums_are_the_ledgers(self, data: st.DataObject) -> None:
        size = data.draw(st.integers(1, 12))
        events = [
            event(
                sequence=i,
                at=data.draw(st.datetimes(datetime(2026, 2, 27), datetime(2026, 3, 2), timezones=st.just(UTC))),
                tenant_id=data.draw(st.sampled_from((RIVAL,))),
                project_id=data.draw(st.sampled_from((PROJECT, OTHER_PROJECT))),
                key_id=data.draw(st.sampled_from((KEY, OTHER_KEY))),
                **{name: data.draw(st.integers(0, 10**12)) for name in ("prompt_tokens", "billed_tokens", "kv_block_ms")},
            )
            for i in range(size)
        ]
        for batch in data.draw(st.lists(st.lists(st.sampled_from(events), max_size=8), max_size=6)):
            settlement.insert(batch)
        ledger = sums(LedgerEvent)
        assert ledger == sums(UsageHour) == sums(UsageDay)
        for scope in ("key", "project", "tenant"):
            for period in ("day", "month"):
                charged = sum(BudgetUse.objects.filter(scope=scope, period=period).values_list("tokens", flat=True))
                assert charged == ledger["prompt_tokens"] + ledger["billed_tokens"]
