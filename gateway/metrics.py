"""What Prometheus reads: generations as this gateway's processes saw them, workers as they last reported themselves.

| metric | labels |
| --- | --- |
| lockgate_requests_total | model, endpoint, outcome |
| lockgate_requests_in_flight | model |
| lockgate_time_to_first_token_seconds, lockgate_time_per_output_token_seconds, lockgate_request_seconds, lockgate_queue_seconds | model |
| lockgate_tokens_total | model, kind (prompt, cached, generated, billed, wasted) |
| lockgate_worker_… | worker, model |

Labels are bounded: a model is one that a worker serves, an outcome one of OUTCOMES, an endpoint one of ENDPOINTS (or `other`). No label
comes from a caller. With several web processes PROMETHEUS_MULTIPROC_DIR names a folder that they share; the library reads the variable as
it is imported.
"""

import hmac
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, get_args

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from gateway.dispatch.link import Link
from gateway.events import FailureCode
from inference.protocol.usage import Counters

ENDPOINTS = frozenset({"chat.completions", "completions", "responses"})
OUTCOMES = frozenset({"completed", *get_args(FailureCode), "refused", "invalid", "unavailable"})

_LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_PER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)

_requests = Counter("lockgate_requests", "Requests that ended, by how.", ["model", "endpoint", "outcome"])
_in_flight = Gauge("lockgate_requests_in_flight", "Requests between admission and settlement.", ["model"], multiprocess_mode="livesum")
_first_token = Histogram("lockgate_time_to_first_token_seconds", "From admission to the first token.", ["model"], buckets=_LATENCY_S)
_per_token = Histogram("lockgate_time_per_output_token_seconds", "Between a choice's tokens, mean.", ["model"], buckets=_PER_TOKEN_S)
_whole = Histogram("lockgate_request_seconds", "From admission to settlement.", ["model"], buckets=_LATENCY_S)
_queue = Histogram("lockgate_queue_seconds", "In the worker's queue.", ["model"], buckets=_LATENCY_S)
_tokens = Counter("lockgate_tokens", "Tokens of requests that ended.", ["model", "kind"])


def entered(model: str) -> None:
    """A request has been admitted."""
    _in_flight.labels(model).inc()


def left(model: str) -> None:
    """It is in flight no longer."""
    _in_flight.labels(model).dec()


def first_token(model: str, seconds: float) -> None:
    _first_token.labels(model).observe(seconds)


def ended(model: str, endpoint: str, outcome: str, *, seconds: float, per_token_s: float | None, counters: Counters) -> None:
    """A request that ran has ended."""
    not_run(model, endpoint, outcome)
    _whole.labels(model).observe(seconds)
    _queue.labels(model).observe(counters.queue_s)
    if per_token_s is not None:
        _per_token.labels(model).observe(per_token_s)
    for kind in ("prompt", "cached", "generated", "billed", "wasted"):
        _tokens.labels(model, kind).inc(getattr(counters, f"{kind}_tokens"))


def not_run(model: str, endpoint: str, outcome: str) -> None:
    """A request has ended before it ran."""
    assert outcome in OUTCOMES
    _requests.labels(model, endpoint if endpoint in ENDPOINTS else "other", outcome).inc()


# --- what is served -----------------------------------------------------------------------------------------------------------------


class WorkerCollector(Collector):
    """Workers as of their latest heartbeats. Any web process has a link to each, so any can answer for all."""

    def __init__(self, links: Iterable[Link]) -> None:
        self._links = links

    def collect(self) -> Iterator[Metric]:
        labels = ["worker", "model"]
        up = GaugeMetricFamily("lockgate_worker_up", "Whether this process is linked to the worker.", labels=labels)
        requests = GaugeMetricFamily("lockgate_worker_requests", "Requests at the worker.", labels=[*labels, "state"])
        blocks = GaugeMetricFamily("lockgate_worker_kv_blocks", "Blocks of the KV cache.", labels=[*labels, "state"])
        hit_ratio = GaugeMetricFamily("lockgate_worker_prefix_hit_ratio", "Prompt tokens found in the cache.", labels=labels)
        step = GaugeMetricFamily("lockgate_worker_step_seconds", "A step's duration of late.", labels=labels)
        tokens = CounterMetricFamily("lockgate_worker_tokens", "Tokens by how they came about.", labels=[*labels, "kind"])
        steps = CounterMetricFamily("lockgate_worker_steps", "Steps of the engine.", labels=labels)
        preemptions = CounterMetricFamily("lockgate_worker_preemptions", "Requests set back for want of blocks.", labels=labels)
        failed = CounterMetricFamily("lockgate_worker_requests_failed", "Requests that ended in an error.", labels=labels)
        for link in self._links:
            if link.card is None:
                continue
            names = [link.worker_id, link.card.name]
            up.add_metric(names, float(link.up))
            load = link.load
            if load is None:
                continue
            requests.add_metric([*names, "running"], load.running)
            requests.add_metric([*names, "waiting"], load.waiting)
            held = load.blocks_total - load.blocks_free - load.blocks_cached
            for state, value in (("free", load.blocks_free), ("cached", load.blocks_cached), ("held", held)):
                blocks.add_metric([*names, state], value)
            known = load.tokens_cached + load.tokens_computed
            hit_ratio.add_metric(names, load.tokens_cached / known if known else 0.0)
            step.add_metric(names, load.step_ms_mean / 1000)
            for kind in ("computed", "cached", "generated"):
                tokens.add_metric([*names, kind], getattr(load, f"tokens_{kind}"))
            steps.add_metric(names, load.steps)
            preemptions.add_metric(names, load.preemptions)
            failed.add_metric(names, load.requests_failed)
        yield from (up, requests, blocks, hit_ratio, step, tokens, steps, preemptions, failed)


def exposition(links: Iterable[Link]) -> bytes:
    """Everything, as Prometheus reads it."""
    workers = CollectorRegistry()
    workers.register(WorkerCollector(links))
    return generate_latest(all_processes()) + generate_latest(workers)


def all_processes() -> CollectorRegistry:
    """What this machine's web processes have measured, summed; this one's alone where they share no folder."""
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if not folder:
        return REGISTRY
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]  # the library's types stop here
    return registry


def forget_dead_processes() -> None:
    """Take gauges of processes that died without a word out of the sum. Called as a web process starts."""
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if not folder:
        return
    Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
    pids = {int(found[1]) for path in Path(folder).iterdir() if (found := re.fullmatch(r"gauge_live\w*_(\d+)\.db", path.name))}
    for pid in pids:
        if not Path(f"/proc/{pid}").exists():
            mark_process_dead(pid, path=folder)  # type: ignore[no-untyped-call]  # the library's types stop here


def leave() -> None:
    """This process ends: its gauges leave the sum, its counters stay."""
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if folder:
        mark_process_dead(os.getpid(), path=folder)  # type: ignore[no-untyped-call]  # the library's types stop here


def keep_token(path: Path) -> str:
    """The token kept in this file (mode 0600), made if there is none."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    token = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    return token


Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class MetricsEndpoint:
    """GET /metrics as an ASGI application. For operators: it wants the token as a bearer, unless `token` is None."""

    def __init__(self, links: Callable[[], Iterable[Link]], *, token: str | None) -> None:
        self._links = links
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: object, send: Send) -> None:
        del receive
        if scope["method"] != "GET":
            await _answer(send, 405, b"use GET\n", (b"allow", b"GET"))
        elif not self._allowed(scope):
            await _answer(send, 401, b"the metrics token is needed\n", (b"www-authenticate", b"Bearer"))
        else:
            await _answer(send, 200, exposition(self._links()), (b"content-type", CONTENT_TYPE_LATEST.encode()))

    def _allowed(self, scope: Scope) -> bool:
        if self._token is None:
            return True
        presented = next((bytes(value) for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = presented.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)


async def _answer(send: Send, status: int, body: bytes, header: tuple[bytes, bytes]) -> None:
    headers = [header, (b"content-length", str(len(body)).encode())]
    if header[0] != b"content-type":
        headers.append((b"content-type", b"text/plain; charset=utf-8"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
