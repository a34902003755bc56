"""The last minutes of the fleet, one sample a second, and what can be said of them: rates, shares, lines to draw."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from gateway.console.fleet import Fleet
from gateway.console.latency import Buckets, Percentiles, between
from inference.protocol.frames import Load
from inference.protocol.registry import Registration

KEPT = 300
GAP_S = 3.5
"""More between two samples is a gap in the lines: nobody looked, or Valkey was away."""
COUNTED = ("tokens_computed", "tokens_cached", "tokens_generated", "preemptions", "requests_failed", "steps")


@dataclass(frozen=True, kw_only=True)
class Interval:
    """What happened between two samples. Only workers seen in both count, so that a restart is no negative rate."""

    end_s: float
    """Unix seconds of the later sample."""
    length_s: float
    counts: dict[str, int]


@dataclass
class History:
    samples: deque[Fleet] = field(default_factory=lambda: deque(maxlen=KEPT))
    latencies: deque[dict[str, Buckets]] = field(default_factory=lambda: deque(maxlen=KEPT))

    def add(self, fleet: Fleet, latencies: dict[str, Buckets]) -> None:
        self.samples.append(fleet)
        self.latencies.append(latencies)

    def percentiles(self, name: str) -> Percentiles:
        """Of what was measured between the first and the last sample kept."""
        if not self.latencies:
            return Percentiles(p50=None, p99=None, count=0)
        return between(self.latencies[0].get(name, {}), self.latencies[-1].get(name, {}))

    @property
    def latest(self) -> Fleet | None:
        return self.samples[-1] if self.samples else None

    @property
    def covers_s(self) -> float:
        """From the first sample to the last."""
        return (self.samples[-1].at - self.samples[0].at).total_seconds() if len(self.samples) > 1 else 0.0

    def intervals(self) -> Iterator[Interval]:
        """Between each two neighbours that are no gap."""
        for before, after in pairwise(self.samples):
            length_s = (after.at - before.at).total_seconds()
            if 0 < length_s <= GAP_S:
                yield Interval(end_s=after.at.timestamp(), length_s=length_s, counts=_counts(before, after))

    def count(self, name: str) -> int | None:
        """How often within all that is kept; None before the second sample."""
        counts = [interval.counts[name] for interval in self.intervals()]
        return sum(counts) if counts else None

    def rate(self, name: str, *, over_s: float = 5.0) -> float | None:
        """Per second, over the latest seconds; None where there is nothing to compare."""
        latest = self.latest
        if latest is None:
            return None
        recent = [i for i in self.intervals() if i.end_s > latest.at.timestamp() - over_s]
        length_s = sum(i.length_s for i in recent)
        return sum(i.counts[name] for i in recent) / length_s if recent else None

    def hit_rate(self) -> float | None:
        """Share of the prompt tokens that the prefix cache gave; None where no prompt came."""
        cached, computed = self.count("tokens_cached"), self.count("tokens_computed")
        if cached is None or computed is None or cached + computed == 0:
            return None
        return cached / (cached + computed)

    def rates(self, name: str) -> list[tuple[float, float | None]]:
        """(Unix seconds, per second) for a chart; None marks a gap. Each is a mean of 3 samples: heartbeats and looks are not in step."""
        lately: deque[Interval] = deque(maxlen=3)
        points: list[tuple[float, float | None]] = []
        for interval in self.intervals():
            if lately and interval.end_s - interval.length_s - lately[-1].end_s > GAP_S:
                lately.clear()
            lately.append(interval)
            points.append((interval.end_s, sum(i.counts[name] for i in lately) / sum(i.length_s for i in lately)))
        return list(_with_gaps(points))

    def levels(self, value: Callable[[Fleet], int | None]) -> list[tuple[float, float | None]]:
        """(Unix seconds, value) for a chart; None where it is missing."""
        return list(_with_gaps([(fleet.at.timestamp(), value(fleet)) for fleet in self.samples]))


def _counts(before: Fleet, after: Fleet) -> dict[str, int]:
    earlier = {_identity(worker.registration): worker.load for worker in before.workers if worker.registration and worker.load}
    pairs: list[tuple[Load, Load]] = []
    for worker in after.workers:
        if worker.registration and worker.load and (load := earlier.get(_identity(worker.registration))) is not None:
            pairs.append((load, worker.load))
    return {name: sum(max(0, getattr(new, name) - getattr(old, name)) for old, new in pairs) for name in COUNTED}


def _identity(registration: Registration) -> tuple[str, str]:
    return registration.worker_id, registration.epoch


def _with_gaps(points: list[tuple[float, float | None]]) -> Iterator[tuple[float, float | None]]:
    previous: float | None = None
    for at, value in points:
        if previous is not None and at - previous > GAP_S:
            yield previous + 0.001, None
        yield at, value
        previous = at
