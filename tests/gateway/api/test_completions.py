import functools
import operator

import httpx
import pytest

from tests.gateway.api.conftest import events
from tests.gateway.api.scripted import ScriptedGenerations, says

PATH = "/v1/completions"
BODY = {"model": "tiny/model", "prompt": "Hi"}


async def test_answer_has_openais_shape(client: httpx.AsyncClient) -> None:
    body = (await client.post(PATH, json=BODY)).json()
    assert body.pop("id").startswith("cmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "text_completion",
        "model": "tiny/model",
        "system_fingerprint": "fp_fp_tiny",
        "choices": [{"index": 0, "text": "Hello!", "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8, "prompt_tokens_details": {"cached_tokens": 0}},
    }


async def test_stream_has_texts_finish_usage_and_done(client: httpx.AsyncClient) -> None:
    answer = await client.post(PATH, json=BODY | {"stream": True, "stream_options": {"include_usage": True}})
    *chunks, usage, done = events(answer.content)
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello!"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "stop"
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("Hi", [[72, 105]]),
        (["Hi", "a"], [[72, 105], [97]]),
        ([72, 105], [[72, 105]]),
        ([[72, 105], [97]], [[72, 105], [97]]),
        (["Hi"], [[72, 105]]),
    ],
)
async def test_each_kind_of_prompt(client: httpx.AsyncClient, service: ScriptedGenerations, prompt: object, tokens: list) -> None:
    body = (await client.post(PATH, json=BODY | {"prompt": prompt, "n": 2})).json()
    assert [request.prompt for request in service.requests] == tokens
    assert len({request.request_id for request in service.requests}) == len(tokens)
    assert [choice["index"] for choice in body["choices"]] == list(range(2 * len(tokens)))
    assert {choice["text"] for choice in body["choices"]} == {"Hello!"}
    assert body["usage"]["prompt_tokens"] == sum(map(len, tokens))
    assert body["usage"]["completion_tokens"] == 12 * len(tokens)


async def test_streams_of_several_prompts_are_told_apart_by_index(client: httpx.AsyncClient) -> None:
    answer = await client.post(PATH, json=BODY | {"prompt": ["a", "b"], "n": 2, "echo": True, "stream": True})
    *chunks, done = events(answer.content)
    assert done == "[DONE]"
    texts = ["", "", "", ""]
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["aHello!", "aHello!", "bHello!", "bHello!"]


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_with_logprobs_scores_the_prompt(client: httpx.AsyncClient, service: ScriptedGenerations, stream: bool) -> None:
    answer = await client.post(PATH, json=BODY | {"prompt": "é!", "echo": True, "logprobs": 1, "max_tokens": 2, "stream": stream})
    assert service.requests[0].echo
    assert service.requests[0].sampling.prompt_logprobs == 1
    if stream:
        pieces = [chunk["choices"][0] for chunk in events(answer.content)[:-1]]
        text = "".join(piece["text"] for piece in pieces)
        given = [piece["logprobs"] for piece in pieces if piece["logprobs"]]
        logprobs = {field: functools.reduce(operator.iadd, (piece[field] for piece in given), []) for field in given[0]}
    else:
        text, logprobs = answer.json()["choices"][0]["text"], answer.json()["choices"][0]["logprobs"]
    assert text == "é!He"
    assert logprobs["tokens"] == ["é", "!", "H", "e"]
    assert logprobs["token_logprobs"] == [None, -0.25, 0.0, -1.0]
    assert logprobs["text_offset"] == [0, 1, 2, 3]
    assert logprobs["top_logprobs"] == [None, {"!": -0.25}, {"H": -0.5}, {"e": -0.5}]


async def test_echo_without_logprobs_asks_for_no_scores(client: httpx.AsyncClient, service: ScriptedGenerations) -> None:
    body = (await client.post(PATH, json=BODY | {"echo": True})).json()
    assert body["choices"][0]["text"] == "HiHello!"
    assert not service.requests[0].echo


async def test_logprobs_name_bytes_that_are_no_characters(client: httpx.AsyncClient, service: ScriptedGenerations) -> None:
    service.script = says("☺")
    body = (await client.post(PATH, json=BODY | {"logprobs": 0})).json()
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["bytes:\\xe2", "bytes:\\x98", "bytes:\\xba"]
    assert logprobs["text_offset"] == [0, 0, 0]
    assert logprobs["top_logprobs"] is None


async def test_prompt_that_ends_in_mid_character_gets_only_new_text(client: httpx.AsyncClient, service: ScriptedGenerations) -> None:
    smile = list("☺".encode())
    service.script = says("x")
    plain = (await client.post(PATH, json=BODY | {"prompt": [97, *smile[:2]]})).json()["choices"][0]["text"]
    echoed = (await client.post(PATH, json=BODY | {"prompt": [97, *smile[:2]], "echo": True})).json()["choices"][0]["text"]
    assert plain == "�x"
    assert echoed == "a" + plain


async def test_default_limit_is_openais(client: httpx.AsyncClient, service: ScriptedGenerations) -> None:
    await client.post(PATH, json=BODY)
    await client.post(PATH, json=BODY | {"prompt": [1] * 250})
    assert [request.sampling.max_tokens for request in service.requests] == [16, 6]
