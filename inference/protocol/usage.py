"""What a request cost, as counted where it was computed."""

from enum import StrEnum

from msgspec import Struct


class FinishReason(StrEnum):
    """Why a choice (or a whole request) ended."""

    STOP = "stop"
    """An end-of-sequence or stop token was sampled, or the gateway cut at a stop string."""
    LENGTH = "length"
    """`max_tokens` or the context length was reached."""
    BUDGET = "budget"
    """A token budget ended; reported to callers as `length` with `stop_reason: "budget"`."""
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    """It waited in the queue for longer than the bound."""
    ERROR = "error"
    CRASH = "crash"
    """Settled from the journal of a worker that died."""


class Counters(Struct, kw_only=True):
    """Cumulative totals of one request, over all its choices. Tokens, seconds and block-seconds only ever grow.

    Invariants: generated = billed + wasted; prompt = computed + cached.
    """

    prompt_tokens: int = 0
    computed_tokens: int = 0
    """Prompt tokens that were run through the model for the first time."""
    cached_tokens: int = 0
    """Prompt tokens served from the prefix cache of the request's own domain."""
    recomputed_tokens: int = 0
    """Tokens computed again after a preemption. Not billed."""
    generated_tokens: int = 0
    billed_tokens: int = 0
    wasted_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    kv_block_s: float = 0.0
    """Blocks held × seconds, a shared block's time divided among its sharers."""
    preemptions: int = 0


class UsageEvent(Struct, kw_only=True):
    """One settled request, as appended to the Redis stream `lockgate:usage` (field `event`, msgpack of this struct).

    `(worker, epoch, sequence)` is unique for ever. `account` is opaque to the engine: the gateway put it in the submit frame.
    """

    worker: str
    epoch: str
    sequence: int
    request_id: str
    account: str
    occurred_at_ms: int
    """Unix milliseconds, stamped once: the ledger's partition key."""
    reason: FinishReason
    counters: Counters
