"""One choice's tokens on their way to text: detokenised, cut at stop strings, with only what is certain let out."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.events import Delta, TokenLogprob
from gateway.text.detokenizer import Detokenizer, TokenTable
from gateway.text.stop import StopMatcher


class TokenNames(TokenTable, Protocol):
    """What a text stream needs of a tokenizer."""

    def token_bytes(self, token: int) -> bytes:
        """The token's own bytes, a control token's too."""
        ...

    def token_text(self, token: int) -> str:
        """The token's own text, for log-probabilities."""
        ...


def token_logprob(names: TokenNames, token: int, logprob: float, top: Sequence[tuple[int, float]]) -> TokenLogprob:
    """A token's log-probability and its alternatives', with the text and bytes of each."""
    return TokenLogprob(
        token=token,
        text=names.token_text(token),
        raw=names.token_bytes(token),
        logprob=logprob,
        top=tuple((other, names.token_text(other), names.token_bytes(other), value) for other, value in top),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where a stop string ended the text."""

    stop: str
    tokens: int
    """Tokens up to and including the one that completed the stop string: what the choice is billed for."""


@dataclass(slots=True)
class _Entry:
    start: int
    """Length of the text before the token."""
    token: int
    logprob: TokenLogprob | None


class TextStream:
    """Text, tokens and log-probabilities of one choice. Give it every token in order; take what is certain as often as you like.

    For every way of calling `take` between pushes, the deltas joined are the same: text, tokens and log-probabilities alike.
    A token leaves with the first text at or behind its beginning. A token that begins at or behind a stop string's cut never leaves.

        stream.push(token, logprob, top)      # for each token; stop when stream.cut is set
        delta = stream.take()                 # after a batch of pushes; None if nothing has become certain
        delta = stream.finish()               # when the choice has ended, or after a cut
    """

    __slots__ = (
        "_choice",
        "_detokenizer",
        "_entries",
        "_include_stop",
        "_matcher",
        "_min_tokens",
        "_names",
        "_out",
        "_text",
        "cut",
        "next_index",
    )

    def __init__(
        self,
        tokenizer: TokenNames,
        *,
        choice: int = 0,
        prompt: Sequence[int] = (),
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._names = tokenizer
        self._choice = choice
        self._detokenizer = Detokenizer(tokenizer, prompt)
        self._matcher = StopMatcher(stop) if stop else None
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._entries: deque[_Entry] = deque()
        self._text = ""
        """Text not taken yet."""
        self._out = 0
        """Length of the text taken."""
        self.next_index = 0
        """Tokens pushed: the index of the next one."""
        self.cut: Cut | None = None

    def push(self, token: int, logprob: float | None = None, top: Sequence[tuple[int, float]] | None = None) -> None:
        """Take the choice's next token. Tokens after a cut are ignored."""
        if self.cut is not None:
            return
        start = self._out + len(self._text)
        self._entries.append(_Entry(start, token, None if logprob is None else token_logprob(self._names, token, logprob, top or ())))
        self.next_index += 1
        self._read(self._detokenizer.push(token))

    def _read(self, text: str) -> None:
        if not text:
            return
        before = self._out + len(self._text)
        self._text += text
        # As long as a choice owes tokens, a stop string can't end it: matching starts with the text of the first token after them.
        if self._matcher is None or self.next_index <= self._min_tokens:
            return
        unread = before - self._matcher.length
        match = self._matcher.push(text)
        if match is not None:
            end = match.end if self._include_stop else match.start
            self._text = self._text[: end + unread - self._out]
            self.cut = Cut(stop=match.stop, tokens=self.next_index)

    def take(self) -> Delta | None:
        """What has become certain since the last call; None if nothing has."""
        if self.cut is not None:
            return self._release(len(self._text))
        held = 0 if self._matcher is None else self._matcher.held
        return self._release(len(self._text) - held)

    def finish(self) -> Delta | None:
        """The rest, when no more tokens come; None if there is none. May still find a stop string in a character left open."""
        if self.cut is None:
            self._read(self._detokenizer.finish())
        if self.cut is None:
            return self._release(len(self._text), last=True)
        return self._release(len(self._text))

    def _release(self, length: int, *, last: bool = False) -> Delta | None:
        text = self._text[:length]
        self._text = self._text[length:]
        self._out += len(text)
        tokens: list[int] = []
        logprobs: list[TokenLogprob] = []
        while self._entries and (last or self._entries[0].start < self._out):
            entry = self._entries.popleft()
            tokens.append(entry.token)
            if entry.logprob is not None:
                logprobs.append(entry.logprob)
        if not text and not tokens:
            return None
        return Delta(choice=self._choice, text=text, tokens=tuple(tokens), logprobs=tuple(logprobs), next_index=self.next_index)
