# ruff: noqa: PLR0917
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""One program a row, the whole row in registers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.rms_norm.tuning import warps


@triton.jit
def rms_norm_kernel(
    x, residual, weight, out, total, x_stride, residual_stride, hidden, eps, HAS_RESIDUAL: tl.constexpr, WIDTH: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < hidden
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        added = tl.load(residual + row * residual_stride + column, mask=inside, other=0.0)
        value = (value.to(tl.float32) + added.to(tl.float32)).to(value.dtype)
        tl.store(total + row * hidden + column, value, mask=inside)
    wide = value.to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / hidden + eps)
    scaled = wide * factor * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + column, scaled.to(value.dtype), mask=inside)


def _launch(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None) -> tuple[Tensor, Tensor]:
    rows, hidden = x.shape
    x = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    total = out if residual is None else torch.empty_like(out)
    other = x if residual is None else residual if residual.stride(1) == 1 else residual.contiguous()
    if rows:
        width = triton.next_power_of_2(hidden)
        rms_norm_kernel[(rows,)](
            x,
            other,
            weight,
            out,
            total,
            x.stride(0),
            other.stride(0),
            hidden,
            eps,
            HAS_RESIDUAL=residual is not None,
            WIDTH=width,
            num_warps=warps(width),
        )
    return out, total


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _launch(x, weight.contiguous(), eps, None)[0]


def add_rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor) -> tuple[Tensor, Tensor]:
    return _launch(x, weight.contiguous(), eps, residual)
