"""Rotary position embedding, halves layout."""

import torch
from torch import Tensor

from kernels.errors import DtypeError, ShapeError
from kernels.selection import implementation


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
    """Rotate q and k in place: element i of a head's first half pairs with element i of its second half.

    q: [tokens, heads, head_size]; k: [tokens, kv_heads, head_size]; either may be a view into a fused projection
    as long as each token's heads are dense.
    cos, sin: [max_positions, head_size / 2], float32, dense; positions: [tokens], int64, below max_positions.
    """
    tokens, _, head_size = q.shape
    if k.shape[0] != tokens or k.shape[2] != head_size or positions.shape != (tokens,):
        raise ShapeError(f"rope: q {tuple(q.shape)}, k {tuple(k.shape)}, positions {tuple(positions.shape)}")
    if cos.shape != sin.shape or cos.shape[1] * 2 != head_size or not (cos.is_contiguous() and sin.is_contiguous()):
        raise ShapeError(f"rope: cos {tuple(cos.shape)} and sin {tuple(sin.shape)} for heads of {head_size}")
    if any(t.stride(2) != 1 or (t.stride(1) != head_size and t.shape[1] > 1) for t in (q, k)):
        raise ShapeError(f"rope: a token's heads must lie densely, not with strides {q.stride()} and {k.stride()}")
    if cos.dtype != torch.float32 or sin.dtype != torch.float32 or positions.dtype != torch.int64 or q.dtype != k.dtype:
        raise DtypeError(f"rope: q {q.dtype}, k {k.dtype}, cos {cos.dtype}, sin {sin.dtype}, positions {positions.dtype}")
    implementation("rope", q.device, q.dtype).rope(q, k, cos, sin, positions)
