"""The engine's settings."""

from dataclasses import dataclass, field

from inference.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class FairnessConfig:
    """How shares of one tier take turns."""

    quantum: int | None = None
    """Service a share gets per round, in cost units; None and the upper limit: one step's token budget."""
    preempt_lead: float = 0.5
    """A share that leads a blocked one by more than this part of the half bound gives up a sequence for it."""


@dataclass(frozen=True, kw_only=True)
class TierConfig:
    """How strict tiers let the lower ones through."""

    ageing_s: float = 10.0
    """A request of a lower tier that has waited this long may go before higher tiers."""
    floor_every: int = 8
    """At most one admission in so many goes to an aged request of a lower tier."""
    floor_part: float = 1 / 16
    """Part of the step's token budget that higher tiers leave to prefill work of lower ones."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Sizes and bounds of one engine."""

    block_size: int = 16
    blocks: int | None = None
    """None: as many as `kv_memory_bytes` holds."""
    kv_memory_bytes: int | None = None
    """None: a modest part of what is available (inference.memory)."""
    step_tokens: int = 512
    """Token budget of one step."""
    prefill_chunk: int = 512
    """Cap of one request's part of a step."""
    max_sequences: int = 64
    """Sequences (choices) that hold blocks at a time."""
    max_choices: int = 128
    """Largest `n`; choices beyond max_sequences are served in waves."""
    max_logprobs: int = 128
    """Most alternatives that may be asked for at each token."""
    prompt_logprob_rows: int = 64
    """Rows of logits a step may spend on prompt log-probabilities: bounds their memory."""
    queue_limit: int = 1024
    queue_timeout_s: float = 60.0
    max_preemptions: int = 4
    """After so many a sequence gets all its blocks at once and is no victim any more."""
    prefix_cache: bool = True
    prefix_secret: bytes | None = None
    """Key of the prefix hashes; None: drawn at start."""
    fairness: FairnessConfig = field(default_factory=FairnessConfig)
    tiers: TierConfig = field(default_factory=TierConfig)

    def __post_init__(self) -> None:
        for name in (
            "block_size",
            "step_tokens",
            "prefill_chunk",
            "max_sequences",
            "max_choices",
            "max_logprobs",
            "prompt_logprob_rows",
            "queue_limit",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.blocks is not None and self.blocks < 1:
            raise ConfigError(f"blocks must be at least 1, not {self.blocks}")
        if self.queue_timeout_s <= 0:
            raise ConfigError(f"queue_timeout_s must be above 0, not {self.queue_timeout_s}")
        if self.max_preemptions < 0:
            raise ConfigError(f"max_preemptions must not be negative, not {self.max_preemptions}")
        if not 1 <= self.quantum <= self.step_tokens:
            raise ConfigError(f"fairness.quantum must lie between 1 and step_tokens ({self.step_tokens}), not {self.quantum}")

    @property
    def quantum(self) -> int:
        return self.step_tokens if self.fairness.quantum is None else self.fairness.quantum
