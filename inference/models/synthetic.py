"""A model without weights: it says a given text over and over, at a given rate. For tests, and to measure everything but the model.

`MODEL=synthetic:name=parrot,rate=200,context=4096,eos=64,text=hello `, each part with a default. Its tokens are bytes: token b is the
byte b, three special tokens follow. The token at position p is byte p modulo the text's length, so a client knows what to expect
whatever was cached, batched or preempted.
"""

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from inference.batch import Batch
from inference.errors import ConfigError
from inference.models.base import CacheGroup, KVCache
from inference.protocol.frames import ModelCard

PREFIX = "synthetic"
END_OF_TEXT = 256
TURN_START = 257
TURN_END = 258
VOCAB_SIZE = 259
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_CERTAIN = 100.0
"""Logit of the chosen token; the others have 0. Far enough at any temperature and penalty that callers may ask for."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """What a synthetic model says, and how fast."""

    name: str = PREFIX
    text: str = "the quick brown fox jumps over the lazy dog. "
    rate: float = 0.0
    """Steps a second; 0: as fast as it goes."""
    context: int = 8192
    eos: int = 0
    """The turn ends at every position that is a multiple of this; 0: never."""

    @classmethod
    def parse(cls, name: str) -> "Script":
        """From `synthetic` or `synthetic:key=value,…`. Raises ConfigError."""
        script = cls()
        for part in name.removeprefix(PREFIX).removeprefix(":").split(","):
            if not part:
                continue
            key, _, value = part.partition("=")
            try:
                match key:
                    case "name":
                        script = replace(script, name=value)
                    case "text":
                        script = replace(script, text=value)
                    case "rate":
                        script = replace(script, rate=float(value))
                    case "context":
                        script = replace(script, context=int(value))
                    case "eos":
                        script = replace(script, eos=int(value))
                    case _:
                        raise ConfigError(f"MODEL={name}: no part is called {key!r} (only name, text, rate, context, eos)")
            except ValueError as error:
                raise ConfigError(f"MODEL={name}: {key} can't be {value!r}") from error
        if not script.name or not script.text or script.rate < 0 or script.context < 2 or script.eos < 0:
            raise ConfigError(f"MODEL={name}: name and text must not be empty, rate and eos not negative, context at least 2")
        return script

    def token_at(self, position: int) -> int:
        """The token that stands at this position of a sequence, unless it is the prompt's."""
        if self.eos and position % self.eos == 0:
            return TURN_END
        said = self.text.encode()
        return said[position % len(said)]


class SyntheticModel:
    """A `Model` whose logits cost nothing. It keeps no K and V: the caches are there to be accounted for."""

    vocab_size = VOCAB_SIZE
    eos_token_ids: tuple[int, ...] = (END_OF_TEXT, TURN_END)
    cache_groups: tuple[CacheGroup, ...] = (CacheGroup(layers=1, kv_heads=1, head_size=64, dtype=torch.float32),)
    device = torch.device("cpu")

    def __init__(self, script: Script) -> None:
        self.script = script
        self.context_length = script.context
        self.fingerprint = hashlib.sha256(repr(script).encode()).hexdigest()
        self._next = torch.tensor([script.token_at(position) for position in range(1, script.context + 1)])
        self._due = 0.0

    def forward(self, batch: Batch, caches: tuple[KVCache, ...]) -> Tensor:
        """Write nothing, wait for the next step's turn, and be certain of one token in each row."""
        del caches
        positions = batch.positions[batch.logit_rows]
        logits = torch.zeros((len(positions), VOCAB_SIZE))
        logits.scatter_(1, self._next[positions].unsqueeze(1), _CERTAIN)
        if self.script.rate:
            now = time.monotonic()
            self._due = max(now, self._due + 1 / self.script.rate)
            time.sleep(self._due - now)
        return logits

    def card(self, *, max_prompt_tokens: int, created: int) -> ModelCard:
        """What the worker tells gateways about it. `created`: Unix seconds."""
        return ModelCard(
            name=self.script.name,
            architecture=PREFIX,
            parameters=0,
            precision="fp32",
            vocab_size=VOCAB_SIZE,
            context_length=self.context_length,
            max_prompt_tokens=max_prompt_tokens,
            bos_token=None,
            eos_token=SPECIAL_TOKENS[TURN_END - END_OF_TEXT],
            eos_token_ids=self.eos_token_ids,
            chat_template=CHAT_TEMPLATE,
            tokenizer_json=tokenizer_json(),
            fingerprint=self.fingerprint,
            created=created,
        )


def tokenizer_json() -> str:
    """A byte-level tokenizer without merges, in the `tokenizers` library's own format."""
    special = [
        {
            "id": END_OF_TEXT + i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, token in enumerate(SPECIAL_TOKENS)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model: dict[str, object] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": dict(_byte_characters()) | {token: END_OF_TEXT + i for i, token in enumerate(SPECIAL_TOKENS)},
        "merges": [],
    }
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": special,
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": model,
        }
    )


def _byte_characters() -> Iterator[tuple[str, int]]:
    """The byte-level alphabet: a visible Latin-1 character stands for its own byte, the rest get characters from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = 0
    for byte in range(256):
        if byte in visible:
            yield chr(byte), byte
        else:
            yield chr(0x100 + others), byte
            others += 1
