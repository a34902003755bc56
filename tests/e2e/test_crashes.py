"""kill -9 of the worker and of a web process during 50 streams: nobody gets an invented end, nothing stays held, the ledger is exact."""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable

import httpx
import psutil
import psycopg
import pytest
import redis

from tests.e2e.installation import installation

pytestmark = pytest.mark.e2e

STREAMS = 50
TOKENS = 120


@pytest.fixture(scope="module")
def fragile():
    """An installation of its own, on the synthetic model, so that killing its parts disturbs no other test."""
    with installation(MODEL="synthetic:rate=40", WEB="2") as running:
        yield running


def process_of(running, *words: str) -> psutil.Process:
    for process in psutil.Process(running.process.pid).children(recursive=True):
        line = process.cmdline()
        if all(word in line for word in words):
            return process
    raise AssertionError(f"no process with {words}")


async def one_stream(running, key: str, model: str, started: asyncio.Event) -> dict:
    """Read one stream to its end, however it ends."""
    body = {
        "model": model,
        "prompt": "go",
        "max_tokens": TOKENS,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    seen: dict = {"text": "", "finish": None, "error": None, "done": False, "cut": False}
    try:
        async with (
            httpx.AsyncClient(timeout=60) as client,
            client.stream("POST", f"{running.url}/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"}) as answer,
        ):
            if answer.status_code != 200:
                seen["error"] = (await answer.aread()).decode()
                return seen
            async for line in answer.aiter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    seen["done"] = True
                    break
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    seen["error"] = chunk["error"]["message"]
                    continue
                for choice in chunk.get("choices", []):
                    seen["text"] += choice["text"]
                    seen["finish"] = choice["finish_reason"] or seen["finish"]
                if seen["text"]:
                    started.set()
    except (httpx.RemoteProtocolError, httpx.ReadError, httpx.ConnectError):
        seen["cut"] = True
    return seen


async def streams_with_a_death(running, key: str, model: str, victim) -> list[dict]:
    started = [asyncio.Event() for _ in range(STREAMS)]
    tasks = [asyncio.create_task(one_stream(running, key, model, event)) for event in started]
    await asyncio.wait_for(asyncio.gather(*(event.wait() for event in started[: STREAMS // 2])), 60)
    os.kill(victim().pid, signal.SIGKILL)
    return await asyncio.gather(*tasks)


def held(running) -> dict[str, int]:
    """Everything in Valkey that still counts as held or in flight."""
    services = json.loads((running.home / "services.json").read_text())
    with redis.Redis.from_url(services["redis_url"], decode_responses=True) as client:
        found = {}
        for name in client.scan_iter("lockgate:*"):
            if ":inflight:" in name or name in ("lockgate:holds", "lockgate:orphans"):
                found[name] = client.zcard(name)
            elif name.startswith("lockgate:scope:"):
                found[name] = sum(int(tokens) for field, tokens in client.hgetall(name).items() if field.startswith("held:"))
        return {name: count for name, count in found.items() if count}


def eventually(holds: Callable[[], bool], *, within_s: float) -> bool:
    """Ask five times a second until it holds."""
    deadline = time.monotonic() + within_s
    pause = threading.Event()
    while not holds():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.2)
    return True


def ready(running) -> bool:
    try:
        return httpx.get(f"{running.url}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def ledger_tokens(running, tenant: str) -> int:
    services = json.loads((running.home / "services.json").read_text())
    with psycopg.connect(services["database_url"]) as connection:
        row = connection.execute(
            "SELECT coalesce(sum(generated_tokens), 0) FROM tenants_ledgerevent JOIN tenants_tenant t ON t.id = tenant_id WHERE name = %s",
            (tenant,),
        ).fetchone()
        return int(row[0])


@pytest.mark.parametrize("victim", ["worker", "web"])
def test_kill_during_50_streams(fragile, victim):
    tenant = f"Acme {victim}"
    key = fragile.create_key(tenant)
    model = httpx.get(f"{fragile.url}/v1/models", headers={"Authorization": f"Bearer {key}"}).json()["data"][0]["id"]
    words = {"worker": ("inference.worker",), "web": ("gateway.serve",)}[victim]

    seen = asyncio.run(streams_with_a_death(fragile, key, model, lambda: process_of(fragile, *words)))

    ended = [s for s in seen if s["finish"]]
    for stream in ended:
        assert stream["finish"] == "length"
        assert stream["done"]
    for stream in seen:
        assert stream["finish"] or stream["error"] or stream["cut"], "a stream ended without a word"
        assert not (stream["finish"] and stream["error"])
    assert any(not s["finish"] for s in seen), "the death came too late to matter"
    if victim == "worker":
        assert not any(s["cut"] for s in seen), "a living gateway tells its clients what happened"
    assert eventually(lambda: ready(fragile), within_s=60)
    assert eventually(lambda: not held(fragile), within_s=10), held(fragile)
    reconciled = fragile.manage("reconcile", "--wait", "10", check=False)
    assert reconciled.returncode == 0, reconciled.stdout + reconciled.stderr
    # One token of the synthetic model is one character of text; what a client saw was generated, and the ledger knows of it.
    assert ledger_tokens(fragile, tenant) >= sum(len(s["text"]) for s in seen)
