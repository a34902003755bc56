"""What a running generation says, and what may be asked of it: `gateway.generation` makes these, `api` and `realtime` answer with them."""

from dataclasses import dataclass, field
from typing import Literal

from inference.protocol.sampling import Sampling
from inference.protocol.usage import Counters

FinishCause = Literal["stop", "length"]
FailureCode = Literal["engine_error", "worker_lost", "timeout", "cancelled", "slow_reader", "revoked", "hold_lost"]
StopReason = Literal["budget"] | str | int | None
"""Beside the cause: "budget", the stop string that was found, or the stop token id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A checked request, in the engine's own terms."""

    digest: str
    """SHA-256 of the presented key, in hex."""
    request_id: str
    endpoint: str
    model: str
    prompt: list[int]
    sampling: Sampling
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    echo: bool = False
    """Prompt log-probabilities are wanted (sampling.prompt_logprobs says how many)."""
    resumable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    token: int
    text: str
    raw: bytes
    logprob: float
    top: tuple[tuple[int, str, bytes, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The engine took the request up. cached_tokens is final."""

    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScored:
    """Log-probabilities of the whole prompt, once, before the first delta; the first token's is None."""

    tokens: tuple[TokenLogprob | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New text of one choice. Text is only what is certain: no part of a possible stop string, no half character."""

    choice: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    next_index: int
    """Index of the choice's next token: where a resumed stream would go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceFinished:
    choice: int
    cause: FinishCause
    stop_reason: StopReason = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The last event of a generation that came to its end. It is settled by now: slot and hold are free."""

    counters: Counters


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The last event of a generation that didn't: never an invented finish. What was computed is settled."""

    code: FailureCode
    message: str
    counters: Counters = field(default_factory=Counters)


Event = Started | PromptScored | Delta | ChoiceFinished | Finished | Failed
