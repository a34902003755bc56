"""The definition of correct, and the path for every device and type that has no kernel of its own."""

from torch import Tensor
from torch.nn import functional


def pack(weight: Tensor) -> Tensor:
    return weight


def pack_bias(bias: Tensor | None, weight: Tensor) -> Tensor | None:
    return bias


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, outputs: int) -> Tensor:
    return functional.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
