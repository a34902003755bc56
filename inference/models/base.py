"""What every architecture offers to the engine."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from inference.batch import Batch


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers whose cache looks alike. What a block of theirs holds, and at which prefix lengths a request can resume."""

    layers: int
    kv_heads: int
    head_size: int
    dtype: torch.dtype
    window: int | None = None
    """Sliding window in tokens, or None for full attention."""
    resume_every: int = 1
    """A request can resume at multiples of this many blocks."""

    def block_bytes(self, block_size: int) -> int:
        """2 (K and V) × layers × KV heads × block size × head size × bytes."""
        return 2 * self.layers * self.kv_heads * block_size * self.head_size * self.dtype.itemsize


class KVCache:
    """K and V pages of one cache group, preallocated.

    keys[layer] and values[layer]: [blocks, kv_heads, block_size, head_size]
    """

    def __init__(self, group: CacheGroup, *, blocks: int, block_size: int, device: torch.device) -> None:
        shape = (group.layers, blocks, group.kv_heads, block_size, group.head_size)
        self.group = group
        self.block_size = block_size
        self.blocks = blocks
        self.keys: Tensor = torch.zeros(shape, dtype=group.dtype, device=device)
        self.values: Tensor = torch.zeros(shape, dtype=group.dtype, device=device)


class Model(Protocol):
    """A causal language model over paged caches."""

    vocab_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    fingerprint: str
    """Hex digest of weights, precision and adapter: part of every prefix key."""
    cache_groups: tuple[CacheGroup, ...]
    device: torch.device

    def forward(self, batch: Batch, caches: tuple[KVCache, ...]) -> Tensor:
        """Write the step's K and V into the caches and return logits for batch.logit_rows: [rows, vocab], float32."""
        ...
