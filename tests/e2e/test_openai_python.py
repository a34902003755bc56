"""The official Python client, synchronous and asynchronous, against a running installation."""

import asyncio

import openai
import pytest

pytestmark = pytest.mark.e2e

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."


@pytest.fixture
def client(up):
    with openai.OpenAI(base_url=up.demo["base_url"], api_key=up.demo["api_key"], max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(up):
    async with openai.AsyncOpenAI(base_url=up.demo["base_url"], api_key=up.demo["api_key"], max_retries=0) as client:
        yield client


def test_models_lists_what_is_served(client, model):
    assert [m.id for m in client.models.list()] == [model]
    assert client.models.retrieve(model).id == model


def test_chat_completion(client, model):
    done = client.chat.completions.create(model=model, messages=FRANCE, temperature=0)
    assert done.choices[0].message.content == ANSWER
    assert done.choices[0].finish_reason == "stop"
    assert done.usage.completion_tokens == 8
    assert done.usage.prompt_tokens == 37
    assert done.usage.total_tokens == 45


def test_chat_stream_gives_the_same_text_and_usage(client, model):
    chunks = list(
        client.chat.completions.create(model=model, messages=FRANCE, temperature=0, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == ANSWER
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].usage.completion_tokens == 8


def test_choices_and_logprobs(client, model):
    done = client.chat.completions.create(
        model=model, messages=FRANCE, n=3, seed=7, temperature=0.8, max_tokens=6, logprobs=True, top_logprobs=2
    )
    assert [c.index for c in done.choices] == [0, 1, 2]
    for choice in done.choices:
        assert choice.message.content == "".join(t.token for t in choice.logprobs.content)
        assert all(len(t.top_logprobs) == 2 for t in choice.logprobs.content)
    again = client.chat.completions.create(model=model, messages=FRANCE, n=3, seed=7, temperature=0.8, max_tokens=6)
    assert [c.message.content for c in again.choices] == [c.message.content for c in done.choices]


def test_completion_with_echo_and_stop(client, model):
    done = client.completions.create(model=model, prompt="One, two, three,", temperature=0, max_tokens=24, echo=True, stop=["six"])
    assert done.choices[0].text.startswith("One, two, three,")
    assert "six" not in done.choices[0].text
    assert done.choices[0].finish_reason in ("stop", "length")


def test_a_wrong_key_is_refused(up, model):
    with (
        openai.OpenAI(base_url=up.demo["base_url"], api_key="lg-wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.chat.completions.create(model=model, messages=FRANCE)


def test_an_unknown_model_is_named(client):
    with pytest.raises(openai.NotFoundError) as refusal:
        client.chat.completions.create(model="no-such-model", messages=FRANCE)
    assert refusal.value.code == "model_not_found"
    assert "no-such-model" in refusal.value.message


async def test_many_asynchronous_streams_at_once(async_client, model):
    async def one(number: int) -> str:
        stream = await async_client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": f"Count to {number}."}], stream=True, max_tokens=16, temperature=0
        )
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

    alone = [await one(n) for n in range(3, 6)]
    together = await asyncio.gather(*(one(n) for n in [*range(3, 6), *range(3, 12)]))
    assert all(together)
    # Near ties may part with another batch; most of the text has to agree.
    assert sum(a == b for a, b in zip(alone, together, strict=False)) >= 2


async def test_asynchronous_completion_is_not_streamed(async_client, model):
    done = await async_client.completions.create(model=model, prompt=[1, 9690, 198], max_tokens=4, temperature=0)
    assert done.usage.prompt_tokens == 3
    assert done.usage.completion_tokens == 4
