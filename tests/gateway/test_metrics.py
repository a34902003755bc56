"""What Prometheus is told, and whom."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway import metrics
from inference.protocol.usage import Counters
from tests.gateway.dispatch.scripted_worker import CARD, load

WORKER = SimpleNamespace(
    worker_id="w1",
    card=CARD,
    up=True,
    load=load(running=3, blocks_total=10, blocks_free=4, blocks_cached=1, tokens_cached=30, tokens_computed=90, preemptions=2),
)


async def ask(endpoint: metrics.MetricsEndpoint, *, method: str = "GET", authorization: bytes | None = None) -> tuple[int, bytes]:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [] if authorization is None else [(b"authorization", authorization)]
    await endpoint({"method": method, "headers": headers}, None, send)
    return sent[0]["status"], sent[1]["body"]


async def test_only_the_token_opens_it():
    endpoint = metrics.MetricsEndpoint(lambda: [], token="secret")
    assert (await ask(endpoint))[0] == 401
    assert (await ask(endpoint, authorization=b"Bearer wrong"))[0] == 401
    assert (await ask(endpoint, authorization=b"Basic secret"))[0] == 401
    assert (await ask(endpoint, authorization=b"Bearer \xff"))[0] == 401
    assert (await ask(endpoint, authorization=b"Bearer secret"))[0] == 200
    assert (await ask(endpoint, method="POST", authorization=b"Bearer secret"))[0] == 405


async def test_it_is_public_only_where_an_operator_says_so():
    assert (await ask(metrics.MetricsEndpoint(lambda: [], token=None)))[0] == 200


def test_workers_are_told_as_they_last_reported_themselves():
    told = metrics.exposition([WORKER]).decode()
    assert 'lockgate_worker_kv_blocks{model="scripted",state="held",worker="w1"} 5.0' in told
    assert 'lockgate_worker_prefix_hit_ratio{model="scripted",worker="w1"} 0.25' in told
    assert 'lockgate_worker_preemptions_total{model="scripted",worker="w1"} 2.0' in told


def test_a_request_is_counted_by_what_became_of_it():
    metrics.entered("metrics-test")
    metrics.first_token("metrics-test", 0.2)
    counters = Counters(prompt_tokens=7, cached_tokens=4, generated_tokens=3, billed_tokens=2, wasted_tokens=1)
    metrics.ended("metrics-test", "no such endpoint", "worker_lost", seconds=1.0, per_token_s=0.1, counters=counters)
    metrics.left("metrics-test")
    told = metrics.exposition([]).decode()
    assert 'lockgate_requests_total{endpoint="other",model="metrics-test",outcome="worker_lost"} 1.0' in told
    assert 'lockgate_tokens_total{kind="cached",model="metrics-test"} 4.0' in told
    assert 'lockgate_requests_in_flight{model="metrics-test"} 0.0' in told
    assert 'lockgate_time_to_first_token_seconds_count{model="metrics-test"} 1.0' in told


def test_an_outcome_that_is_not_listed_is_a_mistake():
    with pytest.raises(AssertionError):
        metrics.not_run("metrics-test", "completions", "from a caller")


def test_the_token_is_made_once_and_kept_private(tmp_path: Path):
    path = tmp_path / "metrics.token"
    token = metrics.keep_token(path)
    assert len(token) >= 32
    assert metrics.keep_token(path) == token
    assert path.stat().st_mode & 0o777 == 0o600


PROCESS = """
import os, sys
from gateway import metrics
metrics.forget_dead_processes()
if sys.argv[1] != "read":
    metrics.entered("m")
    metrics.not_run("m", "completions", "completed")
if sys.argv[1] == "leave":
    metrics.leave()
if sys.argv[1] == "die":
    os.kill(os.getpid(), 9)
print(metrics.exposition([]).decode())
"""


def test_processes_are_summed_and_the_dead_leave_only_their_counts(tmp_path: Path):
    """Each of several web processes answers for all; one that was killed is in flight no longer."""

    def run(what: str) -> str:
        environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics")}
        return subprocess.run(
            [sys.executable, "-c", PROCESS, what], env=environment, capture_output=True, text=True, check=what != "die", timeout=60
        ).stdout

    run("leave")
    run("die")
    told = run("read")
    assert 'lockgate_requests_total{endpoint="completions",model="m",outcome="completed"} 2.0' in told
    assert 'lockgate_requests_in_flight{model="m"} 1.0' not in told
