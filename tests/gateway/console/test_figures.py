from datetime import UTC, datetime, timedelta

import pytest

from gateway.console import figures


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "—"), (0, "0"), (7, "7"), (999, "999"), (1204, "1\u00a0204"), (9999, "9\u00a0999"), (12_400, "12.4k"),
        (999_960, "1.00M"),
        (3_210_000, "3.21M"), (2.0e9, "2.00B"), (0.5, "0.500"), (21.5, "21.5"), (99.96, "100"), (-12_400, "-12.4k"),
        (1e15, "1000T"), (1e-7, "0"),
    ],
)  # fmt: skip
def test_numbers_have_three_significant_digits_and_no_exponent(value, written):
    assert figures.compact(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "—"), (0, "0 ms"), (0.0123, "12.3 ms"), (0.2314, "231 ms"), (1.234, "1.23 s"), (5, "5 s"),
        (65, "1 min 5 s"), (7200, "2 h"), (200_000, "2 d"),
    ],
)  # fmt: skip
def test_times_are_milliseconds_under_a_second(value, written):
    assert figures.seconds(value) == written


def test_absent_and_zero_differ():
    assert (figures.percent(None), figures.percent(0.0), figures.percent(0.982)) == ("—", "0 %", "98.2 %")


@pytest.mark.parametrize(
    ("ago", "written"),
    [
        (timedelta(seconds=5), "just now"),
        (timedelta(minutes=5), "5 min ago"),
        (timedelta(hours=23), "23 h ago"),
        (timedelta(hours=25), "2026-11-30 11:00 UTC"),
        (-timedelta(hours=2), "in 2 h"),
        (-timedelta(seconds=2), "in under a minute"),
    ],
)
def test_moments_are_relative_within_a_day(ago, written):
    now = datetime(2026, 12, 1, 12, tzinfo=UTC)
    assert figures.moment(now - ago, now) == written
