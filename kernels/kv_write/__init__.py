"""A step's keys and values into their pages."""

import torch
from torch import Tensor

from kernels.errors import DtypeError, ShapeError
from kernels.selection import implementation


def kv_write(k: Tensor, v: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Write each token's K and V to its slot, converted to the cache's type.

    k, v: [tokens, kv_heads, head_size], views into a fused projection allowed as long as each token's heads are dense.
    key_cache, value_cache: [blocks, kv_heads, block_size, head_size], dense.
    slots: [tokens], int64, block · block_size + offset, no two alike.
    Only those slots change.
    """
    tokens, kv_heads, head_size = k.shape
    if v.shape != k.shape or slots.shape != (tokens,):
        raise ShapeError(f"kv_write: k {tuple(k.shape)}, v {tuple(v.shape)}, slots {tuple(slots.shape)}")
    if key_cache.shape != value_cache.shape or key_cache.shape[1] != kv_heads or key_cache.shape[3] != head_size:
        raise ShapeError(f"kv_write: k {tuple(k.shape)} into {tuple(key_cache.shape)} and {tuple(value_cache.shape)}")
    if not (key_cache.is_contiguous() and value_cache.is_contiguous()):
        raise ShapeError("kv_write: the caches must be dense")
    if any(t.stride(2) != 1 or (t.stride(1) != head_size and kv_heads > 1) for t in (k, v)):
        raise ShapeError(f"kv_write: a token's heads must lie densely, not with strides {k.stride()} and {v.stride()}")
    if slots.dtype != torch.int64 or k.dtype != v.dtype or key_cache.dtype != value_cache.dtype:
        raise DtypeError(f"kv_write: k {k.dtype}, v {v.dtype}, caches {key_cache.dtype} and {value_cache.dtype}, slots {slots.dtype}")
    implementation("kv_write", k.device, k.dtype, key_cache.dtype).kv_write(k, v, key_cache, value_cache, slots)
