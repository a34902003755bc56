"""A request and its sequences: one for each choice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from inference.blocks import BlockTable
from inference.protocol.frames import Submit
from inference.protocol.usage import Counters, FinishReason

if TYPE_CHECKING:
    from inference.fairness import Share
    from inference.scheduler import Tier

Tokens = np.ndarray[tuple[int], np.dtype[np.int32]]

WAITING, RUNNING, ENDED = range(3)


class Request:
    """One accepted submit. The engine fills it; the scheduler reads it and keeps `remaining`."""

    __slots__ = (
        "aged",
        "allowance",
        "arrived_at",
        "block_s_at",
        "counters",
        "ended_at",
        "error",
        "first_token_at",
        "order",
        "paused",
        "prompt",
        "prompt_covered",
        "prompt_told",
        "reason",
        "remaining",
        "root",
        "sequences",
        "share",
        "started_at",
        "submit",
        "tier",
        "uncreated",
    )

    def __init__(
        self, submit: Submit, prompt: Tokens, *, order: int, arrived_at: float, root: bytes | None, share: Share, tier: Tier
    ) -> None:
        self.submit = submit
        self.prompt = prompt
        self.order = order
        self.arrived_at = arrived_at
        self.root = root
        """Where its keys in the prefix index begin; None: it neither reads nor writes there."""
        self.share = share
        self.tier = tier
        self.allowance = submit.allowance
        self.remaining = submit.allowance
        """Tokens that may still be generated; a scheduled one is counted already."""
        self.paused = False
        self.aged = False
        """It waited so long that higher tiers let it pass and don't preempt it."""
        self.sequences: list[Sequence] = []
        self.uncreated = list(range(submit.sampling.n))
        """Choices that begin once the first one has computed the prompt."""
        self.counters = Counters()
        self.prompt_covered = 0
        """Prompt tokens that are accounted for, as computed or as cached."""
        self.prompt_told = 0
        """Prompt tokens whose log-probability was given out."""
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self.ended_at: float | None = None
        self.block_s_at = 0.0
        """When counters.kv_block_s was last brought up to date."""
        self.reason: FinishReason | None = None
        self.error: str | None = None

    @property
    def stalled(self) -> bool:
        """Nothing of it may run until somebody allows or resumes it."""
        return self.paused or self.remaining <= 0

    @property
    def tells_prompt(self) -> bool:
        """Log-probabilities of prompt tokens are wanted and not all given yet."""
        return self.submit.sampling.prompt_logprobs is not None and self.prompt_told < len(self.prompt)

    @property
    def live(self) -> bool:
        return any(sequence.state != ENDED for sequence in self.sequences)

    def block_seconds(self, now: float) -> float:
        return sum(sequence.table.block_seconds(now) for sequence in self.sequences)


class Sequence:
    """One choice of a request: its tokens, and the blocks that hold the K and V of the first `computed` of them."""

    __slots__ = (
        "choice",
        "computed",
        "covered",
        "delivered",
        "ending",
        "generated",
        "keys",
        "length",
        "limit",
        "named",
        "preemptions",
        "prefilling",
        "prompt_length",
        "protected",
        "queued",
        "rank",
        "request",
        "row",
        "scheduled",
        "share",
        "state",
        "table",
        "tokens",
    )

    def __init__(self, request: Request, choice: int, *, limit: int, table: BlockTable, stop_ids: frozenset[int]) -> None:
        self.request = request
        self.share = request.share
        self.choice = choice
        self.rank = (request.tier.number, request.order, choice)
        """Who goes first, and last is preempted."""
        self.prompt_length = len(request.prompt)
        self.limit = limit
        """Length at which it ends: prompt + max_tokens, or the context length."""
        self.tokens: Tokens = np.empty(limit, dtype=np.int32)
        self.tokens[: self.prompt_length] = request.prompt
        self.length = self.prompt_length
        self.computed = 0
        self.covered = 0
        """The most that was ever computed: what lies below is recomputed, not new."""
        self.generated = 0
        self.delivered: int | None = None
        """Tokens to bill; None: all."""
        self.table = table
        self.keys: list[bytes] = []
        """Names of its first full blocks in the prefix index."""
        self.named = 0
        """Its first blocks that need no recording in the prefix index any more."""
        self.ending = stop_ids
        """Tokens that end it."""
        self.state = WAITING
        self.queued = False
        self.row = -1
        """Its row in the step's tables while it runs."""
        self.scheduled = 0
        """Tokens it brings to the current step."""
        self.prefilling = False
        self.preemptions = 0
        self.protected = False
        """It holds all the blocks it can ever need, and is no victim unless it is stalled."""

    @property
    def pending(self) -> int:
        """Known tokens whose K and V aren't in the cache."""
        return self.length - self.computed

    def prompt_rows(self, count: int) -> range:
        """Positions among its next `count` tokens whose logits tell the next prompt token's log-probability, as far as that is wanted."""
        request = self.request
        if not request.tells_prompt:
            return range(0)
        return range(max(self.computed, request.prompt_told - 1), min(self.computed + count, self.prompt_length - 1))

    def count_within_rows(self, count: int, rows: int) -> int:
        """The most of its next `count` tokens that need at most `rows` prompt rows."""
        over = len(self.prompt_rows(count)) - rows
        return count if over <= 0 else min(self.computed + count, self.prompt_length - 1) - over - self.computed

    @property
    def billed(self) -> int:
        return self.generated if self.delivered is None else min(self.delivered, self.generated)

    def __repr__(self) -> str:
        return f"Sequence({self.request.submit.request_id!r}, choice={self.choice}, {self.computed}/{self.length})"
