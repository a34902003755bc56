"""The definition of correct."""

import torch
from torch import Tensor


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    first, second = x.float().chunk(2, dim=-1)
    x.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
    cos, sin = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
    _rotate(q, cos, sin)
    _rotate(k, cos, sin)
