"""Bad input of each kind: a 4xx in OpenAI's shape with the field named, and nothing is started."""

import asyncio
import json

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.api.chat_completions import ChatBody
from gateway.api.completions import CompletionBody
from tests.gateway.api.scripted import AUTHORIZATION, ScriptedGenerations
from tests.gateway.text.cards import byte_tokenizer_json, card

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hi"}]
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


def chat(**fields: object) -> tuple[str, dict]:
    return CHAT, {"model": "tiny/model", "messages": HELLO, **fields}


def plain(**fields: object) -> tuple[str, dict]:
    return COMPLETIONS, {"model": "tiny/model", "prompt": "Hi", **fields}


BAD = [
    (chat(model=5), "model"),
    ((CHAT, {"messages": HELLO}), "model"),
    ((CHAT, {"model": "tiny/model"}), "messages"),
    (chat(messages=[]), "messages"),
    (chat(messages="Hi"), "messages"),
    (chat(messages=[*HELLO, {"role": "wizard", "content": "x"}]), "messages[1].role"),
    (chat(messages=[{"role": "user"}]), "messages[0].content"),
    (chat(messages=[{"role": "user", "content": None}]), "messages[0].content"),
    (chat(messages=[{"role": "user", "content": []}]), "messages[0].content"),
    (chat(messages=[{"role": "user", "content": 5}]), "messages[0].content"),
    (
        chat(messages=[*HELLO, *HELLO, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        "messages[2].content[0].type",
    ),
    (chat(messages=[{"role": "user", "content": [{"image_url": {"url": "x"}, "type": "image_url"}]}]), "messages[0].content[0].type"),
    (chat(messages=[{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text"),
    (chat(messages=[{"role": "user", "content": [{"type": "text", "text": "x", "weight": 2}]}]), "messages[0].content[0].weight"),
    (chat(messages=[{"role": "user", "content": "x", "nmae": "y"}]), "messages[0].nmae"),
    (chat(messages=[{"role": "assistant", "content": "x", "tool_calls": [{"id": "a"}]}]), "messages[0].tool_calls"),
    (chat(messages=[{"role": "user", "content": "x", "tool_call_id": "y"}]), "messages[0].tool_call_id"),
    (chat(messages=HELLO * 2049), "messages"),
    (chat(messages=[{"role": "user", "content": "x" * 300}]), "messages"),
    (chat(max_tokns=5), "max_tokns"),
    (chat(chat_template="{% for a in range(9) %}{% endfor %}"), "chat_template"),
    (chat(chat_template_kwargs={}), "chat_template_kwargs"),
    (chat(tools=[]), "tools"),
    (chat(tools=[{"type": "function"}]), "tools"),
    (chat(tool_choice="auto"), "tool_choice"),
    (chat(functions=[]), "functions"),
    (chat(parallel_tool_calls=True), "parallel_tool_calls"),
    (chat(response_format={"type": "json_object"}), "response_format.type"),
    (chat(response_format=False), "response_format"),
    (chat(response_format={}), "response_format.type"),
    (chat(response_format={"type": "text", "json_schema": {}}), "response_format.json_schema"),
    (chat(reasoning_effort="high"), "reasoning_effort"),
    (chat(verbosity="low"), "verbosity"),
    (chat(modalities=["text", "audio"]), "modalities[1]"),
    (chat(service_tier="priority"), "service_tier"),
    (chat(store=True), "store"),
    (chat(stream_options={"include_usage": True}), "stream_options"),
    (chat(stream=True, stream_options={"continuous_usage_stats": True}), "stream_options.continuous_usage_stats"),
    (chat(stream=True, stream_options={"include_obfuscation": True}), "stream_options.include_obfuscation"),
    (chat(stream=True, stream_options={"x": True}), "stream_options.x"),
    (chat(stream="yes"), "stream"),
    (chat(temperature="hot"), "temperature"),
    (chat(temperature=-0.1), "temperature"),
    (chat(temperature=2.1), "temperature"),
    (chat(top_p=1.1), "top_p"),
    (chat(top_k=-2), "top_k"),
    (chat(top_k=1.5), "top_k"),
    (chat(min_p=1.1), "min_p"),
    (chat(seed=2**63), "seed"),
    (chat(seed="a"), "seed"),
    (chat(presence_penalty=2.1), "presence_penalty"),
    (chat(frequency_penalty=-2.1), "frequency_penalty"),
    (chat(repetition_penalty=0), "repetition_penalty"),
    (chat(logit_bias={"999999": 1}), "logit_bias"),
    (chat(logit_bias={"-1": 1}), "logit_bias"),
    (chat(logit_bias={"1": 101}), "logit_bias"),
    (chat(logit_bias={"a": 1}), "logit_bias"),
    (chat(logit_bias={"1": "a"}), "logit_bias"),
    (chat(logprobs=1), "logprobs"),
    (chat(top_logprobs=1), "top_logprobs"),
    (chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    (chat(n=0), "n"),
    (chat(n=9), "n"),
    (chat(n=10**30), "n"),
    (chat(max_tokens=0), "max_tokens"),
    (chat(max_tokens=-5), "max_tokens"),
    (chat(max_tokens=10**6), "max_tokens"),
    (chat(max_tokens=10**40), "max_tokens"),
    (chat(max_completion_tokens=0), "max_completion_tokens"),
    (chat(max_tokens=5, max_completion_tokens=6), "max_tokens"),
    (chat(max_tokens=5, min_tokens=6), "min_tokens"),
    (chat(stop=["a"] * 5), "stop"),
    (chat(stop=["a", ""]), "stop[1]"),
    (chat(stop=""), "stop"),
    (chat(stop=["x" * 1001]), "stop[0]"),
    (chat(stop=[5]), "stop[0]"),
    (chat(stop_token_ids=[10**7]), "stop_token_ids[0]"),
    (chat(stop_token_ids=[0, -1]), "stop_token_ids[1]"),
    (chat(stop_token_ids=list(range(129))), "stop_token_ids"),
    (chat(skip_special_tokens=False), "skip_special_tokens"),
    (chat(prompt="x"), "prompt"),
    (plain(prompt=[]), "prompt"),
    (plain(prompt=[[]]), "prompt[0]"),
    (plain(prompt=""), "prompt"),
    (plain(prompt=["a", ""]), "prompt[1]"),
    (plain(prompt=["a", 5]), "prompt"),
    (plain(prompt=[1, 2, 10**6]), "prompt[2]"),
    (plain(prompt=[[1], [-1]]), "prompt[1][0]"),
    (plain(prompt=[[1], ["a"]]), "prompt[1][0]"),
    (plain(prompt=[True]), "prompt[0]"),
    (plain(prompt=None), "prompt"),
    (plain(prompt=["a"] * 129), "prompt"),
    (plain(prompt=[5] * 256), "prompt"),
    (plain(prompt=[[5], [5] * 256]), "prompt[1]"),
    (plain(max_tokens=255), "max_tokens"),
    (plain(suffix="x"), "suffix"),
    (plain(best_of=2), "best_of"),
    (plain(logprobs=21), "logprobs"),
    (plain(logprobs=True), "logprobs"),
    (plain(messages=HELLO), "messages"),
]


@pytest.mark.parametrize(("call", "param"), BAD, ids=[f"{param}-{place}" for place, (_, param) in enumerate(BAD)])
async def test_field_is_named(client: httpx.AsyncClient, service: ScriptedGenerations, call: tuple[str, dict], param: str) -> None:
    answer = await client.post(call[0], json=call[1])
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert len(answer.json()["error"]["message"]) > 20
    assert not service.requests


async def test_too_long_says_the_figures(client: httpx.AsyncClient) -> None:
    error = (await client.post(COMPLETIONS, json=plain(prompt=[5] * 300)[1])).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "256" in error["message"]
    assert "300" in error["message"]
    error = (await client.post(COMPLETIONS, json=plain(prompt=[5] * 200, max_tokens=60)[1])).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert all(figure in error["message"] for figure in ("256", "260", "200", "60"))


@pytest.mark.parametrize(
    ("raw", "where"),
    [
        (b"", "empty"),
        (b"  ", "empty"),
        (b"{", "byte 1"),
        (b'{"model": "x",}', "byte 14"),
        (b'{"model": nan}', "byte"),
        (b'{"model": "\xff\xfe"}', "UTF-8"),
        (b'{"model": "\xed\xa0\x80"}', "UTF-8"),
        (b'{"model": "\\ud800"}', "byte"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'"text"', "object"),
        (b"\x00" * 64, "byte 0"),
        (b"[" * 50_000, "object"),
        (b'{"model": "a", "messages": []} x', "byte"),
        (b'{"model":"a","messages":' + b"[" * 50_000, "messages"),
        (b'{"model":"a","metadata":' + b'{"a":' * 50_000, "metadata"),
    ],
)
async def test_malformed_json_says_where(client: httpx.AsyncClient, raw: bytes, where: str) -> None:
    answer = await client.post(CHAT, content=raw)
    assert answer.status_code == 400, answer.text
    assert where in answer.json()["error"]["message"]


async def test_deep_nesting_is_refused(client: httpx.AsyncClient) -> None:
    image = b'{"type":"image_url","image_url":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    answer = await client.post(CHAT, content=b'{"model":"tiny/model","messages":[{"role":"user","content":[' + image + b"]}]}")
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize("declared", [True, False])
async def test_large_body_is_refused(client: httpx.AsyncClient, service: ScriptedGenerations, declared: bool) -> None:
    body = json.dumps({"model": "tiny/model", "messages": [{"role": "user", "content": "x" * 5_000_000}]}).encode()

    async def parts():
        for start in range(0, len(body), 65536):
            yield body[start : start + 65536]

    answer = await client.post(CHAT, content=body if declared else parts())
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert not service.requests


def test_body_of_20_mb_gets_its_answer_from_a_real_server(server: str) -> None:
    answer = httpx.post(server + CHAT, content=b"x" * 20_000_000, headers=AUTHORIZATION)
    assert answer.status_code == 413
    assert httpx.post(server + CHAT, json=chat()[1], headers=AUTHORIZATION).status_code == 200


async def test_template_that_refuses_the_messages_is_quoted(client: httpx.AsyncClient, service: ScriptedGenerations) -> None:
    service.cards = [card(byte_tokenizer_json(), name="strict", chat_template="{{ raise_exception('roles must alternate') }}")]
    answer = await client.post(CHAT, json=chat(model="strict")[1])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"
    assert "roles must alternate" in answer.json()["error"]["message"]


async def test_chat_that_never_ends_rendering_keeps_nobody_waiting(client: httpx.AsyncClient, service: ScriptedGenerations) -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    service.cards.append(card(byte_tokenizer_json(), name="endless", chat_template=endless))
    order: list[int] = []

    async def call(model: str) -> None:
        order.append((await client.post(CHAT, json=chat(model=model)[1])).status_code)

    async with asyncio.TaskGroup() as calls:
        calls.create_task(call("endless"))
        for _ in range(3):
            calls.create_task(call("tiny/model"))
    assert order == [200, 200, 200, 400]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(sorted({*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__, "x"} - {"model"}))
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "assistant", "tool", "x"]) | JSON, "content": st.text(max_size=10) | JSON},
    optional={"name": JSON, "tool_calls": JSON},
)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from([CHAT, COMPLETIONS]),
    messages=st.lists(MESSAGE, max_size=3) | st.just(HELLO),
    prompt=st.text(max_size=10) | st.lists(st.integers(-1, 300), max_size=4) | JSON,
    fields=st.dictionaries(FIELDS, JSON | st.integers(0, 3) | st.floats(0, 1), max_size=4),
)
async def test_any_body_gets_an_answer_or_a_named_fault(
    client: httpx.AsyncClient, path: str, messages: object, prompt: object, fields: dict
) -> None:
    body = {"model": "tiny/model", **({"messages": messages} if path == CHAT else {"prompt": prompt}), **fields}
    check(await client.post(path, content=json.dumps(body)))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from([CHAT, COMPLETIONS]),
    raw=st.binary(max_size=60) | st.text(alphabet='{}[]":,\\ueadmolsgtinr0159.-', max_size=60).map(str.encode),
)
async def test_any_bytes_get_an_answer_in_openais_shape(client: httpx.AsyncClient, path: str, raw: bytes) -> None:
    check(await client.post(path, content=raw))


def check(answer: httpx.Response) -> None:
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
    if answer.status_code != 200:
        assert set(answer.json()) == {"error"}
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert answer.json()["error"]["message"]
