"""Tokens to text, one at a time. Whatever the split, the pieces joined are the text of the whole."""

import codecs
from collections.abc import Sequence
from typing import Protocol

MAX_PENDING_BYTES = 3
"""A UTF-8 character has at most four bytes: three are the most that can wait for the rest."""

_LOOK_BACK_TOKENS = 64
"""How far back in a prompt a character left open is looked for; control tokens in between have no bytes."""

_Utf8 = codecs.getincrementaldecoder("utf-8")


class TokenTable(Protocol):
    """What a detokenizer needs of a tokenizer."""

    def text_bytes(self, token: int) -> bytes:
        """The bytes that the token adds to the text; none for a control token."""
        ...


def open_character(raw: bytes) -> bytes:
    """The bytes at the end of `raw` that begin a UTF-8 character without ending it."""
    decoder = _Utf8("replace")
    decoder.decode(raw)
    return decoder.getstate()[0]


class Detokenizer:
    """Incremental UTF-8 over the tokens' bytes: O(1) a token, and never more than three bytes held back.

    A model's own U+FFFD is a character like any other. Bytes that can't become a character turn into U+FFFD as soon as that is certain.
    A prompt may end inside a character: the character belongs to the new text then, and nothing else of the prompt does.
    """

    __slots__ = ("_decoder", "_fresh", "_table")

    def __init__(self, table: TokenTable, prompt: Sequence[int] = ()) -> None:
        self._table = table
        self._decoder = _Utf8("replace")
        self._fresh = True
        if left_open := self._left_open(prompt):
            self._decoder.decode(left_open)

    def _left_open(self, prompt: Sequence[int]) -> bytes:
        tail = b""
        for token in reversed(prompt[-_LOOK_BACK_TOKENS:]):
            tail = self._table.text_bytes(token) + tail
            if len(tail) > MAX_PENDING_BYTES:
                break
        return open_character(tail)

    def push(self, token: int) -> str:
        """The text that has become certain with this token; may be empty."""
        raw = self._table.text_bytes(token)
        if not raw:
            return ""
        self._fresh = False
        return self._decoder.decode(raw)

    def finish(self) -> str:
        """What was held back, now that no more tokens come. A character that only the prompt began is not new text."""
        return "" if self._fresh else self._decoder.decode(b"", final=True)
