"""OpenAI's own Python client against the application behind a real server."""

import asyncio

import openai
import pytest

from gateway.admission.outcomes import Refused
from gateway.events import Failed, Started
from tests.gateway.api.scripted import KEY, ScriptedGenerations

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def sdk(server: str):
    with openai.OpenAI(base_url=f"{server}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_chat(sdk: openai.OpenAI) -> None:
    done = sdk.chat.completions.create(model="tiny/model", messages=FRANCE, n=2, logprobs=True, top_logprobs=1)
    assert [choice.message.content for choice in done.choices] == ["Hello!", "Hello!"]
    assert done.choices[0].finish_reason == "stop"
    assert "".join(entry.token for entry in done.choices[0].logprobs.content) == "Hello!"
    assert done.usage.completion_tokens == 12
    assert done.usage.prompt_tokens_details.cached_tokens == 0


def test_chat_stream(sdk: openai.OpenAI) -> None:
    chunks = list(sdk.chat.completions.create(model="tiny/model", messages=FRANCE, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello!"
    assert chunks[-1].usage.completion_tokens == 6


def test_chat_stream_helper_accumulates(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(model="tiny/model", messages=FRANCE) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == "Hello!"


def test_completions_of_each_kind_of_prompt(sdk: openai.OpenAI) -> None:
    for prompt, count in (("a", 1), (["a", "b"], 2), ([1, 2], 1), ([[1], [2]], 2)):
        done = sdk.completions.create(model="tiny/model", prompt=prompt, logprobs=2, echo=True)
        assert len(done.choices) == count
        assert done.choices[0].logprobs.token_logprobs[0] is None
    assert "".join(chunk.choices[0].text for chunk in sdk.completions.create(model="tiny/model", prompt="a", stream=True)) == "Hello!"


async def test_asynchronous_client(server: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server}/v1", api_key=KEY, max_retries=0) as client:
        done = await client.chat.completions.create(model="tiny/model", messages=FRANCE)
        assert done.choices[0].message.content == "Hello!"
        stream = await client.chat.completions.create(model="tiny/model", messages=FRANCE, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "Hello!"
        assert [model.id async for model in client.models.list()] == ["tiny/model"]


def test_errors_are_those_of_the_sdk(sdk: openai.OpenAI, service: ScriptedGenerations) -> None:
    with pytest.raises(openai.NotFoundError, match="none") as not_found:
        sdk.chat.completions.create(model="none", messages=FRANCE)
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        sdk.chat.completions.create(model="tiny/model", messages=FRANCE, temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.AuthenticationError):
        sdk.with_options(api_key="wrong").chat.completions.create(model="tiny/model", messages=FRANCE)
    service.refusal = Refused(code="rate_limit_exceeded", message="requests per minute: 5", retry_after_s=7.5)
    with pytest.raises(openai.RateLimitError) as limited:
        sdk.chat.completions.create(model="tiny/model", messages=FRANCE)
    assert limited.value.response.headers["retry-after"] == "8"


def test_client_that_closes_its_stream_aborts_the_generation(sdk: openai.OpenAI, service: ScriptedGenerations) -> None:
    service.script = lambda request, tokenizer: [Started(prompt_tokens=1, cached_tokens=0), asyncio.Event()]
    with sdk.chat.completions.create(model="tiny/model", messages=FRANCE, stream=True) as stream:
        assert next(iter(stream)).choices[0].delta.role == "assistant"
    assert service.generations[0].abort_seen.wait(10)


def test_client_that_gives_up_on_a_whole_answer_aborts_the_generation(sdk: openai.OpenAI, service: ScriptedGenerations) -> None:
    service.script = lambda request, tokenizer: [Started(prompt_tokens=1, cached_tokens=0), asyncio.Event()]
    with pytest.raises(openai.APITimeoutError):
        sdk.chat.completions.create(model="tiny/model", messages=FRANCE, timeout=0.5)
    assert service.generations[0].abort_seen.wait(10)


def test_failure_in_mid_stream_raises(sdk: openai.OpenAI, service: ScriptedGenerations) -> None:
    service.script = lambda request, tokenizer: [
        Started(prompt_tokens=1, cached_tokens=0),
        Failed(code="worker_lost", message="the worker died"),
    ]
    with pytest.raises(openai.APIError, match="the worker died"):
        list(sdk.chat.completions.create(model="tiny/model", messages=FRANCE, stream=True))
