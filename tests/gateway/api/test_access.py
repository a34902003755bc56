"""Who gets in, what a refusal says, and the endpoints around completions."""

import dataclasses

import httpx
import pytest

from gateway import generation
from gateway.admission.outcomes import LimitState, Refused
from gateway.api.limits import duration
from tests.gateway.api.scripted import CALLER, KEY, ScriptedGenerations
from tests.gateway.text.cards import byte_tokenizer_json, card

CHAT = "/v1/chat/completions"
BODY = {"model": "tiny/model", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer  ", "Basic abc", KEY, "bearer"])
async def test_call_without_a_key_gets_401(client: httpx.AsyncClient, service: ScriptedGenerations, header: str | None) -> None:
    del client.headers["authorization"]
    for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/v1/models/tiny/model")):
        answer = await client.request(method, path, headers={} if header is None else {"authorization": header})
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
    assert not service.requests


@pytest.mark.parametrize("name", ["api_key", "key", "access_token", "Authorization"])
async def test_key_in_the_query_string_is_refused_and_says_why(client: httpx.AsyncClient, name: str) -> None:
    del client.headers["authorization"]
    answer = await client.post(CHAT, params={name: KEY}, json=BODY)
    assert answer.status_code == 401
    assert "query string" in answer.json()["error"]["message"]
    assert KEY not in answer.text


@pytest.mark.parametrize("key", ["' OR '1'='1", "eyJhbGciOiJub25lIn0.e30.", "x" * 5000, "ключ"])
async def test_wrong_key_gets_401_whatever_else_is_wrong(client: httpx.AsyncClient, key: str) -> None:
    headers = {"authorization": b"Bearer " + key.encode()}
    for body in (BODY, BODY | {"model": "none"}, BODY | {"temperature": "hot"}, BODY | {"user": "x" * 100_000}):
        answer = await client.post(CHAT, json=body, headers=headers)
        assert answer.status_code == 401, answer.text
        assert answer.json()["error"]["code"] == "invalid_api_key"
    assert (await client.get("/v1/models", headers=headers)).status_code == 401


async def test_good_call_is_not_looked_up_twice(client: httpx.AsyncClient, service: ScriptedGenerations) -> None:
    await client.post(CHAT, json=BODY)
    service.refusal = Refused(code="rate_limit_exceeded", message="slow down", retry_after_s=1)
    await client.post(CHAT, json=BODY)
    assert service.looked_up == []


async def test_large_body_is_looked_at_only_with_a_valid_key(client: httpx.AsyncClient, service: ScriptedGenerations) -> None:
    await client.post(CHAT, json=BODY | {"user": "x" * 100_000})
    assert len(service.looked_up) == 1


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("invalid_api_key", 401, "invalid_request_error"),
        ("suspended", 403, "permission_error"),
        ("model_not_allowed", 404, "invalid_request_error"),
        ("rate_limit_exceeded", 429, "rate_limit_error"),
        ("concurrency_limit_exceeded", 429, "rate_limit_error"),
        ("insufficient_quota", 429, "insufficient_quota"),
        ("request_too_large", 400, "invalid_request_error"),
        ("unavailable", 503, "server_error"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_refusal_has_its_status_and_says_when_to_come_back(
    client: httpx.AsyncClient, service: ScriptedGenerations, code: str, status: int, kind: str, path: str
) -> None:
    limits = LimitState(
        limit_requests=5, remaining_requests=0, reset_requests_s=2.2, limit_tokens=None, remaining_tokens=None, reset_tokens_s=None
    )
    service.refusal = Refused(code=code, message="requests per minute: 5", retry_after_s=2.2, limits=limits)  # type: ignore[arg-type]
    answer = await client.post(path, json=BODY if path == CHAT else {"model": "tiny/model", "prompt": "a"})
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == kind
    assert answer.json()["error"]["code"] == ("model_not_found" if code == "model_not_allowed" else code)
    assert answer.headers.get("retry-after") == ("3" if status in (429, 503) else None)
    if status == 429:
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        assert answer.headers["x-ratelimit-reset-requests"] == "2.2s"


async def test_every_429_has_retry_after_even_if_admission_names_none(client: httpx.AsyncClient, service: ScriptedGenerations) -> None:
    service.refusal = Refused(code="concurrency_limit_exceeded", message="in flight: 1")
    assert (await client.post(CHAT, json=BODY)).headers["retry-after"] == "1"


async def test_forbidden_model_looks_like_one_that_does_not_exist(client: httpx.AsyncClient, service: ScriptedGenerations) -> None:
    service.refusal = Refused(code="model_not_allowed", message="secret detail")
    forbidden = await client.post(CHAT, json=BODY)
    service.refusal = None
    service.cards = [card(byte_tokenizer_json(), name="other")]
    unknown = await client.post(CHAT, json=BODY)
    assert forbidden.status_code == unknown.status_code == 404
    assert forbidden.json() == unknown.json()


async def test_worker_that_is_busy_or_refuses_is_reported(client: httpx.AsyncClient, service: ScriptedGenerations) -> None:
    service.error = generation.Unavailable("The queue is full.", 4.1)
    answer = await client.post(CHAT, json=BODY)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    service.error = generation.Invalid("It can't be.", "n")
    answer = await client.post(CHAT, json=BODY)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")


async def test_no_model_at_all_is_unavailable_not_unknown(client: httpx.AsyncClient, service: ScriptedGenerations) -> None:
    service.cards = []
    answer = await client.post(CHAT, json=BODY)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")


async def test_models_are_listed_and_retrieved(client: httpx.AsyncClient, service: ScriptedGenerations) -> None:
    service.cards.append(card(byte_tokenizer_json(), name="second"))
    listed = (await client.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["tiny/model", "second"]
    one = (await client.get("/v1/models/tiny/model")).json()
    assert one == listed["data"][0]
    assert one == {"id": "tiny/model", "object": "model", "created": 1_700_000_000, "owned_by": "lockgate", "context_length": 256}
    assert (await client.get("/v1/models/none")).json()["error"]["code"] == "model_not_found"


async def test_models_that_the_key_may_not_use_are_not_there(client: httpx.AsyncClient, service: ScriptedGenerations) -> None:
    service.cards.append(card(byte_tokenizer_json(), name="second"))
    service.caller = dataclasses.replace(CALLER, allowed_models=frozenset({"second"}))
    assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["second"]
    assert (await client.get("/v1/models/tiny/model")).status_code == 404


async def test_probes_need_no_key(client: httpx.AsyncClient, service: ScriptedGenerations) -> None:
    del client.headers["authorization"]
    assert (await client.get("/healthz")).status_code == 200
    assert (await client.get("/readyz")).status_code == 200
    assert (await client.head("/healthz")).status_code == 200
    service.cards = []
    assert (await client.get("/healthz")).status_code == 200
    assert (await client.get("/readyz")).status_code == 503


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", CHAT, 405, "POST"),
        ("DELETE", "/v1/completions", 405, "POST"),
        ("POST", "/v1/models", 405, "GET"),
        ("POST", "/v1/models/x", 405, "GET"),
        ("POST", "/healthz", 405, "GET"),
        ("POST", "/v1/nothing", 404, None),
        ("GET", "/v1/models/", 404, None),
        ("GET", "/", 404, None),
    ],
)
async def test_wrong_path_or_method_is_an_error_object(
    client: httpx.AsyncClient, method: str, path: str, status: int, allow: str | None
) -> None:
    answer = await client.request(method, path)
    assert answer.status_code == status
    assert answer.headers.get("allow") == allow
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_unexpected_error_is_logged_and_says_nothing(
    client: httpx.AsyncClient, service: ScriptedGenerations, caplog: pytest.LogCaptureFixture
) -> None:
    service.error = ZeroDivisionError("secret detail")
    answer = await client.post(CHAT, json=BODY)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "secret detail" not in answer.text
    assert answer.headers["x-request-id"] in answer.text
    assert "secret detail" in caplog.text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-1, "0s"),
        (0.012, "12ms"),
        (1, "1s"),
        (7.8, "7.8s"),
        (59.9996, "1m0s"),
        (360, "6m0s"),
        (3603, "1h0m3s"),
        (86399, "23h59m59s"),
    ],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
