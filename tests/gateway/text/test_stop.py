import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.text.stop import StopMatcher

letters = st.text(alphabet="ab", min_size=0, max_size=25)
stop_sets = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=4)


def first_by_definition(text: str, stops: list[str]) -> tuple[int, int] | None:
    """(end, start) of the match that is complete first; at the same end, the longest."""
    found = [(at + len(stop), at) for stop in stops for at in range(len(text)) if text.startswith(stop, at)]
    return min(found, default=None)


def in_pieces(text: str, cuts: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in itertools.pairwise(borders)]


@settings(max_examples=500, deadline=None)
@given(letters, stop_sets, st.lists(st.integers(0, 100), max_size=6))
def test_match_is_the_earliest_however_the_text_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    for piece in in_pieces(text, cuts):
        matcher.push(piece)
    expected = first_by_definition(text, stops)
    found = matcher.match
    assert (None if found is None else (found.end, found.start)) == expected
    assert found is None or text[found.start : found.end] == found.stop


@settings(max_examples=500, deadline=None)
@given(letters, stop_sets)
def test_just_what_may_begin_a_stop_string_is_held(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    if matcher.push(text) is None:
        longest = max((n for n in range(1, len(text) + 1) if any(stop.startswith(text[-n:]) for stop in stops)), default=0)
        assert matcher.held == longest


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])


def test_nothing_is_read_after_a_match() -> None:
    matcher = StopMatcher(["b"])
    first = matcher.push("ab")
    assert matcher.push("bbb") == first
    assert matcher.length == 2
