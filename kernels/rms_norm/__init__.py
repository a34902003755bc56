"""Root mean square normalisation, with the residual addition before it where there is one."""

from typing import overload

from torch import Tensor

from kernels.errors import DtypeError, ShapeError
from kernels.selection import implementation


@overload
def rms_norm(x: Tensor, weight: Tensor, eps: float, *, residual: None = None) -> Tensor: ...
@overload
def rms_norm(x: Tensor, weight: Tensor, eps: float, *, residual: Tensor) -> tuple[Tensor, Tensor]: ...
def rms_norm(x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """x / √(mean(x²) + eps) · weight over each row.

    x: [tokens, hidden], rows dense; weight: [hidden]; residual: like x.
    With residual: (norm of x + residual, x + residual), the sum rounded to x's type before the norm. Inputs stay untouched.
    """
    if x.dim() != 2 or weight.shape != x.shape[1:] or (residual is not None and residual.shape != x.shape):
        raise ShapeError(
            f"rms_norm: x {tuple(x.shape)}, weight {tuple(weight.shape)}"
            + ("" if residual is None else f", residual {tuple(residual.shape)}")
        )
    if residual is not None and residual.dtype != x.dtype:
        raise DtypeError(f"rms_norm: x is {x.dtype}, residual {residual.dtype}")
    module = implementation("rms_norm", x.device, x.dtype, weight.dtype)
    if residual is None:
        normed: Tensor = module.rms_norm(x, weight, eps)
        return normed
    pair: tuple[Tensor, Tensor] = module.add_rms_norm(x, weight, eps, residual)
    return pair
