"""The definition of correct."""

from torch import Tensor


def kv_write(k: Tensor, v: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    block_size = key_cache.shape[2]
    block, offset = slots // block_size, slots % block_size
    key_cache[block, :, offset] = k.to(key_cache.dtype)
    value_cache[block, :, offset] = v.to(value_cache.dtype)
