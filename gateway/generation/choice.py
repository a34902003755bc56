"""One choice of a generation: its tokens in order, its text, and how it ended."""

from collections.abc import Container

from gateway.events import ChoiceFinished, Delta, FinishCause, StopReason
from gateway.text import TextStream
from inference.protocol.frames import ChoiceEnd, TokenOut
from inference.protocol.usage import FinishReason


class MissingTokens(Exception):
    """The worker skipped tokens: what came so far can't be continued."""


class Choice:
    """Takes tokens and gives deltas. A token that may end the choice is kept back until it is clear whether it did: then it is no text."""

    __slots__ = ("_ending", "_kept_back", "_text", "finished", "generated", "index", "told")

    def __init__(self, index: int, text: TextStream, *, ending: Container[int]) -> None:
        self.index = index
        self._text = text
        self._ending = ending
        self._kept_back: TokenOut | None = None
        self.generated = 0
        """Tokens that came, those past a cut included."""
        self.finished: ChoiceFinished | None = None
        self.told = False
        """Whether the reader has been told that it finished. Kept by the generation."""

    @property
    def cut(self) -> bool:
        """Whether a stop string ended it."""
        return self._text.cut is not None

    @property
    def delivered(self) -> int:
        """Tokens that count: up to the cut, if there was one."""
        cut = self._text.cut
        return self.generated if cut is None else cut.tokens

    def push(self, token: TokenOut) -> bool:
        """Take a token; whether a stop string was completed by it. One that came before is ignored, after a cut all are."""
        if token.index < self.generated:
            return False
        if token.index > self.generated:
            raise MissingTokens(f"token {token.index} of choice {self.index} came after {self.generated} tokens")
        self.generated += 1
        if self.finished is not None:
            return False
        before, self._kept_back = self._kept_back, None
        if before is not None and self._push(before):
            return True
        if token.token in self._ending:
            self._kept_back = token
            return False
        return self._push(token)

    def take(self) -> Delta | None:
        return self._text.take()

    def end(self, end: ChoiceEnd, *, stop_token_ids: Container[int]) -> Delta | None:
        """The choice ended by itself. Returns its last text, if there is any."""
        last = self._kept_back
        if last is not None and last.token != end.stop_token:
            self._push(last)
        self._kept_back = None
        if end.reason is FinishReason.STOP:
            return self._finish("stop", end.stop_token if end.stop_token in stop_token_ids else None)
        return self._finish("length", None)

    def end_by_budget(self) -> Delta | None:
        """No more tokens will be granted. Returns its last text, if there is any."""
        if self._kept_back is not None:
            self._push(self._kept_back)
            self._kept_back = None
        return self._finish("length", "budget")

    def end_by_cut(self) -> Delta | None:
        """A stop string was found. Returns the text before it that is still here."""
        return self._finish("stop", None)

    def _push(self, token: TokenOut) -> bool:
        self._text.push(token.token, token.logprob, token.top_logprobs)
        return self._text.cut is not None

    def _finish(self, cause: FinishCause, stop_reason: StopReason) -> Delta | None:
        delta = self._text.finish()
        if self._text.cut is not None:
            cause, stop_reason = "stop", self._text.cut.stop
        self.finished = ChoiceFinished(choice=self.index, cause=cause, stop_reason=stop_reason)
        return delta
