"""The default model says through /v1/completions what an independent implementation says, up to the first near tie."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from tests.e2e.installation import RunningInstallation, installation

pytestmark = pytest.mark.e2e

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "smollm2_greedy.json").read_text())["items"]
NEEDS_BLOCKS = max(len(item["prompt_ids"]) + len(item["tokens"]) for item in GOLDEN) // 16 + 1


def name(item) -> str:
    return item["text"][:24]


async def text_of(client: httpx.AsyncClient, model: str, item) -> str:
    body = {"model": model, "prompt": item["prompt_ids"], "temperature": 0, "max_tokens": len(item["tokens"])}
    answer = await client.post("/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def client_of(running: RunningInstallation) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {running.demo['api_key']}"}
    return httpx.AsyncClient(base_url=running.demo["base_url"], headers=headers, timeout=300)


@pytest.fixture
async def client(up):
    async with client_of(up) as client:
        yield client


@pytest.mark.parametrize("item", GOLDEN, ids=name)
async def test_alone(client, model, item):
    assert (await text_of(client, model, item)).startswith(item["safe_text"])


async def assert_all_golden_together(client: httpx.AsyncClient, model: str) -> None:
    texts = await asyncio.gather(*(text_of(client, model, item) for item in GOLDEN))
    for item, text in zip(GOLDEN, texts, strict=True):
        assert text.startswith(item["safe_text"]), item["text"][:40]


async def test_all_17_in_one_batch_cold_and_warm(client, model):
    assert len(GOLDEN) == 17
    for _ in range(2):
        await assert_all_golden_together(client, model)


async def test_all_17_in_chunks_of_16_with_too_few_blocks_for_all(model):
    """The pool holds the longest request and little more: the others wait or are set back (tests/inference/test_golden.py forces that)."""
    options = {"LOCKGATE_ENGINE_PREFILL_CHUNK": "16", "LOCKGATE_ENGINE_BLOCKS": str(NEEDS_BLOCKS + 8)}
    with installation(PRECISION="fp32", **options) as running:
        async with client_of(running) as client:
            await assert_all_golden_together(client, model)
