"""Log-probabilities as chat and as plain completions report them."""

from collections.abc import Sequence

from msgspec import Struct

from gateway.events import TokenLogprob
from gateway.text import Tokenizer

LOWEST = -9999.0
"""Stands for minus infinity, which JSON can't say."""


class TopLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, frozen=True):
    content: list[ContentLogprob]
    refusal: None = None


def chat_logprobs(tokens: Sequence[TokenLogprob], alternatives: int) -> ChatLogprobs:
    """The `logprobs` object of a chat choice, with up to so many alternatives for each token."""
    return ChatLogprobs(
        [
            ContentLogprob(
                entry.text,
                max(entry.logprob, LOWEST),
                list(entry.raw),
                [TopLogprob(text, max(value, LOWEST), list(raw)) for _, text, raw, value in entry.top[:alternatives]],
            )
            for entry in tokens
        ]
    )


class CompletionLogprobs(Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


def completion_name(raw: bytes) -> str:
    """A token's text, or its bytes where they are no whole characters: so no two tokens of a table have one name."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class CompletionScribe:
    """Writes the `logprobs` objects of one plain completion's choice, piece by piece: offsets go on over the whole text."""

    def __init__(self, tokenizer: Tokenizer, alternatives: int, prompt: Sequence[int], *, offset: int = 0) -> None:
        self._tokenizer = tokenizer
        self._alternatives = alternatives
        self._text = tokenizer.detokenizer(prompt)
        self._offset = offset

    def write(self, tokens: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """The next tokens."""
        return self._object([entry.token for entry in tokens], tokens)

    def write_prompt(self, prompt: Sequence[int], tokens: Sequence[TokenLogprob | None]) -> CompletionLogprobs:
        """The prompt's tokens; the first has no log-probability."""
        return self._object(prompt, tokens)

    def _object(self, ids: Sequence[int], entries: Sequence[TokenLogprob | None]) -> CompletionLogprobs:
        offsets = []
        for token in ids:
            offsets.append(self._offset)
            self._offset += len(self._text.push(token))
        return CompletionLogprobs(
            tokens=[completion_name(self._tokenizer.token_bytes(token)) for token in ids],
            token_logprobs=[None if entry is None else max(entry.logprob, LOWEST) for entry in entries],
            top_logprobs=[self._top(entry) for entry in entries] if self._alternatives else None,
            text_offset=offsets,
        )

    def _top(self, entry: TokenLogprob | None) -> dict[str, float] | None:
        if entry is None:
            return None
        table: dict[str, float] = {}
        for _, _, raw, value in entry.top[: self._alternatives]:
            table.setdefault(completion_name(raw), max(value, LOWEST))
        table.setdefault(completion_name(entry.raw), max(entry.logprob, LOWEST))
        return table


def join(pieces: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    """Pieces of one choice as one object."""
    top = [piece.top_logprobs for piece in pieces]
    return CompletionLogprobs(
        tokens=[token for piece in pieces for token in piece.tokens],
        token_logprobs=[value for piece in pieces for value in piece.token_logprobs],
        top_logprobs=None if None in top else [table for tables in top if tables is not None for table in tables],
        text_offset=[offset for piece in pieces for offset in piece.text_offset],
    )
