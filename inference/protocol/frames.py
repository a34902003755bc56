"""Frames between gateway and worker: msgpack arrays of tagged structs, each behind a 4-byte big-endian length.

gateway → worker: Hello, Submit, Allow, Cancel, Pause, Attach
worker → gateway: Challenge, Welcome, Tokens, Finish, Reject, Attached, Load, Draining
"""

from msgspec import Struct, field, msgpack

from inference.protocol.sampling import Sampling
from inference.protocol.usage import Counters, FinishReason

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 64 * 1024 * 1024


class Frame(Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """Base of all frames."""


# --- gateway → worker ---------------------------------------------------------------------------------------------------------


class Hello(Frame, frozen=True):
    """First frame of a link. On TCP `proof` = HMAC-SHA256(shared secret, Challenge.nonce + gateway_id)."""

    version: int
    gateway_id: str
    proof: bytes = b""
    nonce: bytes = b""
    """On TCP, for the worker's own proof: Welcome.proof."""


class Lease(Struct, frozen=True, kw_only=True, array_like=True):
    """What the worker claims before the first step and keeps alive while the request lives. Key names are opaque to the worker.

    claim: if HGET hold_key "state" is "held", HSET it to "claimed" with field "worker", and renew; else the request doesn't run.
    renew: ZADD key XX (Redis TIME in ms + ttl_ms) member, for every key of expiry_keys, well before ttl_ms is over.
    """

    hold_key: str
    expiry_keys: tuple[str, ...]
    member: str
    ttl_ms: int


class Submit(Frame, frozen=True):
    request_id: str
    prompt: list[int]
    sampling: Sampling
    allowance: int
    """Tokens that may be generated so far, over all choices together. At the allowance the request waits for Allow."""
    account: str
    share: str
    """Whose turn it is, for fairness. Opaque."""
    weight: float = 1.0
    tier: int = 0
    """Priority: a lower tier is served before a higher one."""
    cache_domain: bytes | None = None
    """None: read nothing from the prefix cache and leave nothing in it."""
    cache_ttl_s: float = 3600.0
    lease: Lease | None = None
    """None only in tests and tools that run without admission."""
    resumable: bool = False
    """Keep running for orphan_grace_s when the gateway's link breaks; keep all tokens for Attach."""


class Allow(Frame, frozen=True):
    request_id: str
    allowance: int
    """The new cumulative total; a smaller one than known is ignored."""


class Cancel(Frame, frozen=True):
    """End a request or one choice. `delivered`: tokens of each choice up to the cut; what was generated past it is wasted, not billed.

    Without `delivered` everything generated is billed.
    """

    request_id: str
    reason: FinishReason = FinishReason.CANCELLED
    choice: int | None = None
    delivered: dict[int, int] | None = None


class Pause(Frame, frozen=True):
    request_id: str
    paused: bool


class Attach(Frame, frozen=True):
    """Take over the stream of a resumable request, from these token indices (per choice) on."""

    request_id: str
    next_index: dict[int, int]


# --- worker → gateway ---------------------------------------------------------------------------------------------------------


class ModelCard(Struct, frozen=True, kw_only=True):
    """Everything the gateway needs to render, tokenise and describe the model."""

    name: str
    architecture: str
    parameters: int
    precision: str
    vocab_size: int
    context_length: int
    max_prompt_tokens: int
    """What can ever fit: the context length or the KV pool, whichever is smaller, less one."""
    bos_token: str | None
    eos_token: str | None
    eos_token_ids: tuple[int, ...]
    chat_template: str | None
    tokenizer_json: str
    """The `tokenizers` library's own format."""
    fingerprint: str
    created: int
    """Unix seconds."""


class Challenge(Frame, frozen=True):
    """First frame from a worker, on any link."""

    nonce: bytes


class Welcome(Frame, frozen=True):
    version: int
    worker_id: str
    epoch: str
    card: ModelCard
    max_choices: int
    """The largest `n` a request may ask for."""
    proof: bytes = b""
    """On TCP: HMAC-SHA256(shared secret, "lockgate worker" + Hello.nonce + worker_id)."""


class TokenOut(Struct, frozen=True, array_like=True):
    """One generated token."""

    request_id: str
    choice: int
    index: int
    """0 for the choice's first generated token."""
    token: int
    logprob: float | None = None
    top_logprobs: list[tuple[int, float]] | None = None
    """(token, log-probability), most likely first."""


class PromptLogprobs(Struct, frozen=True, array_like=True):
    """Log-probabilities of prompt tokens start, start+1, … given what precedes them (the first token of a prompt has none)."""

    request_id: str
    start: int
    logprobs: list[float | None]
    top_logprobs: list[list[tuple[int, float]] | None]


class ChoiceEnd(Struct, frozen=True, array_like=True):
    """A choice ended by itself. `stop_token` is the stop token that was sampled (it is a generated, billed token, not text)."""

    request_id: str
    choice: int
    reason: FinishReason
    stop_token: int | None = None


class Started(Struct, frozen=True, array_like=True):
    """A request left the queue: what the cache gave it is known now."""

    request_id: str
    cached_tokens: int
    queue_s: float


class Tokens(Frame, frozen=True):
    """Everything one step gave to one gateway."""

    started: list[Started] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    tokens: list[TokenOut] = field(default_factory=list)
    ends: list[ChoiceEnd] = field(default_factory=list)


class Finish(Frame, frozen=True):
    """The last frame of a request, always sent exactly once after Submit was accepted. Its blocks are free by now."""

    request_id: str
    reason: FinishReason
    counters: Counters
    error: str | None = None


class Reject(Frame, frozen=True):
    """The request was never admitted by the worker: nothing was computed, nothing is billed.

    code: "queue_full" | "cannot_fit" | "invalid" | "hold_expired" | "draining" | "duplicate" | "not_found" (Attach) |
    "unavailable" (Redis didn't answer the claim)
    """

    request_id: str
    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None


class Attached(Frame, frozen=True):
    """Answer to Attach: the stream goes on from here; missing tokens follow as ordinary Tokens frames."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int


class Load(Frame, frozen=True):
    """Heartbeat on every link, and the same values (as a hash) in the registry."""

    running: int
    waiting: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    """Evictable blocks that hold reusable prefixes; part of neither free nor held."""
    draining: bool
    steps: int
    preemptions: int
    tokens_computed: int
    tokens_cached: int
    tokens_generated: int
    requests_failed: int
    step_ms_mean: float


class Draining(Frame, frozen=True):
    """No new Submit is taken on this worker; running requests go on to their end."""


FromGateway = Hello | Submit | Allow | Cancel | Pause | Attach
FromWorker = Challenge | Welcome | Tokens | Finish | Reject | Attached | Load | Draining

encoder = msgpack.Encoder()
gateway_decoder: msgpack.Decoder[FromWorker] = msgpack.Decoder(FromWorker)
"""What a gateway decodes with."""
worker_decoder: msgpack.Decoder[FromGateway] = msgpack.Decoder(FromGateway)
"""What a worker decodes with."""


def encode(frame: Frame) -> bytes:
    """The frame's bytes on the wire, its length in front."""
    body = encoder.encode(frame)
    return len(body).to_bytes(4, "big") + body
