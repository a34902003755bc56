import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inference.config import TierConfig
from inference.errors import RequestRejected
from inference.protocol.usage import FinishReason
from tests.inference.driving import Driver, small_config

PROMPT = list(range(1, 24))


def prompts(count: int, length: int, seed: int = 1) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randint(0, 62) for _ in range(length)] for _ in range(count)]


# --- one budget ----------------------------------------------------------------------------------------------------------------


def test_decoding_goes_on_beside_a_long_prompt() -> None:
    driver = Driver(config=small_config(step_tokens=8, prefill_chunk=8, blocks=200))
    driver.submit("chat", PROMPT[:5], max_tokens=40)
    while not driver.text("chat"):
        driver.step()
    driver.submit("long", PROMPT * 8, max_tokens=2)
    while not driver.text("long"):
        before = len(driver.text("chat"))
        driver.step()
        assert len(driver.text("chat")) == before + 1, "every step brings the chat its token"


def test_a_step_never_exceeds_its_budget() -> None:
    driver = Driver(config=small_config(step_tokens=6, prefill_chunk=4))
    for index, prompt in enumerate(prompts(10, 15)):
        driver.submit(f"r{index}", prompt)
    while driver.engine.has_work:
        before = driver.model.tokens_run
        driver.step()
        assert driver.model.tokens_run - before <= 6


def test_one_request_gets_no_more_than_its_chunk() -> None:
    driver = Driver(config=small_config(step_tokens=32, prefill_chunk=5))
    driver.submit("r1", PROMPT)
    driver.step()
    assert driver.model.tokens_run == 5


def test_more_sequences_than_budget_all_get_their_turn() -> None:
    driver = Driver(config=small_config(step_tokens=2, prefill_chunk=2))
    for index, prompt in enumerate(prompts(6, 4)):
        driver.submit(f"r{index}", prompt, share=f"s{index}", max_tokens=10)
    driver.run()
    assert all(len(driver.text(f"r{index}")) == 10 for index in range(6))


def test_requests_of_a_share_start_in_order_of_arrival() -> None:
    driver = Driver(config=small_config(max_sequences=1))
    for index, prompt in enumerate(prompts(5, 6)):
        driver.submit(f"r{index}", prompt)
    driver.run()
    assert list(driver.started) == [f"r{index}" for index in range(5)]


# --- preemption ----------------------------------------------------------------------------------------------------------------


def test_under_pressure_the_latest_gives_way_and_its_output_stays_the_same() -> None:
    driver = Driver(config=small_config(blocks=16, prefix_cache=False))
    made = prompts(3, 14)
    for index, prompt in enumerate(made):
        driver.submit(f"r{index}", prompt, max_tokens=24)
    driver.run()
    preemptions = [driver.finished[f"r{index}"].counters.preemptions for index in range(3)]
    assert preemptions[0] == 0, "the oldest always gets on"
    assert sum(preemptions) > 0
    for index, prompt in enumerate(made):
        assert driver.text(f"r{index}") == driver.model.continuation(prompt, 24)
        counters = driver.finished[f"r{index}"].counters
        assert (counters.computed_tokens, counters.billed_tokens) == (14, 24), "what is computed again isn't billed"
        assert (counters.recomputed_tokens > 0) == (counters.preemptions > 0)


def test_what_comes_back_from_the_cache_after_a_preemption_is_not_counted_again() -> None:
    driver = Driver(config=small_config(blocks=12))
    driver.submit("r1", PROMPT, max_tokens=8, allowance=3)
    driver.run()
    driver.submit("short", [1, 1, 1, 1], max_tokens=1, domain=None)
    driver.engine.scheduler.capacity.preempt(driver.engine.scheduler.running[0], driver.clock.now)
    driver.engine.check()
    driver.engine.allow("r1", 8)
    driver.run()
    counters = driver.finished["r1"].counters
    assert driver.text() == driver.model.continuation(PROMPT, 8)
    assert (counters.computed_tokens, counters.cached_tokens) == (23, 0)
    assert counters.recomputed_tokens == 1, "25 tokens were computed, six full blocks stayed in the cache"


def test_preemptions_of_one_sequence_are_bounded() -> None:
    driver = Driver(config=small_config(blocks=20, max_preemptions=2, prefix_cache=False, max_sequences=16))
    made = prompts(12, 8)
    for index, prompt in enumerate(made):
        driver.submit(f"r{index}", prompt, max_tokens=40, share=f"s{index % 3}")
    driver.run()
    for index, prompt in enumerate(made):
        assert driver.text(f"r{index}") == driver.model.continuation(prompt, 40)
        assert driver.finished[f"r{index}"].counters.preemptions <= 2
    assert driver.engine.load().preemptions > 0


def test_a_pool_that_just_holds_one_request_serves_any_number() -> None:
    driver = Driver(config=small_config(blocks=8))
    made = prompts(5, 20)
    for index, prompt in enumerate(made):
        driver.submit(f"r{index}", prompt, max_tokens=12, share=f"s{index}", n=2)
    driver.run()
    for index, prompt in enumerate(made):
        assert driver.text(f"r{index}", 1) == driver.model.continuation(prompt, 12)


def test_a_large_request_is_not_starved_by_small_ones() -> None:
    driver = Driver(config=small_config(blocks=24, step_tokens=16))
    for index, prompt in enumerate(prompts(6, 8)):
        driver.submit(f"first {index}", prompt, share="small", max_tokens=8)
    driver.step()
    driver.submit("large", (PROMPT * 4)[:80], share="large", max_tokens=8)
    draw = random.Random(3)
    for number in range(400):
        if "large" in driver.finished:
            break
        if len(driver.engine.scheduler.tiers[0].queues) < 4:
            driver.submit(f"small {number}", [draw.randint(0, 62) for _ in range(8)], share="small", max_tokens=8)
        driver.step()
    assert "large" in driver.finished


def test_a_request_that_needs_the_whole_pool_gets_it_from_those_that_stall() -> None:
    driver = Driver(config=small_config(blocks=10, max_sequences=16))
    for index, prompt in enumerate(prompts(8, 3)):
        driver.submit(f"stalled {index}", prompt, allowance=1)
    driver.run()
    assert driver.engine.load().running == 8
    driver.submit("large", (PROMPT * 2)[:36], max_tokens=4)
    driver.run()
    assert driver.text("large") == driver.model.continuation((PROMPT * 2)[:36], 4)


# --- tiers ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "blocks"), [(2, 64), (8, 16)], ids=["few rows", "few blocks"])
def test_a_higher_tier_takes_the_place_of_a_lower_one_at_once(rows: int, blocks: int) -> None:
    driver = Driver(config=small_config(max_sequences=rows, blocks=blocks))
    made = prompts(4, 16)
    for index, prompt in enumerate(made):
        driver.submit(f"low {index}", prompt, tier=1, max_tokens=12)
    for _ in range(4):
        driver.step()
    driver.submit("high", PROMPT, tier=0, max_tokens=12)
    driver.step()
    assert "high" in driver.started
    driver.run()
    assert driver.text("high") == driver.model.continuation(PROMPT, 12)
    for index, prompt in enumerate(made):
        assert driver.text(f"low {index}") == driver.model.continuation(prompt, 12)


def test_a_lower_tier_does_not_slip_in_before_a_waiting_higher_one() -> None:
    driver = Driver(config=small_config(blocks=16))
    driver.submit("running", PROMPT, tier=0, max_tokens=20)
    driver.step()
    driver.submit("high", (PROMPT * 2)[:40], tier=0, max_tokens=4, domain=None)
    driver.submit("low", [1, 2], tier=1, max_tokens=4)
    driver.run(until="running")
    assert "low" not in driver.started
    driver.run()
    assert list(driver.started) == ["running", "high", "low"]


def test_a_lower_tier_that_waited_long_gets_in_beside_a_flood_above_it() -> None:
    config = small_config(max_sequences=2, tiers=TierConfig(ageing_s=1.0, floor_every=4))
    driver = Driver(config=config, step_s=0.05)
    made = prompts(200, 6)
    driver.submit("low", PROMPT, tier=2, max_tokens=8)
    for index in range(4):
        driver.submit(f"high {index}", made[index], max_tokens=6)
    submitted = 4
    while "low" not in driver.finished and submitted < 200:
        driver.step()
        while driver.engine.load().waiting < 4:
            driver.submit(f"high {submitted}", made[submitted], max_tokens=6)
            submitted += 1
    assert "low" in driver.finished
    assert driver.started["low"].queue_s >= 1.0
    assert driver.finished["low"].counters.preemptions == 0
    assert driver.text("low") == driver.model.continuation(PROMPT, 8)


def test_prefill_of_a_lower_tier_keeps_a_floor_under_long_prompts_above_it() -> None:
    driver = Driver(config=small_config(step_tokens=32, prefill_chunk=32, blocks=400, tiers=TierConfig(floor_part=1 / 8)))
    driver.submit("low", (PROMPT * 10)[:64], tier=1)
    driver.step()
    for index, prompt in enumerate(prompts(5, 200)):
        driver.submit(f"high {index}", prompt, tier=0)
    while not driver.text("low"):
        before = driver.engine.counters("low").computed_tokens
        driver.step()
        assert driver.engine.counters("low").computed_tokens > before


# --- anything may happen -------------------------------------------------------------------------------------------------------


class EngineMachine(RuleBasedStateMachine):
    """Random requests and orders on a small, crowded engine. After every step all invariants hold and every token is the right one."""

    @initialize(
        blocks=st.sampled_from([8, 12, 40]),
        step_tokens=st.sampled_from([1, 4, 32]),
        prefill_chunk=st.sampled_from([1, 3, 32]),
        max_sequences=st.sampled_from([1, 3, 8]),
        max_preemptions=st.sampled_from([0, 1, 4]),
        prefix_cache=st.booleans(),
    )
    def begin(self, **settings: Any) -> None:
        self.driver = Driver(config=small_config(queue_limit=8, queue_timeout_s=3.0, **settings), step_s=0.01)
        self.allowance: dict[str, int] = {}
        self.prompts: dict[str, list[int]] = {}
        self.wishes: dict[str, tuple[int, int]] = {}
        self.cut: set[tuple[str, int]] = set()
        self.cancelled: set[str] = set()
        self.paused: set[str] = set()
        self.count = 0

    @rule(
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=20),
        max_tokens=st.integers(1, 14),
        n=st.sampled_from([1, 1, 1, 2, 4]),
        part=st.sampled_from([0.0, 0.4, 1.0, 1.0, 1.0]),
        tier=st.sampled_from([0, 0, 1]),
        share=st.sampled_from(["a", "b", "c"]),
        weight=st.sampled_from([1.0, 0.5, 3.0]),
        domain=st.sampled_from([None, b"a", b"b"]),
        prompt_logprobs=st.sampled_from([None, None, None, 1]),
    )
    def submit(self, prompt: list[int], max_tokens: int, n: int, part: float, **kwargs: Any) -> None:
        request_id = f"r{self.count}"
        allowance = int(max_tokens * n * part)
        waiting = self.driver.engine.load().waiting
        fits = -(-(len(prompt) + max_tokens - 1) // 4) <= self.driver.config.blocks
        if not fits or waiting == 8:
            with pytest.raises(RequestRejected) as refused:
                self.driver.submit(request_id, prompt, max_tokens=max_tokens, n=n, allowance=allowance, **kwargs)
            assert refused.value.code == ("queue_full" if fits else "cannot_fit")
            return
        self.driver.submit(request_id, prompt, max_tokens=max_tokens, n=n, allowance=allowance, **kwargs)
        self.count += 1
        self.allowance[request_id] = allowance
        self.prompts[request_id] = prompt
        self.wishes[request_id] = (max_tokens, n)

    def pick(self, number: int) -> str:
        ids = list(self.prompts)
        return ids[number % len(ids)]

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.driver.step()

    @precondition(lambda self: self.prompts)
    @rule(number=st.integers(0, 99), more=st.integers(-3, 9))
    def allow(self, number: int, more: int) -> None:
        request_id = self.pick(number)
        allowance = self.allowance[request_id] + more
        self.driver.engine.allow(request_id, allowance)
        self.allowance[request_id] = max(self.allowance[request_id], allowance)

    @precondition(lambda self: self.prompts)
    @rule(number=st.integers(0, 99), paused=st.booleans())
    def pause(self, number: int, paused: bool) -> None:
        request_id = self.pick(number)
        self.driver.engine.pause(request_id, paused)
        (self.paused.add if paused else self.paused.discard)(request_id)

    @precondition(lambda self: self.prompts)
    @rule(number=st.integers(0, 99), choice=st.sampled_from([None, 0, 1, 3]), kept=st.sampled_from([None, 0, 2]))
    def cancel(self, number: int, choice: int | None, kept: int | None) -> None:
        request_id = self.pick(number)
        delivered = None if kept is None else dict.fromkeys([choice] if choice is not None else range(4), kept)
        self.driver.engine.cancel(request_id, choice=choice, delivered=delivered)
        if request_id not in self.driver.finished:
            self.cut |= {(request_id, each) for each in range(4) if choice in {None, each}}
            if choice is None:
                self.cancelled.add(request_id)
        self.driver.engine.check()

    @rule()
    def wait(self) -> None:
        self.driver.clock.now += 1.1

    @invariant()
    def tokens_are_right_and_within_the_allowance(self) -> None:
        if not hasattr(self, "driver"):
            return
        generated = dict.fromkeys(self.prompts, 0)
        for (request_id, _), tokens in self.driver.tokens.items():
            generated[request_id] += len(tokens)
            assert tokens == self.driver.model.continuation(self.prompts[request_id], len(tokens))
        assert all(generated[request_id] <= self.allowance[request_id] for request_id in generated)

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        driver = self.driver
        for request_id in self.prompts:
            driver.engine.pause(request_id, False)
            driver.engine.allow(request_id, 1000)
        driver.run()
        assert set(driver.finished) == set(self.prompts), "everyone accepted finishes exactly once"
        assert driver.engine.pool.held == 0
        for request_id, finish in driver.finished.items():
            counters = finish.counters
            max_tokens, n = self.wishes[request_id]
            assert finish.error is None
            assert counters.prompt_tokens == counters.computed_tokens + counters.cached_tokens
            assert counters.generated_tokens == counters.billed_tokens + counters.wasted_tokens
            assert counters.generated_tokens == sum(len(driver.text(request_id, choice)) for choice in range(n))
            if counters.generated_tokens:
                assert counters.prompt_tokens == len(self.prompts[request_id])
            if finish.reason == FinishReason.TIMEOUT:
                assert request_id not in driver.started
            elif request_id not in self.cancelled:
                for choice in range(n):
                    assert (request_id, choice) in self.cut or len(driver.text(request_id, choice)) == max_tokens


EngineMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestEngine = EngineMachine.TestCase
