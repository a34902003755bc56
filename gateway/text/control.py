"""Control tokens: only who may write them makes them.

The tokenizer itself is told to read no special token out of text (`encode_special_tokens`). A place where one is meant is marked with a
stand-in: an added token with the same matching flags, whose name holds a secret of this process, so that no caller can write it. The
tokenizer then splits the text exactly where it would have split it, and the stand-in's id is replaced by the real one.

In a chat the template's control tokens get stand-ins after rendering. A caller's text that contains one (or an end or beginning of
one, which a template could complete) is broken with a mark before rendering; marks are taken out when the stand-ins are in place.
"""

import re
import secrets
from collections.abc import Iterable, Sequence

import tokenizers

from gateway.text.vocabulary import AddedToken


class ControlTokens:
    """The special tokens of one tokenizer. Takes possession of it: adds the stand-ins, and turns special tokens in text off."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, added: Sequence[AddedToken]) -> None:
        special = [token for token in added if token.special and token.content]
        self.ids = frozenset(token.id for token in special)
        """Ids of all control tokens."""
        self._forgeable = self.ids - {self._unknown_id(tokenizer)}
        self.first_stand_in = max([tokenizer.get_vocab_size(with_added_tokens=True), *(token.id + 1 for token in added)])

        secret = secrets.token_hex(8)
        self._mark = f"\ue0f0{secret}\ue0f1"
        names = {token.content: f"\ue0f2{secret}.{place}\ue0f3" for place, token in enumerate(special)}
        self._names = names
        tokenizer.add_tokens(
            [
                tokenizers.AddedToken(
                    names[token.content],
                    lstrip=token.lstrip,
                    rstrip=token.rstrip,
                    single_word=token.single_word,
                    normalized=False,
                    special=False,
                )
                for token in special
            ]
        )
        tokenizer.encode_special_tokens = True
        self._real: dict[int, int] = {}
        for token in special:
            stand_in = tokenizer.token_to_id(names[token.content])
            assert stand_in is not None
            self._real[stand_in] = token.id
        self.first_stand_in = min(self._real, default=self.first_stand_in)

        longest_first = sorted(special, key=lambda token: len(token.content), reverse=True)
        patterns = [
            rf"(?<!\w){re.escape(token.content)}(?!\w)" if token.single_word else re.escape(token.content) for token in longest_first
        ]
        self._pattern = re.compile("|".join(patterns)) if patterns else None
        contents = [token.content for token in special]
        self._begun = tuple({content[:length] for content in contents for length in range(1, len(content))})
        self._ended = tuple({content[length:] for content in contents for length in range(1, len(content))})

    @staticmethod
    def _unknown_id(tokenizer: tokenizers.Tokenizer) -> int | None:
        name = getattr(tokenizer.model, "unk_token", None)
        return tokenizer.token_to_id(name) if isinstance(name, str) else None

    def stand_in(self, text: str) -> str:
        """The text with a stand-in for each control token written in it."""
        if self._pattern is None:
            return text
        names = self._names
        return self._pattern.sub(lambda found: names[found[0]], text)

    def defuse(self, text: str) -> str:
        """The text with a mark inside everything that could become a control token. Mostly the text itself."""
        if self._pattern is None or not text:
            return text
        mark = self._mark
        text = self._pattern.sub(lambda found: f"{found[0][0]}{mark}{found[0][1:]}", text)
        if text.endswith(self._begun):
            cut = len(text) - max(len(begun) for begun in self._begun if text.endswith(begun)) + 1
            text = f"{text[:cut]}{mark}{text[cut:]}"
        if text.startswith(self._ended):
            cut = max(len(ended) for ended in self._ended if text.startswith(ended)) - 1
            text = f"{text[:cut]}{mark}{text[cut:]}"
        return text

    def without_marks(self, text: str) -> str:
        """The text without marks."""
        return text.replace(self._mark, "")

    def forged(self, ids: Iterable[int]) -> bool:
        """Whether a control token came out of plain text: the model's own vocabulary may know it as a word."""
        return not self._forgeable.isdisjoint(ids)

    def real_ids(self, ids: list[int]) -> list[int]:
        """The ids with each stand-in replaced by its control token."""
        first, real = self.first_stand_in, self._real
        return [token if token < first else real.get(token, token) for token in ids]
