"""In place over rows of heads, wherever they lie."""

from typing import Any

import torch
from torch import Tensor

from kernels.compiled import ADDRESS, COUNT, arguments, claim, fields, float32s, int64s, kernel

ALONE_BELOW = 32 * 1024
"""Elements; fewer take less time than it takes to share them out."""


def supports(*dtypes: torch.dtype) -> bool:
    return all(dtype == torch.float32 for dtype in dtypes)


_Arguments = arguments(
    q=ADDRESS,
    q_stride=COUNT,
    heads=COUNT,
    k=ADDRESS,
    k_stride=COUNT,
    kv_heads=COUNT,
    cos=ADDRESS,
    sin=ADDRESS,
    positions=ADDRESS,
    tokens=COUNT,
    half=COUNT,
)


@kernel(_Arguments)
def _rope(pointer: Any) -> None:
    a = fields(pointer)
    positions = int64s(a.positions, a.tokens)
    while True:
        first = claim(pointer) * 8
        if first >= a.tokens:
            break
        for token in range(first, min(a.tokens, first + 8)):
            angle = positions[token] * a.half * 4
            cos = float32s(a.cos + angle, a.half)
            sin = float32s(a.sin + angle, a.half)
            for head in range(a.heads + a.kv_heads):
                if head < a.heads:
                    place = a.q + (token * a.q_stride + head * a.half * 2) * 4
                else:
                    place = a.k + (token * a.k_stride + (head - a.heads) * a.half * 2) * 4
                x = float32s(place, a.half)
                y = float32s(place + a.half * 4, a.half)
                for i in range(a.half):
                    x_i, y_i = x[i], y[i]
                    x[i] = x_i * cos[i] - y_i * sin[i]
                    y[i] = y_i * cos[i] + x_i * sin[i]


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
    launch = _rope.here if q.numel() < ALONE_BELOW else _rope
    positions = positions.contiguous()
    launch(
        q.data_ptr(),
        q.stride(0),
        q.shape[1],
        k.data_ptr(),
        k.stride(0),
        k.shape[1],
        cos.data_ptr(),
        sin.data_ptr(),
        positions.data_ptr(),
        q.shape[0],
        cos.shape[1],
    )
