# ruff: noqa: PLR0917
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""One program a token and KV head."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.kv_write.tuning import WARPS


@triton.jit
def kv_write_kernel(
    k, v, key_cache, value_cache, slots, k_stride, v_stride, kv_heads, block_size, HEAD_SIZE: tl.constexpr, WIDTH: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, WIDTH)
    inside = i < HEAD_SIZE
    slot = tl.load(slots + token)
    block, offset = slot // block_size, slot % block_size
    page = ((block * kv_heads + head) * block_size + offset) * HEAD_SIZE + i
    key = tl.load(k + token * k_stride + head * HEAD_SIZE + i, mask=inside)
    value = tl.load(v + token * v_stride + head * HEAD_SIZE + i, mask=inside)
    tl.store(key_cache + page, key.to(key_cache.dtype.element_ty), mask=inside)
    tl.store(value_cache + page, value.to(value_cache.dtype.element_ty), mask=inside)


def kv_write(k: Tensor, v: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    tokens, kv_heads, head_size = k.shape
    if tokens:
        kv_write_kernel[(tokens, kv_heads)](
            k,
            v,
            key_cache,
            value_cache,
            slots.contiguous(),
            k.stride(0),
            v.stride(0),
            kv_heads,
            key_cache.shape[2],
            HEAD_SIZE=head_size,
            WIDTH=triton.next_power_of_2(head_size),
            num_warps=WARPS,
        )
