"""Runs an engine in tests: submits with defaults, steps with checks, everything collected."""

from dataclasses import dataclass, field
from typing import Any

from inference.config import EngineConfig
from inference.engine import Engine, StepOutput
from inference.protocol.frames import ChoiceEnd, Finish, PromptLogprobs, Started, Submit, TokenOut
from inference.protocol.sampling import Sampling
from tests.inference.scripted_model import ScriptedModel

STEPS = 20_000


class Clock:
    """Time that moves when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def small_config(**changes: Any) -> EngineConfig:
    settings: dict[str, Any] = {"block_size": 4, "blocks": 64, "step_tokens": 32, "prefill_chunk": 16, "max_sequences": 8}
    return EngineConfig(**(settings | changes))


def submit(
    request_id: str = "r1",
    prompt: list[int] | None = None,
    *,
    share: str = "acme",
    weight: float = 1.0,
    tier: int = 0,
    allowance: int | None = None,
    domain: bytes | None = b"acme",
    ttl_s: float = 3600.0,
    **sampling: Any,
) -> Submit:
    """A greedy request that doesn't stop at the end token; its allowance is no bound unless given."""
    wishes = Sampling(**({"max_tokens": 8, "temperature": 0.0, "ignore_eos": True} | sampling))
    return Submit(
        request_id=request_id,
        prompt=[1, 2, 3, 4, 5] if prompt is None else prompt,
        sampling=wishes,
        allowance=wishes.max_tokens * wishes.n if allowance is None else allowance,
        account="acme",
        share=share,
        weight=weight,
        tier=tier,
        cache_domain=domain,
        cache_ttl_s=ttl_s,
    )


@dataclass
class Driver:
    """An engine, its clock, and all that came out of it."""

    config: EngineConfig = field(default_factory=small_config)
    model: Any = field(default_factory=ScriptedModel)
    clock: Clock = field(default_factory=Clock)
    step_s: float = 0.01
    tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    outs: dict[tuple[str, int], list[TokenOut]] = field(default_factory=dict)
    started: dict[str, Started] = field(default_factory=dict)
    ends: dict[tuple[str, int], ChoiceEnd] = field(default_factory=dict)
    finished: dict[str, Finish] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[PromptLogprobs]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine = Engine(self.model, self.config, clock=self.clock)

    def submit(self, *args: Any, **kwargs: Any) -> str:
        made = submit(*args, **kwargs)
        self.engine.submit(made)
        return made.request_id

    def step(self) -> StepOutput:
        output = self.engine.step()
        self.engine.check()
        self.clock.now += self.step_s
        for started in output.started:
            assert started.request_id not in self.started, "a request starts once"
            self.started[started.request_id] = started
        for token in output.tokens:
            got = self.tokens.setdefault((token.request_id, token.choice), [])
            assert token.index == len(got), "token indices have no gap"
            assert (token.request_id, token.choice) not in self.ends, "nothing comes after the end"
            got.append(token.token)
            self.outs.setdefault((token.request_id, token.choice), []).append(token)
        for told in output.prompt_logprobs:
            self.prompt_logprobs.setdefault(told.request_id, []).append(told)
        for end in output.ends:
            assert (end.request_id, end.choice) not in self.ends, "a choice ends once"
            self.ends[end.request_id, end.choice] = end
        for finish in output.finished:
            assert finish.request_id not in self.finished, "a request finishes once"
            self.finished[finish.request_id] = finish
        return output

    def run(self, *, until: str | None = None) -> None:
        """Step until nothing can run, or until one request has finished."""
        for _ in range(STEPS):
            if until in self.finished or not self.engine.has_work:
                return
            self.step()
        raise AssertionError(f"still at work after {STEPS} steps")

    def text(self, request_id: str = "r1", choice: int = 0) -> list[int]:
        return self.tokens.get((request_id, choice), [])
