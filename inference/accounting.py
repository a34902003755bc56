"""What a request cost: the rules by which its counters grow (inference.protocol.usage says what each means)."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

from inference.protocol.usage import Counters
from inference.request import Request, Sequence

_BLOCK_SECONDS_EVERY_S = 0.5  # live block-seconds are summed anew no more often: it takes a pass over the request's blocks
_SMOOTHING = 0.1


def note_reused(sequence: Sequence) -> None:
    """A sequence begins with `computed` reused tokens. Those its request hadn't accounted for yet are cached ones."""
    request = sequence.request
    reused = min(sequence.computed, sequence.prompt_length)
    if reused > request.prompt_covered:
        request.counters.cached_tokens += reused - request.prompt_covered
        request.prompt_covered = reused
    sequence.covered = max(sequence.covered, sequence.computed)


def note_computed(sequence: Sequence, end: int) -> int:
    """Tokens from `computed` up to `end` were run. Returns how many of them are the prompt's and were new."""
    request, begin = sequence.request, sequence.computed
    prompt_end = min(end, sequence.prompt_length)
    new = max(0, prompt_end - max(begin, request.prompt_covered))
    again = max(0, prompt_end - begin) - new + max(0, min(end, sequence.covered) - max(begin, sequence.prompt_length))
    request.prompt_covered = max(request.prompt_covered, prompt_end)
    request.counters.computed_tokens += new
    request.counters.recomputed_tokens += again
    sequence.covered = max(sequence.covered, end)
    return new


def counters_of(request: Request, now: float) -> Counters:
    """A copy of the request's totals, up to now or up to its end."""
    counters = request.counters
    counters.prompt_tokens = counters.computed_tokens + counters.cached_tokens
    counters.generated_tokens = sum(sequence.generated for sequence in request.sequences)
    counters.billed_tokens = sum(sequence.billed for sequence in request.sequences)
    counters.wasted_tokens = counters.generated_tokens - counters.billed_tokens
    started = request.started_at
    counters.queue_s = (now if started is None else started) - request.arrived_at
    if started is not None:
        first = request.first_token_at
        counters.prefill_s = (now if first is None else first) - started
        counters.decode_s = 0.0 if first is None else now - first
        if request.ended_at is not None or now - request.block_s_at >= _BLOCK_SECONDS_EVERY_S:
            counters.kv_block_s = request.block_seconds(now)
            request.block_s_at = now
    return copy(counters)


@dataclass(slots=True)
class Totals:
    """Of one engine since its start."""

    steps: int = 0
    computed: int = 0
    cached: int = 0
    generated: int = 0
    failed: int = 0
    step_s: float = 0.0
    """A step's duration, of late."""
    start_every_s: float = 0.0
    """Seconds between two requests that leave the queue, of late."""
    _last_start: float | None = None

    def note_step(self, took_s: float) -> None:
        self.steps += 1
        self.step_s += (took_s - self.step_s) * (_SMOOTHING if self.steps > 1 else 1)

    def note_start(self, now: float, cached_tokens: int) -> None:
        self.cached += cached_tokens
        if self._last_start is not None:
            self.start_every_s += (now - self._last_start - self.start_every_s) * _SMOOTHING
        self._last_start = now
