"""The definition of correct, and the path for every device and type that has no kernel of its own."""

from torch import Tensor
from torch.nn import functional


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(x, weight, bias)
