"""When a request's tokens came, for the metrics."""

import time

from gateway import metrics
from inference.protocol.usage import Counters


class Timings:
    """One request's, from its admission on. `counted`: whether it is this process that reports the request."""

    def __init__(self, model: str, endpoint: str, *, counted: bool) -> None:
        self._model = model
        self._endpoint = endpoint
        self._counted = counted
        self._started_at = time.monotonic()
        self._first_at: float | None = None
        self._last_at: float | None = None
        metrics.entered(model)

    def tokens_came(self, now: float) -> None:
        if self._first_at is None:
            self._first_at = now
            if self._counted:
                metrics.first_token(self._model, now - self._started_at)
        self._last_at = now

    def ended(self, outcome: str, counters: Counters, *, longest_choice: int) -> None:
        """`longest_choice`: tokens of the choice that has most."""
        if not self._counted:
            return
        per_token_s = None
        if longest_choice > 1 and self._first_at is not None and self._last_at is not None:
            per_token_s = (self._last_at - self._first_at) / (longest_choice - 1)
        seconds = time.monotonic() - self._started_at
        metrics.ended(self._model, self._endpoint, outcome, seconds=seconds, per_token_s=per_token_s, counters=counters)

    def left(self) -> None:
        """The request is in flight no longer."""
        metrics.left(self._model)
