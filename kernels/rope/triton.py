# ruff: noqa: PLR0917
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""One program a token and a few heads; q's and k's heads in one launch."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.rope.tuning import HEADS, WARPS


@triton.jit
def rope_kernel(
    q,
    k,
    cos,
    sin,
    positions,
    q_stride,
    k_stride,
    heads,
    kv_heads,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    i = tl.arange(0, WIDTH)
    angle = tl.load(positions + token) * HALF + i
    c = tl.load(cos + angle, mask=i < HALF, other=0.0)[None, :]
    s = tl.load(sin + angle, mask=i < HALF, other=0.0)[None, :]

    first = q + token * q_stride + head[:, None] * (2 * HALF) + i[None, :]
    inside = (head < heads)[:, None] & (i < HALF)[None, :]
    x, y = tl.load(first, mask=inside, other=0.0), tl.load(first + HALF, mask=inside, other=0.0)
    x_wide, y_wide = x.to(tl.float32), y.to(tl.float32)
    tl.store(first, (x_wide * c - y_wide * s).to(x.dtype), mask=inside)
    tl.store(first + HALF, (y_wide * c + x_wide * s).to(x.dtype), mask=inside)

    first = k + token * k_stride + head[:, None] * (2 * HALF) + i[None, :]
    inside = (head < kv_heads)[:, None] & (i < HALF)[None, :]
    x, y = tl.load(first, mask=inside, other=0.0), tl.load(first + HALF, mask=inside, other=0.0)
    x_wide, y_wide = x.to(tl.float32), y.to(tl.float32)
    tl.store(first, (x_wide * c - y_wide * s).to(x.dtype), mask=inside)
    tl.store(first + HALF, (y_wide * c + x_wide * s).to(x.dtype), mask=inside)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
    tokens, heads, head_size = q.shape
    kv_heads = k.shape[1]
    if not tokens:
        return
    half = head_size // 2
    rope_kernel[(tokens, triton.cdiv(max(heads, kv_heads), HEADS))](
        q,
        k,
        cos,
        sin,
        positions.contiguous(),
        q.stride(0),
        k.stride(0),
        heads,
        kv_heads,
        HALF=half,
        WIDTH=triton.next_power_of_2(half),
        HEADS=HEADS,
        num_warps=WARPS,
    )
