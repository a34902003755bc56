"""Eight elements at a time, with an exponential of our own: the C library's would be called once an element."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.compiled import ADDRESS, COUNT, arguments, claim, fields, float32s, kernel
from kernels.vectors import row_silu_mul

ALONE_BELOW = 16 * 1024
"""Elements of the result; fewer take less time than it takes to share them out."""


def supports(*dtypes: torch.dtype) -> bool:
    return all(dtype == torch.float32 for dtype in dtypes)


_Arguments = arguments(gate_up=ADDRESS, stride=COUNT, out=ADDRESS, rows=COUNT, inner=COUNT)


@kernel(_Arguments)
def _silu_mul(pointer: Any) -> None:
    a = fields(pointer)
    whole = a.inner // 8 * 8
    left = a.inner - whole
    edge = np.zeros(16, np.float32)
    while True:
        first = claim(pointer) * 4
        if first >= a.rows:
            break
        for row in range(first, min(a.rows, first + 4)):
            gate, out = a.gate_up + row * a.stride * 4, a.out + row * a.inner * 4
            up = gate + a.inner * 4
            row_silu_mul(gate, up, out, whole)
            if left > 0:
                last_gate, last_up = float32s(gate + whole * 4, left), float32s(up + whole * 4, left)
                last_out = float32s(out + whole * 4, left)
                for i in range(left):
                    edge[i] = last_gate[i]
                    edge[8 + i] = last_up[i]
                row_silu_mul(edge.ctypes.data, edge.ctypes.data + 32, edge.ctypes.data, 8)
                for i in range(left):
                    last_out[i] = edge[i]


def silu_mul(gate_up: Tensor) -> Tensor:
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, inner)
    launch = _silu_mul.here if out.numel() < ALONE_BELOW else _silu_mul
    launch(gate_up.data_ptr(), gate_up.stride(0), out.data_ptr(), rows, inner)
    return out
