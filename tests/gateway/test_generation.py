"""One request's life over a real worker process: what is said, what is billed, what is settled, and when."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.admission.outcomes import Refused
from gateway.events import ChoiceFinished, Delta, Event, PromptScored, Started
from gateway.generation import AdmissionRefused, Generation, Generations, Invalid, Patience, Unavailable
from inference.protocol.usage import FinishReason
from tests.gateway.running_gateway import answer, collect, failed, finished, gateway, request, text_of, tokens_of, until
from tests.gateway.scripted_admissions import ScriptedAdmissions
from tests.inference.worker_process import WorkerProcess, expected, running_worker

pytestmark = pytest.mark.asyncio(loop_scope="module")

STEPS_A_SECOND = 500


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerProcess]:
    home = tmp_path_factory.mktemp("worker")
    async with running_worker(redis_url, home, model=f"synthetic:rate={STEPS_A_SECOND}") as process:
        yield process


@pytest.fixture
def admissions() -> ScriptedAdmissions:
    return ScriptedAdmissions()


@pytest_asyncio.fixture(loop_scope="module")
async def generations(redis_url: str, worker: WorkerProcess, admissions: ScriptedAdmissions) -> AsyncIterator[Generations]:
    async with gateway(redis_url, admissions) as opened:
        yield opened


async def _read_into(events: list[Event], running: Generation) -> None:
    async for event in running.events():
        events.append(event)


# --- what is said -------------------------------------------------------------------------------------------------------------------


async def test_it_streams_what_the_worker_says_and_is_settled_before_its_end_is_told(generations, admissions, worker):
    """G7: the slot is free before the client knows."""
    asked = request(max_tokens=8)
    admissions.settling = asyncio.Event()
    running = await generations.start(asked)
    events: list[Event] = []
    reader = asyncio.create_task(_read_into(events, running))
    await until(lambda: text_of(events) == answer("hello", 8))
    assert not any(isinstance(event, ChoiceFinished) for event in events)
    admissions.settling.set()
    await reader
    assert events[0] == Started(prompt_tokens=5, cached_tokens=0)
    assert tokens_of(events) == expected(worker, count=8)
    assert events[-2] == ChoiceFinished(choice=0, cause="length")
    counters = finished(events).counters
    assert (counters.prompt_tokens, counters.generated_tokens, counters.billed_tokens, counters.wasted_tokens) == (5, 8, 8, 0)
    assert admissions.settled[asked.request_id] == (counters, FinishReason.LENGTH)
    assert generations.running == 0


async def test_models_are_known_by_the_card_of_their_worker(generations):
    assert [card.name for card in generations.models()] == ["synthetic"]
    assert generations.card("synthetic") is generations.models()[0]
    assert generations.card("nobody") is None
    assert "<|im_start|>" in (generations.chat_template("synthetic") or "")
    assert await generations.tokenizer("synthetic").encode("hi") == [104, 105]
    assert generations.max_choices("synthetic") >= 2
    with pytest.raises(Unavailable):
        generations.tokenizer("nobody")


async def test_every_choice_is_told_and_finishes(generations):
    events = await collect(await generations.start(request(max_tokens=6, n=3, temperature=1.0)))
    assert [text_of(events, choice) for choice in range(3)] == [answer("hello", 6)] * 3
    assert sorted(event.choice for event in events if isinstance(event, ChoiceFinished)) == [0, 1, 2]
    assert finished(events).counters.billed_tokens == 18


async def test_a_stop_token_is_billed_but_is_no_text(generations):
    said = answer("hello", 4)
    events = await collect(await generations.start(request(max_tokens=9, stop_token_ids=(ord(said[-1]),))))
    assert text_of(events) == said[:-1]
    assert events[-2] == ChoiceFinished(choice=0, cause="stop", stop_reason=ord(said[-1]))
    assert finished(events).counters.billed_tokens == 4


async def test_log_probabilities_of_prompt_and_tokens_are_told(generations):
    events = await collect(await generations.start(request(max_tokens=2, logprobs=1, prompt_logprobs=0)))
    scored = next(event for event in events if isinstance(event, PromptScored))
    assert scored.tokens[0] is None
    assert [one.text for one in scored.tokens[1:] if one is not None] == list("ello")
    told = [one for event in events if isinstance(event, Delta) for one in event.logprobs]
    assert [one.text for one in told] == list(answer("hello", 2))
    assert all(len(one.top) == 1 for one in told)


# --- what is billed -----------------------------------------------------------------------------------------------------------------


async def test_a_stop_string_cuts_on_its_token_and_what_came_past_it_is_wasted(generations):
    stop = answer("hello", 9)[5:9]
    events = await collect(await generations.start(request(max_tokens=400, stop=(stop,))))
    assert text_of(events) == answer("hello", 5)
    assert events[-2] == ChoiceFinished(choice=0, cause="stop", stop_reason=stop)
    counters = finished(events).counters
    assert counters.billed_tokens == 9
    assert counters.generated_tokens == 9 + counters.wasted_tokens
    assert counters.generated_tokens < 400


async def test_one_choice_cut_by_a_stop_string_leaves_the_others_running(generations):
    stop = answer("hello", 9)[5:9]
    events = await collect(await generations.start(request(max_tokens=60, n=2, temperature=1.0, stop=(stop,))))
    assert {event.choice for event in events if isinstance(event, ChoiceFinished)} == {0, 1}
    assert finished(events).counters.billed_tokens == 18


async def test_the_hold_grows_while_it_runs(generations, admissions):
    admissions.tranche = 4
    asked = request(max_tokens=200)
    events = await collect(await generations.start(asked))
    assert text_of(events) == answer("hello", 200)
    assert admissions.extensions == sorted(set(admissions.extensions))
    assert admissions.extensions[-1] == 200
    assert len(admissions.extensions) < 12


@pytest.mark.parametrize("budget", [1, 7, 16, 37])
async def test_a_budget_ends_on_its_exact_token(generations, admissions, budget):
    admissions.tranche, admissions.budget = 4, budget
    events = await collect(await generations.start(request(max_tokens=100)))
    assert text_of(events) == answer("hello", budget)
    assert events[-2] == ChoiceFinished(choice=0, cause="length", stop_reason="budget")
    counters = finished(events).counters
    assert (counters.generated_tokens, counters.billed_tokens) == (budget, budget)


async def test_a_budget_ends_all_choices_together_on_its_exact_token(generations, admissions):
    admissions.tranche, admissions.budget = 4, 21
    events = await collect(await generations.start(request(max_tokens=100, n=3, temperature=1.0)))
    assert sum(len(tokens_of(events, choice)) for choice in range(3)) == 21
    assert finished(events).counters.billed_tokens == 21
    ends = [event for event in events if isinstance(event, ChoiceFinished)]
    assert [(end.cause, end.stop_reason) for end in ends] == [("length", "budget")] * 3


async def test_a_minutes_rate_pauses_and_does_not_end(generations, admissions):
    admissions.tranche, admissions.rate_waits = 4, [0.05, 0.05, 0.05]
    events = await collect(await generations.start(request(max_tokens=40)))
    assert text_of(events) == answer("hello", 40)
    assert events[-2] == ChoiceFinished(choice=0, cause="length")
    assert admissions.rate_waits == []


# --- what doesn't start -------------------------------------------------------------------------------------------------------------


async def test_a_stranger_is_refused(generations, admissions):
    with pytest.raises(AdmissionRefused) as refusal:
        await generations.start(request(key="stranger"))
    assert refusal.value.refused.code == "invalid_api_key"
    assert isinstance(await generations.authenticate("0" * 64), Refused)


async def test_a_refusal_says_which_limit_and_nothing_runs(generations, admissions):
    admissions.refusal = Refused(code="rate_limit_exceeded", message="Enough.", limit="requests_per_minute", retry_after_s=3.0)
    with pytest.raises(AdmissionRefused) as refusal:
        await generations.start(request())
    assert refusal.value.refused is admissions.refusal
    assert generations.running == 0


async def test_what_the_worker_refuses_is_released_and_named(generations, admissions):
    asked = request(logprobs=5_000)
    with pytest.raises(Invalid) as refusal:
        await generations.start(asked)
    assert refusal.value.param == "logprobs"
    assert admissions.released == [asked.request_id]
    assert generations.running == 0


async def test_more_choices_than_the_worker_takes_are_refused_before_anything_is_held(generations, admissions):
    with pytest.raises(Invalid) as refusal:
        await generations.start(request(n=1000))
    assert refusal.value.param == "n"
    assert not admissions.held
    assert not admissions.released


async def test_without_limits_to_check_nobody_is_let_in(generations, admissions, monkeypatch):
    async def unreachable(call: object) -> None:
        raise ConnectionError("Redis is away")

    monkeypatch.setattr(admissions, "admit", unreachable)
    with pytest.raises(Unavailable):
        await generations.start(request())


async def test_an_end_that_cannot_be_settled_is_told_all_the_same(generations, admissions, monkeypatch):
    """The flusher settles it later."""

    async def unreachable(*arguments: object) -> None:
        raise ConnectionError("Redis is away")

    monkeypatch.setattr(admissions, "settle", unreachable)
    finished(await collect(await generations.start(request())))


# --- readers ------------------------------------------------------------------------------------------------------------------------


async def test_an_abort_stops_the_engine_frees_its_blocks_and_bills_what_was_computed(generations, admissions):
    """E28, E38, G6, G21."""
    asked = request(max_tokens=4_000)
    admissions.tranche = 4_000
    running = await generations.start(asked)
    async for event in running.events():
        if isinstance(event, Delta):
            break
    await running.abort()
    await running.abort()
    failure = failed(await collect(running))
    assert failure.code == "cancelled"
    counters, reason = admissions.settled[asked.request_id]
    assert reason is FinishReason.CANCELLED
    assert 0 < counters.billed_tokens == counters.generated_tokens < 4_000
    link = next(iter(generations.links))
    await until(lambda: link.load is not None and link.load.running == 0)
    await until(lambda: link.load.blocks_free + link.load.blocks_cached == link.load.blocks_total)


async def test_a_start_that_is_given_up_holds_nothing(generations, admissions, monkeypatch):
    never = asyncio.Event()
    monkeypatch.setattr(Generation, "first_word", lambda self: never.wait())
    asked = request(max_tokens=4_000)
    admissions.tranche = 4_000
    starting = asyncio.create_task(generations.start(asked))
    await until(lambda: generations.running)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(lambda: asked.request_id in admissions.settled)
    await until(lambda: generations.running == 0)


async def test_a_slow_reader_loses_nothing(redis_url, worker, admissions):
    """G44: the generation waits at the worker while its reader is behind."""
    admissions.tranche = 500
    async with gateway(redis_url, admissions, patience=Patience(unread_events=16)) as generations:
        running = await generations.start(request(max_tokens=500))
        events: list[Event] = []
        async for event in running.events():
            events.append(event)
            if len(events) in (1, 50, 100):
                await until(lambda: running.unread >= 16)
                assert running.unread < 100
        assert text_of(events) == answer("hello", 500)
        finished(events)


async def test_a_reader_that_never_reads_is_told_so_in_the_end_and_the_others_go_on(redis_url, worker, admissions):
    admissions.tranche = 4_000
    patience = Patience(unread_events=16, slow_reader_s=0.2)
    async with gateway(redis_url, admissions, patience=patience) as generations:
        stuck = await generations.start(request(max_tokens=4_000))
        await until(lambda: stuck.unread >= 16)
        finished(await collect(await generations.start(request(max_tokens=40))))
        await until(stuck.done.is_set)
        events = await collect(stuck)
        assert failed(events).code == "slow_reader"
        assert not any(isinstance(event, ChoiceFinished) for event in events)


async def test_a_revoked_key_ends_what_it_started(generations, admissions):
    admissions.tranche = 4_000
    running = await generations.start(request(max_tokens=4_000))
    generations.terminate([running.request_id, "unknown"])
    assert failed(await collect(running)).code == "revoked"
    assert running.request_id in admissions.settled


async def test_a_fault_while_reading_ends_that_request_alone(generations, admissions, monkeypatch):
    broken, whole = await generations.start(request(max_tokens=200)), await generations.start(request(max_tokens=60))

    def fault(token: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(broken, "token", fault)
    assert failed(await collect(broken)).code == "engine_error"
    assert text_of(await collect(whole)) == answer("hello", 60)


async def test_closing_lets_streams_end_and_fails_what_does_not(redis_url, worker, admissions):
    admissions.tranche = 4_000
    async with gateway(redis_url, admissions) as generations:
        short, long = await generations.start(request(max_tokens=50)), await generations.start(request(max_tokens=4_000))
        draining = asyncio.create_task(generations.drain(0.5))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await generations.start(request())
        finished(await collect(short))
        assert failed(await collect(long)).code == "cancelled"
        await draining
        assert long.request_id in admissions.settled
