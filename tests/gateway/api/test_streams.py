"""Streams message by message: what is sent when, and what happens when somebody stops listening or something breaks."""

import asyncio
from collections.abc import Iterable

import pytest

from gateway.api import sse
from gateway.events import ChoiceFinished, Delta, Failed, Finished, GenerationRequest, Started
from gateway.text import Tokenizer
from inference.protocol.usage import Counters
from tests.gateway.api.conftest import Browser, events
from tests.gateway.api.scripted import ScriptedGenerations

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"model": "tiny/model", "messages": [{"role": "user", "content": "Hi"}]}
STREAM = HELLO | {"stream": True}
STARTED = Started(prompt_tokens=3, cached_tokens=0)
FINISHED = Finished(counters=Counters(prompt_tokens=3, generated_tokens=1, billed_tokens=1))


def delta(text: str, choice: int = 0) -> Delta:
    return Delta(choice=choice, text=text, tokens=(65,), next_index=1)


def script(service: ScriptedGenerations, *steps: object) -> None:
    def run(request: GenerationRequest, tokenizer: Tokenizer) -> Iterable[object]:
        return iter(steps)

    service.script = run  # type: ignore[assignment]


async def test_tokens_that_are_there_together_leave_in_one_chunk(service: ScriptedGenerations) -> None:
    go = asyncio.Event()
    script(service, STARTED, delta("a"), go, delta("b"), delta("c"), delta("d"), ChoiceFinished(choice=0, cause="stop"), FINISHED)
    browser = Browser(CHAT, STREAM)
    await browser.until(b'"content":"a"')
    before = len(browser.bodies)
    go.set()
    await browser.done()
    assert len(browser.bodies) == before + 1
    assert events(browser.bodies[-1])[0]["choices"][0]["delta"] == {"content": "bcd"}
    assert events(browser.bodies[-1])[-1] == "[DONE]"
    assert browser.sent[-1]["more_body"] is False


async def test_choices_that_are_there_together_stay_apart(service: ScriptedGenerations) -> None:
    ends = [ChoiceFinished(choice=choice, cause="stop") for choice in (1, 0)]
    script(service, STARTED, delta("a", 0), delta("x", 1), delta("b", 0), delta("y", 1), *ends, FINISHED)
    browser = Browser(CHAT, STREAM | {"n": 2})
    await browser.done()
    texts = {0: "", 1: ""}
    for chunk in events(browser.data)[:-1]:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["delta"].get("content", "")
    assert texts == {0: "ab", 1: "xy"}


async def test_idle_stream_sends_comments_that_clients_ignore(service: ScriptedGenerations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "PING_INTERVAL_S", 0.01)
    go = asyncio.Event()
    script(service, go, STARTED, delta("a"), ChoiceFinished(choice=0, cause="stop"), FINISHED)
    browser = Browser(CHAT, STREAM)
    await browser.until(sse.PING + sse.PING)
    assert browser.sent[0]["status"] == 200
    go.set()
    await browser.done()
    assert [event if isinstance(event, str) else event["choices"][0]["delta"].get("content") for event in events(browser.data)] == [
        "",
        "a",
        None,
        "[DONE]",
    ]


async def test_no_comment_while_the_client_does_not_read(service: ScriptedGenerations, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, third_look = 0, asyncio.Event()
    look = sse.EventStream._look

    def counted(stream: sse.EventStream) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            third_look.set()
        look(stream)

    monkeypatch.setattr(sse.EventStream, "_look", counted)
    monkeypatch.setattr(sse, "PING_INTERVAL_S", 0.01)
    script(service, STARTED, delta("a"), ChoiceFinished(choice=0, cause="stop"), FINISHED)
    browser = Browser(CHAT, STREAM)
    browser.reading.clear()
    async with asyncio.timeout(10):
        await third_look.wait()
    browser.reading.set()
    await browser.done()
    assert sse.PING not in browser.data


@pytest.mark.parametrize("body", [STREAM, HELLO])
@pytest.mark.parametrize(
    ("code", "status", "retry"),
    [("engine_error", 500, False), ("worker_lost", 503, True), ("timeout", 503, True), ("cancelled", 500, False), ("revoked", 401, False)],
)
async def test_failure_before_the_first_byte_has_its_status(
    service: ScriptedGenerations, body: dict, code: str, status: int, retry: bool
) -> None:
    script(service, Failed(code=code, message="it broke"))  # type: ignore[arg-type]
    browser = Browser(CHAT, body)
    await browser.done()
    assert browser.sent[0]["status"] == status
    headers = dict(browser.sent[0]["headers"])
    assert (b"retry-after" in headers) == retry
    assert b'"message":"it broke"' in browser.data
    assert b"[DONE]" not in browser.data


async def test_failure_after_the_first_byte_is_an_event_then_done(service: ScriptedGenerations) -> None:
    go = asyncio.Event()
    script(service, STARTED, delta("a"), go, Failed(code="worker_lost", message="the worker died"))
    browser = Browser(CHAT, STREAM)
    await browser.until(b'"content":"a"')
    go.set()
    await browser.done()
    *chunks, error, done = events(browser.data)
    assert done == "[DONE]"
    assert error == {"error": {"message": "the worker died", "type": "server_error", "param": None, "code": "worker_lost"}}
    assert not any(chunk["choices"][0]["finish_reason"] for chunk in chunks), "never an invented finish"
    assert browser.sent[-1]["more_body"] is False


async def test_failure_of_an_unstreamed_answer_after_text_is_an_error(service: ScriptedGenerations) -> None:
    script(service, STARTED, delta("a"), Failed(code="worker_lost", message="the worker died"))
    browser = Browser(CHAT, HELLO)
    await browser.done()
    assert browser.sent[0]["status"] == 503


@pytest.mark.parametrize("steps", [(STARTED, delta("a")), ()], ids=["in mid-stream", "at once"])
async def test_events_that_just_end_are_an_internal_error(
    service: ScriptedGenerations, steps: tuple, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        limits = service.limits

        async def events(self):
            for step in steps:
                yield step

        async def abort(self) -> None:
            self.aborted = True

    broken = Broken()

    async def start_all(requests: list[GenerationRequest]) -> list[Broken]:
        return [broken]

    service.start_all = start_all  # type: ignore[method-assign,assignment]
    browser = Browser(CHAT, STREAM)
    await browser.done()
    assert b"internal_error" in browser.data
    assert b"Traceback" not in browser.data
    assert "failed" in caplog.text
    assert broken.aborted


@pytest.mark.parametrize("body", [STREAM, HELLO])
async def test_client_that_hangs_up_aborts_its_generation(service: ScriptedGenerations, body: dict) -> None:
    script(service, STARTED, delta("a"), asyncio.Event())
    browser = Browser(CHAT, body)
    if body is STREAM:
        await browser.until(b'"content":"a"')
    else:
        async with asyncio.timeout(10):
            while not service.generations:
                await asyncio.sleep(0)
    browser.hang_up()
    await browser.done()
    assert service.generations[0].aborted.is_set()
    assert b"[DONE]" not in browser.data
    assert body is STREAM or browser.sent == []


async def test_client_that_hangs_up_aborts_all_its_prompts(service: ScriptedGenerations) -> None:
    script(service, STARTED, delta("a"), asyncio.Event())
    browser = Browser(COMPLETIONS, {"model": "tiny/model", "prompt": ["a", "b"], "stream": True})
    await browser.until(b'"index":1')
    browser.hang_up()
    await browser.done()
    assert [one.aborted.is_set() for one in service.generations] == [True, True]


async def test_failure_of_one_prompt_aborts_the_others(service: ScriptedGenerations) -> None:
    scripts = [[STARTED, Failed(code="engine_error", message="bad")], [STARTED, asyncio.Event()]]
    service.script = lambda request, tokenizer: iter(scripts[int(request.request_id[-1])])  # type: ignore[assignment,return-value]
    browser = Browser(COMPLETIONS, {"model": "tiny/model", "prompt": ["a", "b"]})
    await browser.done()
    assert browser.sent[0]["status"] == 500
    assert service.generations[1].aborted.is_set()


async def test_finished_generation_is_not_aborted(service: ScriptedGenerations) -> None:
    browser = Browser(CHAT, STREAM)
    await browser.done()
    assert not service.generations[0].aborted.is_set()


async def test_client_that_reads_slowly_leaves_the_generation_waiting(service: ScriptedGenerations) -> None:
    taken = 0

    def endless(request: GenerationRequest, tokenizer: Tokenizer) -> Iterable[object]:
        nonlocal taken
        yield STARTED
        while True:
            taken += 1
            yield delta("a")

    service.script = endless  # type: ignore[assignment]
    browser = Browser(CHAT, STREAM)
    browser.reading.clear()
    for _ in range(2000):
        await asyncio.sleep(0)
    assert 0 < taken < 1000
    browser.hang_up()
    browser.reading.set()
    await browser.done()
    assert service.generations[0].aborted.is_set()


async def test_client_that_hangs_up_in_mid_body_is_no_error(service: ScriptedGenerations, caplog: pytest.LogCaptureFixture) -> None:
    browser = Browser(CHAT, b"")
    browser._inbox.get_nowait()
    browser._inbox.put_nowait({"type": "http.request", "body": b'{"mod', "more_body": True})
    browser.hang_up()
    await browser.done()
    assert browser.sent == []
    assert caplog.text == ""


async def test_budgets_end_is_a_finish_with_its_reason(service: ScriptedGenerations) -> None:
    script(service, STARTED, delta("a"), ChoiceFinished(choice=0, cause="length", stop_reason="budget"), FINISHED)
    browser = Browser(CHAT, STREAM)
    await browser.done()
    choice = events(browser.data)[-2]["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "budget")
