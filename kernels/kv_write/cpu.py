"""Copies a head's K and V to its page; float32 is rounded to nearest even on its way into a bfloat16 cache."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.compiled import ADDRESS, COUNT, arguments, claim, fields, int64s, kernel, subroutine, uint16s, uint32s

ALONE_BELOW = 32 * 1024
"""Elements; fewer take less time than it takes to share them out."""


def supports(*dtypes: torch.dtype) -> bool:
    return dtypes in {(torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16)}


_Arguments = arguments(
    k=ADDRESS,
    k_stride=COUNT,
    v=ADDRESS,
    v_stride=COUNT,
    key_cache=ADDRESS,
    value_cache=ADDRESS,
    slots=ADDRESS,
    tokens=COUNT,
    kv_heads=COUNT,
    head_size=COUNT,
    block_size=COUNT,
    source_bytes=COUNT,
    cache_bytes=COUNT,
)


@subroutine
def _copy(source: Any, target: Any, count: Any, source_bytes: Any, cache_bytes: Any) -> None:
    if source_bytes == 2:
        shorts, narrow = uint16s(source, count), uint16s(target, count)
        for i in range(count):
            narrow[i] = shorts[i]
    elif cache_bytes == 4:
        words, wide = uint32s(source, count), uint32s(target, count)
        for i in range(count):
            wide[i] = words[i]
    else:
        words, narrow = uint32s(source, count), uint16s(target, count)
        for i in range(count):
            bits = words[i]
            upper = np.uint32(bits >> np.uint32(16))
            nearest = np.uint32(np.uint32(bits + np.uint32(0x7FFF) + np.uint32(upper & np.uint32(1))) >> np.uint32(16))
            is_nan = np.uint32(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
            narrow[i] = np.uint16(upper | np.uint32(0x40)) if is_nan else np.uint16(nearest)


@kernel(_Arguments)
def _kv_write(pointer: Any) -> None:
    a = fields(pointer)
    slots = int64s(a.slots, a.tokens)
    while True:
        first = claim(pointer) * 16
        if first >= a.tokens:
            break
        for token in range(first, min(a.tokens, first + 16)):
            block, offset = slots[token] // a.block_size, slots[token] % a.block_size
            for head in range(a.kv_heads):
                page = ((block * a.kv_heads + head) * a.block_size + offset) * a.head_size * a.cache_bytes
                k = a.k + (token * a.k_stride + head * a.head_size) * a.source_bytes
                v = a.v + (token * a.v_stride + head * a.head_size) * a.source_bytes
                _copy(k, a.key_cache + page, a.head_size, a.source_bytes, a.cache_bytes)
                _copy(v, a.value_cache + page, a.head_size, a.source_bytes, a.cache_bytes)


def kv_write(k: Tensor, v: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    launch = _kv_write.here if k.numel() < ALONE_BELOW else _kv_write
    slots = slots.contiguous()
    launch(
        k.data_ptr(),
        k.stride(0),
        v.data_ptr(),
        v.stride(0),
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        slots.data_ptr(),
        k.shape[0],
        k.shape[1],
        k.shape[2],
        key_cache.shape[2],
        k.element_size(),
        key_cache.element_size(),
    )
