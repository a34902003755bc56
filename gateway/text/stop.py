"""Stop strings, found on text: the border of tokens or pieces plays no part."""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_STOP_LENGTH = 1000
"""In characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMatch:
    stop: str
    start: int
    """Offset of its first character in all the text pushed so far."""
    end: int


def _failure_table(pattern: str) -> list[int]:
    """Knuth-Morris-Pratt: for each prefix, the length of its longest proper prefix that also ends it."""
    table = [0] * len(pattern)
    length = 0
    for place in range(1, len(pattern)):
        while length and pattern[place] != pattern[length]:
            length = table[length - 1]
        if pattern[place] == pattern[length]:
            length += 1
        table[place] = length
    return table


class StopMatcher:
    """Finds the stop string that is complete first; of several complete at the same character, the longest.

    Reads each character once, so the outcome doesn't depend on how the text was cut into pieces. After a match nothing more is read.
    """

    __slots__ = ("_failures", "_firsts", "_matched", "_stops", "length", "match")

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise ValueError("a stop string can't be empty")
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._failures = [_failure_table(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._firsts = {stop[0] for stop in self._stops}
        self.length = 0
        """Characters read."""
        self.match: StopMatch | None = None

    @property
    def held(self) -> int:
        """Characters at the end of the text that may yet be the beginning of a stop string."""
        return max(self._matched, default=0)

    def push(self, text: str) -> StopMatch | None:
        """Read more text; the match, if there is one by now."""
        if self.match is not None:
            return self.match
        if not any(self._matched) and self._firsts.isdisjoint(text):
            self.length += len(text)
            return None
        matched = self._matched
        for character in text:
            self.length += 1
            for which, stop in enumerate(self._stops):
                length = matched[which]
                while length and stop[length] != character:
                    length = self._failures[which][length - 1]
                if stop[length] == character:
                    length += 1
                if length == len(stop):
                    self.match = StopMatch(stop=stop, start=self.length - length, end=self.length)
                    return self.match
                matched[which] = length
        return None
