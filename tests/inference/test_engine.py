from typing import Any

import pytest

from inference.errors import RequestRejected
from inference.protocol.usage import FinishReason
from tests.inference.driving import Driver, small_config
from tests.inference.scripted_model import EOS, ScriptedModel

PROMPT = list(range(1, 24))


def test_a_request_runs_from_submit_to_finish() -> None:
    driver = Driver()
    driver.submit("r1", PROMPT, max_tokens=6)
    driver.run()
    assert driver.text() == driver.model.continuation(PROMPT, 6)
    assert driver.ends["r1", 0].reason == driver.finished["r1"].reason == FinishReason.LENGTH
    counters = driver.finished["r1"].counters
    assert (counters.prompt_tokens, counters.computed_tokens, counters.cached_tokens) == (23, 23, 0)
    assert (counters.generated_tokens, counters.billed_tokens, counters.wasted_tokens) == (6, 6, 0)
    assert driver.engine.pool.held == 0
    assert not driver.engine.has_work


def test_seconds_are_split_into_queue_prefill_and_decode() -> None:
    driver = Driver(config=small_config(max_sequences=1, prefill_chunk=4), step_s=1.0)
    driver.submit("first", [1, 2], max_tokens=3)
    driver.submit("second", PROMPT, max_tokens=4)
    driver.run()
    counters = driver.finished["second"].counters
    assert counters.queue_s == driver.started["second"].queue_s == pytest.approx(3)
    assert counters.prefill_s == pytest.approx(5)
    assert counters.decode_s == pytest.approx(3)


def test_a_stop_token_ends_the_choice_and_is_billed() -> None:
    driver = Driver()
    expected = driver.model.continuation(PROMPT, 5)
    driver.submit("r1", PROMPT, max_tokens=9, stop_token_ids=(expected[4],))
    driver.run()
    assert driver.text() == expected
    assert (driver.ends["r1", 0].reason, driver.ends["r1", 0].stop_token) == (FinishReason.STOP, expected[4])
    assert driver.finished["r1"].counters.billed_tokens == 5


@pytest.mark.parametrize(("ignore_eos", "length"), [(False, 1), (True, 4)])
def test_end_of_sequence_ends_a_choice_unless_it_is_ignored(ignore_eos: bool, length: int) -> None:
    model = ScriptedModel(never=tuple(range(EOS)))
    driver = Driver(model=model)
    driver.submit("r1", PROMPT, max_tokens=4, ignore_eos=ignore_eos)
    driver.run()
    assert driver.text() == [EOS] * length


def test_min_tokens_keeps_the_end_away() -> None:
    model = ScriptedModel(never=tuple(range(1, EOS)))
    driver = Driver(model=model)
    driver.submit("r1", PROMPT, max_tokens=9, min_tokens=4, ignore_eos=False)
    driver.run()
    assert EOS not in driver.text()[:4]
    assert len(driver.text()) >= 4


def test_generation_stops_at_the_context_length() -> None:
    driver = Driver(model=ScriptedModel(context_length=30))
    driver.submit("r1", PROMPT, max_tokens=50)
    driver.run()
    assert len(driver.text()) == 7
    assert driver.ends["r1", 0].reason == FinishReason.LENGTH


@pytest.mark.parametrize("chunk", [1, 3, 16, 64])
@pytest.mark.parametrize("budget", [1, 7, 64])
def test_output_is_the_same_whatever_the_chunk_and_the_budget(chunk: int, budget: int) -> None:
    driver = Driver(config=small_config(prefill_chunk=chunk, step_tokens=budget))
    for index in range(4):
        driver.submit(f"r{index}", PROMPT[index:], max_tokens=7, domain=None)
    driver.run()
    for index in range(4):
        assert driver.text(f"r{index}") == driver.model.continuation(PROMPT[index:], 7)


# --- prefix cache --------------------------------------------------------------------------------------------------------------


def test_a_second_request_reuses_full_blocks_and_computes_at_least_the_last_token() -> None:
    driver = Driver()
    for request_id in ("cold", "warm"):
        driver.submit(request_id, PROMPT[:16], max_tokens=5)
        driver.run()
    assert driver.started["cold"].cached_tokens == 0
    assert driver.started["warm"].cached_tokens == 12
    assert driver.text("warm") == driver.text("cold") == driver.model.continuation(PROMPT[:16], 5)
    counters = driver.finished["warm"].counters
    assert (counters.prompt_tokens, counters.computed_tokens, counters.cached_tokens) == (16, 4, 12)


def test_a_conversation_reuses_what_was_generated() -> None:
    driver = Driver()
    driver.submit("turn 1", PROMPT, max_tokens=10)
    driver.run()
    driver.submit("turn 2", PROMPT + driver.text("turn 1") + [5, 6], max_tokens=4)
    driver.run()
    assert driver.started["turn 2"].cached_tokens == 32
    assert driver.text("turn 2") == driver.model.continuation(PROMPT + driver.text("turn 1") + [5, 6], 4)


@pytest.mark.parametrize("second", [b"rival", None])
def test_another_domain_reads_nothing(second: bytes | None) -> None:
    driver = Driver()
    driver.submit("r1", PROMPT, domain=b"acme")
    driver.run()
    driver.submit("r2", PROMPT, domain=second)
    driver.run()
    assert driver.started["r2"].cached_tokens == 0


def test_without_a_domain_nothing_is_left_behind() -> None:
    driver = Driver()
    driver.submit("r1", PROMPT, domain=None)
    driver.run()
    assert driver.engine.pool.free == driver.engine.pool.total


def test_switched_off_the_cache_keeps_nothing() -> None:
    driver = Driver(config=small_config(prefix_cache=False))
    driver.submit("r1", PROMPT)
    driver.run()
    assert driver.engine.load().blocks_cached == 0


def test_entries_live_as_long_as_their_request_said() -> None:
    driver = Driver()
    driver.submit("r1", PROMPT, ttl_s=10)
    driver.run()
    driver.clock.now += 11
    driver.submit("r2", PROMPT)
    driver.run()
    assert driver.started["r2"].cached_tokens == 0


# --- allowance, pause, cancel --------------------------------------------------------------------------------------------------


def test_generation_stalls_at_the_allowance_and_goes_on_from_there() -> None:
    driver = Driver()
    driver.submit("r1", PROMPT, max_tokens=8, allowance=3)
    driver.run()
    assert len(driver.text()) == 3
    assert not driver.engine.has_work
    assert driver.engine.pool.held > 0
    driver.engine.allow("r1", 2)
    assert not driver.engine.has_work
    driver.engine.allow("r1", 8)
    driver.engine.allow("nobody", 8)
    driver.run()
    assert driver.text() == driver.model.continuation(PROMPT, 8)


def test_choices_share_one_allowance() -> None:
    driver = Driver()
    driver.submit("r1", PROMPT, max_tokens=8, n=3, allowance=10)
    driver.run()
    assert sum(map(len, driver.tokens.values())) == 10
    driver.engine.allow("r1", 24)
    driver.run()
    assert all(driver.text("r1", choice) == driver.model.continuation(PROMPT, 8) for choice in range(3))


def test_nothing_runs_without_an_allowance() -> None:
    driver = Driver()
    driver.submit("r1", PROMPT, allowance=0)
    assert not driver.engine.has_work
    driver.step()
    assert not driver.started
    driver.engine.allow("r1", 8)
    driver.run()
    assert driver.text() == driver.model.continuation(PROMPT, 8)


def test_a_paused_request_keeps_its_place_and_its_blocks() -> None:
    driver = Driver()
    driver.submit("r1", PROMPT, max_tokens=8)
    while len(driver.text()) < 3:
        driver.step()
    driver.engine.pause("r1", True)
    assert not driver.engine.has_work
    driver.step()
    assert len(driver.text()) == 3
    driver.engine.pause("r1", False)
    driver.run()
    assert driver.text() == driver.model.continuation(PROMPT, 8)
    assert driver.finished["r1"].counters.preemptions == 0


def test_a_stalled_request_gives_way_first_and_comes_back() -> None:
    driver = Driver(config=small_config(blocks=10))
    driver.submit("stalled", PROMPT, max_tokens=8, allowance=2, tier=0)
    driver.run()
    driver.submit("other", PROMPT[::-1], max_tokens=8, tier=1)
    driver.run(until="other")
    assert driver.text("other") == driver.model.continuation(PROMPT[::-1], 8)
    driver.engine.allow("stalled", 8)
    driver.run()
    assert driver.text("stalled") == driver.model.continuation(PROMPT, 8)
    assert driver.finished["stalled"].counters.preemptions == 1


def test_cancel_frees_blocks_at_once_and_finishes_in_the_next_step() -> None:
    driver = Driver()
    driver.submit("r1", PROMPT, max_tokens=30)
    while len(driver.text()) < 4:
        driver.step()
    driver.engine.cancel("r1")
    assert driver.engine.pool.held == 0
    assert driver.engine.has_work
    driver.step()
    finish = driver.finished["r1"]
    assert finish.reason == FinishReason.CANCELLED
    assert (finish.counters.generated_tokens, finish.counters.billed_tokens) == (4, 4)
    assert not driver.engine.has_work


def test_tokens_past_the_cut_are_wasted_not_billed() -> None:
    driver = Driver()
    driver.submit("r1", PROMPT, max_tokens=30)
    while len(driver.text()) < 6:
        driver.step()
    driver.engine.cancel("r1", reason=FinishReason.STOP, delivered={0: 4})
    driver.step()
    counters = driver.finished["r1"].counters
    assert driver.finished["r1"].reason == FinishReason.STOP
    assert (counters.generated_tokens, counters.billed_tokens, counters.wasted_tokens) == (6, 4, 2)


def test_one_choice_is_cut_and_the_others_go_on() -> None:
    driver = Driver()
    driver.submit("r1", PROMPT, max_tokens=10, n=3)
    while len(driver.text("r1", 1)) < 4:
        driver.step()
    driver.engine.cancel("r1", choice=1, reason=FinishReason.STOP, delivered={1: 3})
    driver.run()
    counters = driver.finished["r1"].counters
    assert len(driver.text("r1", 0)) == len(driver.text("r1", 2)) == 10
    assert (counters.generated_tokens, counters.billed_tokens, counters.wasted_tokens) == (24, 23, 1)


def test_the_first_choice_may_be_cut_before_the_prompt_is_computed() -> None:
    driver = Driver()
    driver.submit("r1", PROMPT, max_tokens=4, n=3)
    driver.step()
    driver.engine.cancel("r1", choice=0)
    driver.engine.cancel("r1", choice=2)
    driver.run()
    assert list(driver.tokens) == [("r1", 1)]
    assert driver.text("r1", 1) == driver.model.continuation(PROMPT, 4)


def test_a_request_cancelled_in_the_queue_costs_nothing() -> None:
    driver = Driver(config=small_config(max_sequences=1))
    driver.submit("first", PROMPT)
    driver.submit("second", PROMPT)
    driver.step()
    driver.engine.cancel("second")
    driver.run()
    counters = driver.finished["second"].counters
    assert (counters.prompt_tokens, counters.billed_tokens, counters.generated_tokens, counters.kv_block_s) == (0, 0, 0, 0.0)
    assert "second" not in driver.started


def test_cancelling_twice_or_after_the_end_changes_nothing() -> None:
    driver = Driver()
    driver.submit("r1", PROMPT)
    driver.engine.cancel("r1")
    driver.engine.cancel("r1", reason=FinishReason.ERROR)
    driver.run()
    driver.engine.cancel("r1")
    driver.run()
    assert driver.finished["r1"].reason == FinishReason.CANCELLED


# --- choices -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", [b"acme", None])
def test_choices_share_the_prompts_full_blocks(domain: bytes | None) -> None:
    driver = Driver(config=small_config(step_tokens=64, prefill_chunk=64))
    driver.submit("r1", PROMPT, max_tokens=6, n=4, domain=domain)
    driver.run()
    assert all(driver.text("r1", choice) == driver.model.continuation(PROMPT, 6) for choice in range(4))
    counters = driver.finished["r1"].counters
    assert (counters.computed_tokens, counters.generated_tokens) == (23, 24)
    assert counters.recomputed_tokens == 3 * 3, "each further choice runs the three tokens of the partial block"


def test_choices_share_even_if_the_first_ends_with_its_first_token() -> None:
    driver = Driver()
    driver.submit("r1", PROMPT, max_tokens=1, n=3, domain=None)
    driver.run()
    assert driver.finished["r1"].counters.recomputed_tokens == 2 * 3


def test_more_choices_than_sequences_are_served_in_waves() -> None:
    driver = Driver(config=small_config(max_sequences=2))
    driver.submit("r1", PROMPT, max_tokens=5, n=7)
    driver.run()
    assert all(driver.text("r1", choice) == driver.model.continuation(PROMPT, 5) for choice in range(7))


def test_seeded_choices_differ_and_repeat() -> None:
    texts = []
    for neighbours in (0, 3):
        driver = Driver()
        for index in range(neighbours):
            driver.submit(f"n{index}", PROMPT[index:], max_tokens=12, temperature=1.5)
        driver.submit("r1", PROMPT, max_tokens=12, n=3, seed=7, temperature=2.0, domain=None)
        driver.run()
        texts.append([driver.text("r1", choice) for choice in range(3)])
    assert texts[0] == texts[1], "a seeded request draws the same whatever it is batched with"
    assert len(set(map(tuple, texts[0]))) == 3


# --- faults --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "error"), [({"poison": frozenset({60})}, "weren't numbers"), ({"trap": frozenset({60})}, "trapped")])
def test_one_requests_fault_ends_that_request_only(fault: dict[str, Any], error: str) -> None:
    model = ScriptedModel(never=(EOS, 60), **fault)
    driver = Driver(model=model)
    driver.submit("good", PROMPT, max_tokens=8)
    driver.submit("bad", [60, *PROMPT], max_tokens=8, n=2)
    driver.submit("also good", PROMPT[5:], max_tokens=8)
    driver.run()
    assert driver.finished["bad"].reason == FinishReason.ERROR
    assert error in (driver.finished["bad"].error or "")
    assert driver.text("bad") == []
    assert driver.text("good") == model.continuation(PROMPT, 8)
    assert driver.text("also good") == model.continuation(PROMPT[5:], 8)
    assert driver.engine.load().requests_failed == 1


def test_what_a_failed_request_computed_is_not_reused() -> None:
    model = ScriptedModel(never=(EOS, 60), poison=frozenset({60}))
    driver = Driver(model=model)
    for request_id in ("bad", "again"):
        driver.submit(request_id, [*PROMPT, 60], max_tokens=8)
        driver.run()
    assert driver.started["again"].cached_tokens == 0


# --- refusals ------------------------------------------------------------------------------------------------------------------


def refusal(driver: Driver, *args: Any, **kwargs: Any) -> RequestRejected:
    """The refusal; proves that nothing changed."""
    before = driver.engine.load(), driver.engine.next_deadline(), dict(driver.engine.scheduler.tiers)
    with pytest.raises(RequestRejected) as raised:
        driver.submit(*args, **kwargs)
    assert (driver.engine.load(), driver.engine.next_deadline(), dict(driver.engine.scheduler.tiers)) == before
    driver.engine.check()
    return raised.value


@pytest.mark.parametrize(
    ("wishes", "param"),
    [
        ({"logit_bias": {64: 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias"),
        ({"stop_token_ids": (64,)}, "stop_token_ids"),
        ({"stop_token_ids": (-2,)}, "stop_token_ids"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 99}, "min_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 2.0}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": float("inf")}, "presence_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"logprobs": 65}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"weight": 0.0}, "weight"),
        ({"tier": -1}, "tier"),
        ({"allowance": -1}, "allowance"),
        ({"ttl_s": float("nan")}, "cache_ttl_s"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(next(iter(value.items()))),
)
def test_what_could_hurt_the_engine_is_refused_by_name(wishes: dict[str, Any], param: str) -> None:
    error = refusal(Driver(), **wishes)
    assert (error.code, error.param) == ("invalid", param)


@pytest.mark.parametrize("prompt", [[], [64], [-1], [1, 2**70]], ids=["empty", "past the vocabulary", "negative", "huge"])
def test_bad_prompts_are_refused(prompt: list[int]) -> None:
    error = refusal(Driver(), prompt=prompt)
    assert (error.code, error.param) == ("invalid", "prompt")


def test_a_known_id_is_refused() -> None:
    driver = Driver()
    driver.submit("r1", PROMPT)
    assert refusal(driver, "r1").code == "duplicate"


def test_what_can_never_fit_is_refused_with_what_to_shorten() -> None:
    driver = Driver(config=small_config(blocks=8))
    error = refusal(driver, prompt=PROMPT, max_tokens=13)
    assert (error.code, error.param) == ("cannot_fit", "max_tokens")
    assert "need 9 cache blocks" in error.message
    assert "has 8" in error.message
    assert "shorten by 3 tokens" in error.message
    driver.submit("r1", PROMPT, max_tokens=10)
    driver.run()
    assert len(driver.text()) == 10


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    error = refusal(Driver(model=ScriptedModel(context_length=23)), prompt=PROMPT)
    assert (error.code, error.param) == ("cannot_fit", "prompt")
    assert "shorten by 1 tokens" in error.message


def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    driver = Driver(config=small_config(queue_limit=2, max_sequences=1))
    for index in range(3):
        driver.submit(f"r{index}", PROMPT)
        driver.step()
    error = refusal(driver, "r3")
    assert error.code == "queue_full"
    assert error.retry_after_s is not None
    assert 1 <= error.retry_after_s <= 60
    driver.run()
    assert len(driver.finished) == 3


def test_who_waits_too_long_is_sent_away() -> None:
    driver = Driver(config=small_config(queue_timeout_s=5.0))
    driver.submit("r1", PROMPT, allowance=0)
    assert driver.engine.next_deadline() == driver.clock.now + 5
    driver.clock.now += 4.9
    driver.step()
    assert not driver.finished
    driver.clock.now += 0.2
    driver.step()
    assert driver.finished["r1"].reason == FinishReason.TIMEOUT
    assert driver.finished["r1"].counters.billed_tokens == 0
    assert driver.engine.next_deadline() is None


def test_who_has_started_does_not_time_out() -> None:
    driver = Driver(config=small_config(queue_timeout_s=5.0, blocks=10))
    driver.submit("r1", PROMPT, max_tokens=8, allowance=2)
    driver.run()
    driver.submit("r2", PROMPT[::-1], max_tokens=8)
    driver.run(until="r2")
    driver.clock.now += 100
    driver.step()
    driver.engine.allow("r1", 8)
    driver.run()
    assert driver.text("r1") == driver.model.continuation(PROMPT, 8)


# --- log-probabilities ---------------------------------------------------------------------------------------------------------


def test_logprobs_are_of_the_models_own_distribution() -> None:
    import torch

    driver = Driver()
    driver.submit("r1", PROMPT, max_tokens=3, logprobs=2, temperature=0.5, seed=1, logit_bias={5: 50.0})
    driver.submit("plain", PROMPT, max_tokens=3)
    driver.run()
    context = list(PROMPT)
    for out in driver.outs["r1", 0]:
        own = torch.from_numpy(driver.model.logits_of(context)).log_softmax(0)
        assert out.token == 5
        assert out.logprob == pytest.approx(float(own[5]), abs=1e-5)
        assert [pair[0] for pair in out.top_logprobs or []] == own.topk(2).indices.tolist()
        context.append(out.token)
    assert all(out.logprob is None and out.top_logprobs is None for out in driver.outs["plain", 0])


@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize("blocks", [12, 64])
def test_prompt_logprobs_come_in_chunks_that_cover_the_prompt_once(rows: int, blocks: int) -> None:
    import torch

    driver = Driver(config=small_config(prompt_logprob_rows=rows, blocks=blocks, max_preemptions=2))
    driver.submit("other", PROMPT, max_tokens=20)
    driver.run(until="other")
    driver.submit("r1", PROMPT, max_tokens=3, n=2, prompt_logprobs=1)
    driver.submit("beside", PROMPT[4:], max_tokens=25, tier=0)
    driver.run()
    told = driver.prompt_logprobs["r1"]
    assert driver.started["r1"].cached_tokens == 0
    assert [each.start for each in told] == [sum(len(one.logprobs) for one in told[:index]) for index in range(len(told))]
    values = [value for each in told for value in each.logprobs]
    tops = [value for each in told for value in each.top_logprobs]
    assert len(values) == len(PROMPT)
    assert (values[0], tops[0]) == (None, None)
    for position in range(1, len(PROMPT)):
        own = torch.from_numpy(driver.model.logits_of(PROMPT[:position])).log_softmax(0)
        assert values[position] == pytest.approx(float(own[PROMPT[position]]), abs=1e-5)
        assert tops[position] is not None
        assert tops[position][0][0] == int(own.argmax())
    assert driver.text("r1", 1) == driver.model.continuation(PROMPT, 3)


# --- load ----------------------------------------------------------------------------------------------------------------------


def test_load_tells_what_runs_and_what_was_done() -> None:
    driver = Driver(config=small_config(max_sequences=1))
    driver.submit("r1", PROMPT)
    driver.submit("r2", PROMPT)
    driver.step()
    load = driver.engine.load()
    assert (load.running, load.waiting, load.blocks_total) == (1, 1, 64)
    assert load.blocks_total - load.blocks_free - load.blocks_cached == 6
    driver.run()
    load = driver.engine.load()
    assert (load.running, load.waiting, load.tokens_generated, load.tokens_cached) == (0, 0, 16, 20)
    assert load.steps > 0


def test_live_counters_only_grow() -> None:
    driver = Driver(step_s=0.3)
    driver.submit("r1", PROMPT, max_tokens=12, n=2)
    last = driver.engine.counters("r1")
    while driver.engine.has_work:
        driver.step()
        now = driver.finished["r1"].counters if "r1" in driver.finished else driver.engine.counters("r1")
        assert all(getattr(now, name) >= getattr(last, name) for name in now.__struct_fields__), (last, now)
        assert now.generated_tokens == now.billed_tokens + now.wasted_tokens
        assert now.prompt_tokens == now.computed_tokens + now.cached_tokens
        last = now
    assert last.kv_block_s > 0
