"""Bad input of each kind gets a 4xx in OpenAI's shape with the field named, and disturbs nobody."""

import json
import threading

import httpx
import openai
import pytest

pytestmark = pytest.mark.e2e

CHAT, COMPLETIONS = "/chat/completions", "/completions"
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def http(up):
    headers = {"Authorization": f"Bearer {up.demo['api_key']}", "Content-Type": "application/json"}
    with httpx.Client(base_url=up.demo["base_url"], headers=headers, timeout=120) as client:
        yield client


BAD = {
    "temperature of a wrong type": (CHAT, {"messages": HELLO, "temperature": "hot"}, "temperature"),
    "temperature out of range": (CHAT, {"messages": HELLO, "temperature": -1}, "temperature"),
    "no messages": (CHAT, {}, "messages"),
    "messages of a wrong type": (CHAT, {"messages": "Hello"}, "messages"),
    "unknown role": (CHAT, {"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    "unknown field": (CHAT, {"messages": HELLO, "max_tokns": 5}, "max_tokns"),
    "own template": (CHAT, {"messages": HELLO, "chat_template": "{% for a in range(10**9) %}{% endfor %}"}, "chat_template"),
    "huge n": (CHAT, {"messages": HELLO, "n": 100000}, "n"),
    "negative max_tokens": (CHAT, {"messages": HELLO, "max_tokens": -5}, "max_tokens"),
    "token id out of range": (COMPLETIONS, {"prompt": [1, 2, 10**6]}, "prompt"),
    "logit_bias out of range": (COMPLETIONS, {"prompt": "x", "logit_bias": {"99999999": 1}}, "logit_bias"),
    "stop token id out of range": (COMPLETIONS, {"prompt": "x", "stop_token_ids": [10**7]}, "stop_token_ids"),
    "five stop strings": (COMPLETIONS, {"prompt": "x", "stop": ["a", "b", "c", "d", "e"]}, "stop"),
    "empty prompt": (COMPLETIONS, {"prompt": []}, "prompt"),
    "over-long prompt": (COMPLETIONS, {"prompt": [5] * 9000}, "prompt"),
    "over-long output": (COMPLETIONS, {"prompt": "x", "max_tokens": 100000}, "max_tokens"),
}


@pytest.mark.parametrize("case", BAD, ids=list(BAD))
def test_the_field_is_named(http, model, case):
    path, body, param = BAD[case]
    answer = http.post(path, json={"model": model, **body})
    assert 400 <= answer.status_code < 500, answer.text
    error = answer.json()["error"]
    assert error["param"] is not None, error
    assert error["param"].startswith(param), error
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b'{"model": "x",}', b"[]", b"null", b'"text"', b'{"model": "\xff\xfe"}', b'{"model": 5}', b"\x00" * 64, b"[" * 50_000],
    ids=["empty", "cut", "comma", "array", "null", "string", "bad UTF-8", "number", "zeros", "deep"],
)
def test_malformed_bodies_are_refused(http, raw):
    answer = http.post(CHAT, content=raw)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]


def test_a_body_of_20_mb_is_refused(http, model):
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "x" * 20_000_000}]})
    try:
        answer = http.post(CHAT, content=body)
    except httpx.WriteError:
        return  # the server may hang up as soon as it has seen enough
    assert answer.status_code == 413
    assert answer.json()["error"]["message"]


def test_a_key_in_the_query_string_is_refused(up, model):
    answer = httpx.post(
        f"{up.demo['base_url']}/chat/completions", params={"api_key": up.demo["api_key"]}, json={"model": model, "messages": HELLO}
    )
    assert answer.status_code == 401


@pytest.mark.parametrize(
    "key", ["' OR '1'='1", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.", "lg-", "x" * 5000], ids=["SQL", "JWT", "empty", "long"]
)
def test_forged_keys_are_refused(up, key):
    answer = httpx.get(f"{up.demo['base_url']}/models", headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code in (401, 431)
    if answer.status_code == 401:
        assert answer.json()["error"]["code"] == "invalid_api_key"


def test_nobody_else_is_disturbed(up, http, model):
    """A stream that runs while all of the above is thrown at the server arrives whole."""
    text: list[str] = []

    def stream() -> None:
        with openai.OpenAI(base_url=up.demo["base_url"], api_key=up.demo["api_key"]) as client:
            for chunk in client.completions.create(
                model=model, prompt="Once upon a time", max_tokens=64, temperature=0, stream=True, extra_body={"ignore_eos": True}
            ):
                text.append(chunk.choices[0].text)

    runner = threading.Thread(target=stream)
    runner.start()
    for path, body, _ in BAD.values():
        http.post(path, json={"model": model, **body})
    runner.join()
    alone = http.post(
        COMPLETIONS, json={"model": model, "prompt": "Once upon a time", "max_tokens": 64, "temperature": 0, "ignore_eos": True}
    ).json()
    assert "".join(text) == alone["choices"][0]["text"]
    assert alone["usage"]["completion_tokens"] == 64
