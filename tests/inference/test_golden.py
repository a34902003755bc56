"""The default model's greedy tokens through the whole engine: alone, together, cold, warm, in small chunks, preempted.

The everyday run leaves the long prompt to the runs that are about it; with LOCKGATE_PROOF=golden every item takes part in every run.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from inference.config import EngineConfig
from inference.engine import Engine
from inference.models.base import Model
from inference.models.load import load_model
from inference.weights import default_model_path
from tests.inference.driving import submit

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2_greedy.json").read_text())["items"]
SHORT = [item for item in GOLDEN if len(item["prompt_ids"]) < 1000]
COMPLETE = os.environ.get("LOCKGATE_PROOF") == "golden"
MOST = GOLDEN if COMPLETE else SHORT
ALONE = GOLDEN if COMPLETE else [SHORT[0], SHORT[5], SHORT[11]]


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(default_model_path(), precision="fp32", max_context=4096).model


def engine_of(model: Model, **changes: Any) -> Engine:
    settings: dict[str, Any] = {"blocks": 512, "max_sequences": 32, "step_tokens": 512, "prefill_chunk": 512}
    return Engine(model, EngineConfig(**(settings | changes)))


def check_all(engine: Engine, items: list[dict[str, Any]]) -> dict[str, int]:
    """Run the items at once and compare their safe steps. Returns what the cache gave each."""
    got: dict[str, list[int]] = {}
    cached: dict[str, int] = {}
    for number, item in enumerate(items):
        engine.submit(submit(str(number), item["prompt_ids"], max_tokens=max(1, item["safe_steps"]), ignore_eos=False))
    while engine.has_work:
        output = engine.step()
        engine.check()
        for token in output.tokens:
            got.setdefault(token.request_id, []).append(token.token)
        for finish in output.finished:
            assert finish.error is None
            cached[finish.request_id] = finish.counters.cached_tokens
    for number, item in enumerate(items):
        safe = item["safe_steps"]
        assert got[str(number)][:safe] == item["tokens"][:safe], item["text"][:60]
    assert engine.pool.held == 0
    return cached


@pytest.mark.parametrize("item", ALONE, ids=lambda item: item["text"][:24])
def test_alone(model: Model, item: dict[str, Any]) -> None:
    check_all(engine_of(model), [item])


def test_a_batch_of_all_seventeen_cold_and_then_warm(model: Model) -> None:
    engine = engine_of(model)
    assert len(GOLDEN) == 17
    cold = check_all(engine, GOLDEN)
    warm = check_all(engine, GOLDEN)
    for number, item in enumerate(GOLDEN):
        assert warm[str(number)] == (len(item["prompt_ids"]) - 1) // 16 * 16
    assert sum(cold.values()) < sum(warm.values()) / 2


@pytest.mark.parametrize("chunk", [16, 512] if COMPLETE else [16])
def test_in_chunks(model: Model, chunk: int) -> None:
    check_all(engine_of(model, prefill_chunk=chunk, step_tokens=max(chunk, 32)), MOST)


@pytest.mark.parametrize("prefix_cache", [True, False], ids=["from the cache", "computed again"])
def test_under_forced_preemption(model: Model, prefix_cache: bool) -> None:
    items, blocks = (GOLDEN, 210) if COMPLETE else (SHORT[:8], 20)
    engine = engine_of(model, blocks=blocks, prefix_cache=prefix_cache)
    check_all(engine, items)
    assert engine.load().preemptions > 0
