"""How the next token of a request is chosen, and when the request ends on its own."""

from msgspec import Struct, field


class Sampling(Struct, frozen=True, kw_only=True):
    """Per-request sampling. The gateway has checked ranges; the engine checks again what could hurt it (ids against the vocabulary)."""

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    """Choice i of a seeded request draws from the counter-based stream (seed, i)."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    """None: no log-probabilities. k: the sampled token's, and the k most likely tokens'."""
    prompt_logprobs: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    n: int = 1
