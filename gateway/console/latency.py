"""Percentiles of what the gateways measured lately, from the Prometheus histograms of all web processes of this machine."""

from dataclasses import dataclass

from gateway import metrics

TTFT = "lockgate_time_to_first_token_seconds"
TPOT = "lockgate_time_per_output_token_seconds"
WATCHED = (TTFT, TPOT)

Buckets = dict[float, float]
"""Upper bound in seconds (infinity for the last) → observations up to it, since the processes began."""


def read() -> dict[str, Buckets]:
    """The watched histograms now, over all models; empty buckets where nothing was measured yet."""
    found: dict[str, Buckets] = {name: {} for name in WATCHED}
    for metric in metrics.all_processes().collect():
        if metric.name not in found:
            continue
        buckets = found[metric.name]
        for sample in metric.samples:
            if sample.name.endswith("_bucket"):
                bound = float(sample.labels["le"])
                buckets[bound] = buckets.get(bound, 0.0) + sample.value
    return found


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    p50: float | None
    p99: float | None
    count: int


def between(earlier: Buckets, later: Buckets) -> Percentiles:
    """Percentiles of what was observed from `earlier` to `later`; a process that began anew counts from nothing."""
    if sum(later.values()) < sum(earlier.values()):
        earlier = {}
    seen = {bound: count - earlier.get(bound, 0.0) for bound, count in sorted(later.items())}
    count = max(seen.values(), default=0.0)
    return Percentiles(p50=_quantile(seen, 0.5), p99=_quantile(seen, 0.99), count=int(count))


def _quantile(buckets: Buckets, share: float) -> float | None:
    """Linear within its bucket, as Prometheus's histogram_quantile; the last finite bound where it lies beyond."""
    total = max(buckets.values(), default=0.0)
    if total <= 0:
        return None
    rank = share * total
    lower_bound, lower_count = 0.0, 0.0
    for bound, count in buckets.items():
        if count >= rank:
            if bound == float("inf"):
                return lower_bound
            return lower_bound + (bound - lower_bound) * (rank - lower_count) / (count - lower_count)
        lower_bound, lower_count = bound, count
    return lower_bound
