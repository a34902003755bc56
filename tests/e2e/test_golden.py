"""The default model says through /v1/completions what an independent implementation says, up to the first near tie."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.e2e

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "smollm2_greedy.json").read_text())["items"]
SHORT = [item for item in GOLDEN if len(item["prompt_ids"]) < 1000]
LONG = [item for item in GOLDEN if len(item["prompt_ids"]) >= 1000]


def name(item) -> str:
    return item["text"][:24]


async def text_of(client: httpx.AsyncClient, model: str, item) -> str:
    body = {"model": model, "prompt": item["prompt_ids"], "temperature": 0, "max_tokens": len(item["tokens"])}
    answer = await client.post("/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


@pytest.fixture
async def client(up):
    headers = {"Authorization": f"Bearer {up.demo['api_key']}"}
    async with httpx.AsyncClient(base_url=up.demo["base_url"], headers=headers, timeout=300) as client:
        yield client


@pytest.mark.parametrize("item", SHORT, ids=name)
async def test_alone(client, model, item):
    assert (await text_of(client, model, item)).startswith(item["safe_text"])


async def test_all_in_one_batch_cold_and_warm(client, model):
    for _ in range(2):
        texts = await asyncio.gather(*(text_of(client, model, item) for item in GOLDEN))
        for item, text in zip(GOLDEN, texts, strict=True):
            assert text.startswith(item["safe_text"]), item["text"][:40]


def test_the_long_prompt_was_among_them():
    assert len(LONG) == 1
    assert len(GOLDEN) == 17
