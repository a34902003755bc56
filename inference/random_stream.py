"""Counter-based random numbers: a draw depends on its counters and on nothing else, so on no batch and no history.

(seed, choice, position) is mixed into a key of two 32-bit words (splitmix64), the key and a token id into 32 random bits (two rounds of
the murmur3 finaliser). `exponential` makes an exponential race's draws of them: the argmax over tokens of p / E is a sample of p. That is
Gumbel-max, argmax(log p − log E), with one logarithm a token less.
"""

import numpy as np
import torch
from torch import Tensor

Words = np.ndarray[tuple[int], np.dtype[np.uint64]]

_MASK = (1 << 64) - 1


def _mix64(value: Words) -> Words:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def stream(seed: int, choice: int) -> int:
    """The 64-bit start of one choice's stream."""
    start = np.array([seed & _MASK], dtype=np.uint64)
    return int(_mix64(_mix64(start + np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64((choice + 1) * 0xD1342543DE82EF95 & _MASK))[0])


def keys(streams: Words, positions: Words) -> Tensor:
    """[rows, 2] int32: the key of each row's draw at its position in its stream."""
    mixed = _mix64(streams + (positions + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
    return torch.from_numpy(np.ascontiguousarray(mixed).view(np.int32).reshape(-1, 2).copy())


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


_GOLDEN, _MUR1, _MUR2 = _signed(0x9E3779B1), _signed(0x85EBCA6B), _signed(0xC2B2AE35)


def _mix32_(bits: Tensor) -> Tensor:
    """The murmur3 finaliser, in place on int32; shifts are arithmetic in torch, so the sign's copies are masked out."""
    bits ^= (bits >> 16) & 0xFFFF
    bits *= _MUR1
    bits ^= (bits >> 13) & 0x7FFFF
    bits *= _MUR2
    bits ^= (bits >> 16) & 0xFFFF
    return bits


def bits(key: Tensor, tokens: Tensor) -> Tensor:
    """32 random bits for each token of each row. key: [rows, 2]; tokens: [vocab] or [rows, candidates], int32 → [rows, …] int32."""
    words = _mix32_(tokens * _GOLDEN + key[:, :1])
    return _mix32_(words ^ key[:, 1:])


def exponential(key: Tensor, tokens: Tensor) -> Tensor:
    """Exponentially distributed draws, float32, above 0."""
    draw = bits(key, tokens).bitwise_and_(0x7FFFFFFF).float()  # 31 bits: small draws, which decide the race, stay exact
    return draw.add_(0.5).mul_(2.0**-31).clamp_(max=1 - 2.0**-24).neg_().log1p_().neg_()
