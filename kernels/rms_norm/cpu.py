# ruff: noqa: PLR0917
"""One pass for the sum of squares, one to write; rows are shared out only when there is work for more than one thread."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.compiled import ADDRESS, COUNT, REAL, arguments, claim, fields, float32s, kernel

ROWS_AT_ONCE = 8
ALONE_BELOW = 32 * 1024
"""Elements; fewer take less time than it takes to share them out."""


def supports(*dtypes: torch.dtype) -> bool:
    return all(dtype == torch.float32 for dtype in dtypes)


_Arguments = arguments(
    x=ADDRESS,
    x_stride=COUNT,
    residual=ADDRESS,
    residual_stride=COUNT,
    weight=ADDRESS,
    out=ADDRESS,
    total=ADDRESS,
    rows=COUNT,
    hidden=COUNT,
    eps=REAL,
)


@kernel(_Arguments)
def _rms_norm(pointer: Any) -> None:
    a = fields(pointer)
    weight = float32s(a.weight, a.hidden)
    while True:
        first = claim(pointer) * 8
        if first >= a.rows:
            break
        for row in range(first, min(a.rows, first + 8)):
            x = float32s(a.x + row * a.x_stride * 4, a.hidden)
            out = float32s(a.out + row * a.hidden * 4, a.hidden)
            if a.residual != 0:
                residual = float32s(a.residual + row * a.residual_stride * 4, a.hidden)
                total = float32s(a.total + row * a.hidden * 4, a.hidden)
                for i in range(a.hidden):
                    total[i] = x[i] + residual[i]
                x = total
            squares = np.float32(0.0)
            for i in range(a.hidden):
                squares += x[i] * x[i]
            factor = np.float32(1.0) / np.sqrt(squares / np.float32(a.hidden) + a.eps)
            for i in range(a.hidden):
                out[i] = x[i] * factor * weight[i]


def _dense_rows(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 else x.contiguous()


def _run(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None, out: Tensor, total: Tensor | None) -> None:
    rows, hidden = x.shape
    launch = _rms_norm.here if x.numel() < ALONE_BELOW else _rms_norm
    launch(
        x.data_ptr(),
        x.stride(0),
        0 if residual is None else residual.data_ptr(),
        0 if residual is None else residual.stride(0),
        weight.data_ptr(),
        out.data_ptr(),
        0 if total is None else total.data_ptr(),
        rows,
        hidden,
        eps,
    )


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    out = torch.empty(x.shape)
    _run(_dense_rows(x), weight.contiguous(), eps, None, out, None)
    return out


def add_rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor) -> tuple[Tensor, Tensor]:
    out, total = torch.empty(x.shape), torch.empty(x.shape)
    _run(_dense_rows(x), weight.contiguous(), eps, _dense_rows(residual), out, total)
    return out, total
