"""What the overview makes of the registry, dead, broken and draining workers among them."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.console import charts, fleet
from gateway.console.attention import concerns
from gateway.console.fleet import Fleet, Worker
from gateway.console.history import History
from gateway.console.latency import Percentiles, between
from inference.protocol.registry import Registration, worker_key
from tests.gateway.console.conftest import announce, load

START = datetime(2026, 12, 1, 12, tzinfo=UTC)


def test_a_worker_is_read_as_it_announces_itself(empty_registry):
    announce(empty_registry)
    read = fleet.read()
    assert (read.total("running"), read.total("blocks_cached"), read.partial) == (3, 150, False)
    assert read.workers[0].registration.model == "SmolLM2-135M-Instruct"
    assert concerns(read) == []


def test_dead_and_unreadable_workers_are_marked_and_hide_no_other(empty_registry):
    announce(empty_registry, "worker-0")
    announce(empty_registry, "worker-1")
    announce(empty_registry, "worker-2")
    announce(empty_registry, "worker-3")
    empty_registry.delete(worker_key("worker-1"))
    empty_registry.hset(worker_key("worker-2"), "load", b'["Load", 1')
    empty_registry.delete(worker_key("worker-3"))
    empty_registry.set(worker_key("worker-3"), "not a hash")
    read = fleet.read()
    assert [bool(worker.problem) for worker in read.workers] == [False, True, True, True]
    assert (read.total("running"), read.partial) == (3, True)
    assert [concern.level for concern in concerns(read)] == ["bad"] * 3


def test_no_worker_and_no_valkey_are_told_apart(empty_registry, settings):
    assert concerns(fleet.read())[0].fact == "No worker is registered."
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    fleet._client.cache_clear()
    try:
        away = fleet.read()
    finally:
        fleet._client.cache_clear()
    assert away.total("running") is None
    assert "Valkey can't be reached" in concerns(away)[0].fact


def test_draining_and_nearly_full_workers_are_pointed_out(empty_registry):
    announce(empty_registry, "worker-0", heartbeat=load(draining=True))
    announce(empty_registry, "worker-1", heartbeat=load(blocks_free=10, blocks_cached=10))
    facts = [concern.fact for concern in concerns(fleet.read())]
    assert facts == ["Worker worker-0 is draining.", "Worker worker-1 holds 980 of 1,000 KV blocks."]


def sample(second: float, *, epoch: str = "e1", **changes) -> Fleet:
    registration = Registration(worker_id="w", epoch=epoch, address="unix:/x", model="m", started_at_ms=0, pid=1)
    return Fleet(at=START + timedelta(seconds=second), workers=(Worker(id="w", registration=registration, load=load(**changes)),))


def history(*samples: Fleet) -> History:
    made = History()
    for one in samples:
        made.add(one, {})
    return made


def test_rates_are_differences_over_time():
    seen = history(sample(0, tokens_generated=100), sample(1, tokens_generated=150), sample(3, tokens_generated=400))
    assert seen.rate("tokens_generated") == pytest.approx(100)
    assert seen.count("tokens_generated") == 300
    assert [value for _, value in seen.rates("tokens_generated")] == [pytest.approx(50), pytest.approx(100)]


def test_one_sample_says_nothing_of_rates():
    seen = history(sample(0))
    assert (seen.rate("tokens_generated"), seen.count("preemptions"), seen.hit_rate()) == (None, None, None)


def test_a_restarted_worker_gives_no_negative_rate():
    seen = history(sample(0, tokens_generated=1000), sample(1, epoch="e2", tokens_generated=5), sample(2, epoch="e2", tokens_generated=25))
    assert seen.count("tokens_generated") == 20


def test_a_while_without_samples_is_a_gap_and_no_rate():
    seen = history(sample(0, tokens_generated=0), sample(60, tokens_generated=6000), sample(61, tokens_generated=6010))
    assert seen.count("tokens_generated") == 10
    assert [value for _, value in seen.levels(lambda one: one.total("running"))] == [3, None, 3, 3]


def test_the_hit_rate_is_of_prompt_tokens():
    seen = history(sample(0, tokens_cached=0, tokens_computed=0), sample(1, tokens_cached=30, tokens_computed=70))
    assert seen.hit_rate() == pytest.approx(0.3)


INFINITE = float("inf")


def test_percentiles_are_interpolated_within_their_bucket():
    seen = between({0.1: 0, 0.2: 0, INFINITE: 0}, {0.1: 50, 0.2: 100, INFINITE: 100})
    assert (seen.p50, seen.count) == (pytest.approx(0.1), 100)
    assert seen.p99 == pytest.approx(0.198)


def test_percentiles_of_nothing_and_of_a_new_process():
    nothing = Percentiles(p50=None, p99=None, count=0)
    assert between({}, {}) == nothing
    assert between({0.1: 7, INFINITE: 7}, {0.1: 7, INFINITE: 7}) == nothing
    assert between({0.1: 7, INFINITE: 7}, {0.1: 2, INFINITE: 2}).count == 2
    assert between({}, {0.1: 0, INFINITE: 4}).p99 == 0.1


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e9)), max_size=40))
def test_a_line_stays_within_its_chart_and_breaks_at_gaps(values):
    points = [(float(index), value) for index, value in enumerate(values)]
    drawn = charts.chart("Title", "unit", [("one", 1, points)], span_s=300)
    path = drawn.lines[0].path
    shown = [value for value in values if value is not None]
    if len(shown) > 1:
        runs = sum(1 for index, value in enumerate(values) if value is not None and (index == 0 or values[index - 1] is None))
        assert path.count("M") == runs
        heights = [float(part.split(" ")[1]) for part in path.replace("M", "L").split("L")[1:]]
        assert all(charts.INSET - 0.06 <= height <= charts.HEIGHT - charts.INSET + 0.06 for height in heights)
    assert drawn.top >= max(shown, default=0)
