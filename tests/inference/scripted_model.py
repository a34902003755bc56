"""A model whose next token is a hash of everything that its cache holds for a sequence.

It writes token ids and positions where keys and values go and reads them back through the block tables, so a wrong slot, table, position or
length changes what comes out, or is reported.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from inference.batch import Batch
from inference.models.base import CacheGroup, KVCache

VOCAB = 64
EOS = 63
LOGIT_GAP = 2.0

_rng = np.random.default_rng(20240229)
_WEIGHTS = _rng.integers(1, 1 << 62, size=1 << 14, dtype=np.uint64) | np.uint64(1)


class WrongCache(AssertionError):
    """What the cache holds isn't what the batch says."""


def hashes(tokens: np.ndarray) -> np.ndarray:
    """One 64-bit hash for every prefix of the tokens."""
    total = np.cumsum((tokens.astype(np.uint64) + np.uint64(1)) * _WEIGHTS[: len(tokens)], dtype=np.uint64)
    return (total ^ (total >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(20)


@dataclass
class ScriptedModel:
    """A `Model`. `poison`: tokens that make a sequence's logits NaN. `trap`: tokens that make forward raise."""

    context_length: int = 512
    vocab_size: int = VOCAB
    eos_token_ids: tuple[int, ...] = (EOS,)
    fingerprint: str = "scripted"
    never: tuple[int, ...] = (EOS,)
    """Tokens it doesn't say."""
    poison: frozenset[int] = frozenset()
    trap: frozenset[int] = frozenset()
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    cache_groups: tuple[CacheGroup, ...] = (CacheGroup(layers=1, kv_heads=1, head_size=2, dtype=torch.float32),)
    steps: int = 0
    tokens_run: int = 0

    def __post_init__(self) -> None:
        self._says = [token for token in range(self.vocab_size) if token not in self.never]

    def next_token(self, context: list[int]) -> int:
        return self._says[int(hashes(np.array(context))[-1]) % len(self._says)]

    def continuation(self, prompt: list[int], count: int) -> list[int]:
        """What greedy decoding gives."""
        context = list(prompt)
        for _ in range(count):
            context.append(self.next_token(context))
        return context[len(prompt) :]

    def logits_of(self, context: list[int]) -> np.ndarray:
        """The logits behind this context."""
        return self._logits(int(hashes(np.array(context))[-1]))

    def _logits(self, hashed: int) -> np.ndarray:
        logits = np.sin(np.arange(self.vocab_size) * (1.0 + hashed % 97) + hashed % 13).astype(np.float32)
        for token in self.never:
            logits[token] = -4.0
        logits[self._says[hashed % len(self._says)]] = 1.0 + LOGIT_GAP
        return logits

    def forward(self, batch: Batch, caches: tuple[KVCache, ...]) -> Tensor:
        (cache,) = caches
        size = cache.block_size
        tokens, positions, slots = batch.tokens.numpy(), batch.positions.numpy(), batch.slots.numpy()
        starts, contexts, tables = batch.query_starts.numpy(), batch.context_lengths.numpy(), batch.block_tables.numpy()
        self.steps += 1
        self.tokens_run += len(tokens)
        if self.trap & set(tokens.tolist()):
            raise RuntimeError("trapped")
        keys = cache.keys.numpy()
        if len(set(slots.tolist())) != len(slots):
            raise WrongCache("two tokens share a slot")
        keys[0, slots // size, 0, slots % size, 0] = tokens + 1
        keys[0, slots // size, 0, slots % size, 1] = positions
        wanted = batch.logit_rows.numpy()
        out = np.zeros((len(wanted), self.vocab_size), dtype=np.float32)
        for index, context in enumerate(contexts):
            begin, end = starts[index], starts[index + 1]
            at = np.arange(context)
            held = keys[0, tables[index][at // size], 0, at % size]
            if not np.array_equal(held[:, 1], at) or (held[:, 0] < 1).any():
                raise WrongCache(f"sequence {index}: positions {held[:, 1].tolist()} for a context of {context}")
            if not np.array_equal(positions[begin:end], at[context - (end - begin) :]):
                raise WrongCache(f"sequence {index}: the chunk isn't the context's end")
            context_tokens = held[:, 0].astype(np.int64) - 1
            hashed = hashes(context_tokens)
            for row in np.flatnonzero((wanted >= begin) & (wanted < end)):
                out[row] = self._logits(int(hashed[positions[wanted[row]]]))
                if self.poison & set(context_tokens.tolist()):
                    out[row] = np.nan
        return torch.from_numpy(out)
