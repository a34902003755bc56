"""A GGUF file's byte-level BPE as the `tokenizers` library's JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inference.weights.errors import BrokenCheckpoint, UnsupportedCheckpoint

CONTROL, USER_DEFINED = 3, 4
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

Step = dict[str, object]


def _byte_level(*, split: bool) -> Step:
    """Bytes to letters; `split` also cuts into words as GPT-2 does."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": split}


def _pattern(digits: str) -> Step:
    pattern = f"{CONTRACTIONS}|{WORDS}|{digits}|{REST}"
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


@dataclass(frozen=True, slots=True)
class Splitting:
    """How text is cut before merging."""

    steps: tuple[Step, ...]
    normalizer: Step | None = None
    ignore_merges: bool = False
    """A whole word that is in the vocabulary is taken as it is."""
    bos_by_default: bool = False


GPT2 = Splitting((_byte_level(split=True),))
SPLITTINGS = {
    "gpt-2": GPT2,
    "default": GPT2,
    "smollm": Splitting(({"type": "Digits", "individual_digits": True}, _byte_level(split=True))),
    "qwen2": Splitting((_pattern(r"\p{N}"), _byte_level(split=False)), normalizer={"type": "NFC"}),
    "llama-bpe": Splitting((_pattern(r"\p{N}{1,3}"), _byte_level(split=False)), ignore_merges=True, bos_by_default=True),
}
"""By `tokenizer.ggml.pre`."""


class GGUFTokenizer:
    """The tokenizer fields of a GGUF file's metadata, checked."""

    def __init__(self, metadata: Mapping[str, object], path: Path) -> None:
        self._metadata = metadata
        self._path = path
        model = self._field("model")
        if model != "gpt2":
            raise UnsupportedCheckpoint(
                path, f"tokenizer model {model!r} isn't supported (only gpt2, byte-level BPE); use the Hugging Face folder"
            )
        pre = self._field("pre") or "default"
        splitting = SPLITTINGS.get(str(pre))
        if splitting is None:
            raise UnsupportedCheckpoint(path, f"pre-tokenizer {pre!r} isn't supported (only {', '.join(SPLITTINGS)})")
        self._splitting = splitting
        self.tokens = self._strings("tokens")
        self._merges = self._strings("merges")
        types = self._field("token_type") or [1] * len(self.tokens)
        if not isinstance(types, list) or len(types) != len(self.tokens):
            raise BrokenCheckpoint(path, f"tokenizer.ggml.token_type doesn't match the {len(self.tokens)} tokens")
        self._types: list[object] = types

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """End of text, and of a turn or message where the file names one."""
        ids = [self._id(kind) for kind in ("eos", "eot", "eom")]
        return tuple(dict.fromkeys(each for each in ids if each is not None))

    def token_of(self, kind: str) -> str | None:
        """The text of the "bos" or "eos" token."""
        token_id = self._id(kind)
        return None if token_id is None else self.tokens[token_id]

    def to_json(self) -> str:
        """Raises BrokenCheckpoint if vocabulary and merges contradict one another."""
        vocabulary = {token: token_id for token_id, token in enumerate(self.tokens)}
        if len(vocabulary) != len(self.tokens):
            raise BrokenCheckpoint(self._path, "tokenizer.ggml.tokens names a token twice")
        steps = list(self._splitting.steps)
        return json.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [self._added(token_id) for token_id, kind in enumerate(self._types) if kind in (CONTROL, USER_DEFINED)],
                "normalizer": self._splitting.normalizer,
                "pre_tokenizer": steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps},
                "post_processor": self._post_processor(),
                "decoder": _byte_level(split=False),
                "model": {
                    "type": "BPE",
                    "dropout": None,
                    "unk_token": None,
                    "continuing_subword_prefix": None,
                    "end_of_word_suffix": None,
                    "fuse_unk": False,
                    "byte_fallback": False,
                    "ignore_merges": self._splitting.ignore_merges,
                    "vocab": vocabulary,
                    "merges": self._checked_merges(vocabulary),
                },
            },
            ensure_ascii=False,
            separators=(",", ":"),
        )

    def _checked_merges(self, vocabulary: Mapping[str, int]) -> list[str]:
        """Pairs of tokens with a space between: byte-level tokens hold none themselves."""
        for merge in self._merges:
            left, _, right = merge.partition(" ")
            if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
                raise BrokenCheckpoint(self._path, f"tokenizer.ggml.merges: {merge!r} isn't a merge of two tokens into a third")
        return self._merges

    def _added(self, token_id: int) -> Step:
        return {
            "id": token_id,
            "content": self.tokens[token_id],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": self._types[token_id] == CONTROL,
        }

    def _post_processor(self) -> Step:
        """Puts begin- and end-of-text tokens around a text where the file asks for them (and the caller for special tokens)."""
        bos = self._id("bos") if self._flag("add_bos_token", self._splitting.bos_by_default) else None
        eos = self._id("eos") if self._flag("add_eos_token", False) else None
        if bos is None and eos is None:
            return _byte_level(split=False)

        def around(sequence: str) -> list[Step]:
            first = [] if bos is None else [_special(self.tokens[bos])]
            last = [] if eos is None else [_special(self.tokens[eos])]
            return [*first, {"Sequence": {"id": sequence, "type_id": 0}}, *last]

        def _special(token: str) -> Step:
            return {"SpecialToken": {"id": token, "type_id": 0}}

        used = {self.tokens[each]: each for each in (bos, eos) if each is not None}
        return {
            "type": "TemplateProcessing",
            "single": around("A"),
            "pair": around("A") + around("B"),
            "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]} for token, token_id in used.items()},
        }

    def _field(self, name: str) -> object:
        return self._metadata.get(f"tokenizer.ggml.{name}")

    def _flag(self, name: str, default: bool) -> bool:
        value = self._field(name)
        return value if isinstance(value, bool) else default

    def _strings(self, name: str) -> list[str]:
        value = self._field(name)
        if not isinstance(value, list) or not value or not isinstance(value[0], str):
            raise BrokenCheckpoint(self._path, f"tokenizer.ggml.{name} must be a list of strings")
        return value

    def _id(self, kind: str) -> int | None:
        value = self._field(f"{kind}_token_id")
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise BrokenCheckpoint(self._path, f"tokenizer.ggml.{kind}_token_id {value!r} isn't one of {len(self.tokens)} tokens")
        return value
