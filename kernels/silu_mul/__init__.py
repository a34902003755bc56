"""The gated activation of Llama-like feed-forward layers."""

from torch import Tensor

from kernels.errors import ShapeError
from kernels.selection import implementation


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up, from [tokens, 2 · inner] (gate first) to [tokens, inner]."""
    if gate_up.dim() != 2 or gate_up.shape[1] % 2 or gate_up.stride(1) != 1:
        raise ShapeError(f"silu_mul: {tuple(gate_up.shape)} with strides {gate_up.stride()} isn't [tokens, 2 · inner] with dense rows")
    out: Tensor = implementation("silu_mul", gate_up.device, gate_up.dtype).silu_mul(gate_up)
    return out
