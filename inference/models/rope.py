"""Tables of the rotary position embedding."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.weights.config import DecoderConfig, FactorScaling, LinearScaling, Llama3Scaling


@dataclass(frozen=True, slots=True)
class RopeTables:
    """Cosines and sines by position."""

    cos: Tensor  # [positions, head_size / 2], float32
    sin: Tensor  # [positions, head_size / 2], float32


def rope_tables(config: DecoderConfig, *, positions: int, device: torch.device) -> RopeTables:
    """In float32 from the start, as the models were trained: frequencies in float64 differ visibly at far positions."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), _frequencies(config))
    return RopeTables(angles.cos().to(device), angles.sin().to(device))


def _frequencies(config: DecoderConfig) -> Tensor:
    """Radians per position: [head_size / 2], float32."""
    exponents = torch.arange(0, config.head_size, 2, dtype=torch.int64).float() / config.head_size
    frequencies = 1.0 / (config.rope_base**exponents)
    match config.rope_scaling:
        case None:
            return frequencies
        case LinearScaling(factor):
            return frequencies / factor
        case FactorScaling(factors):
            return frequencies / torch.tensor(factors)
        case Llama3Scaling() as scaling:
            return _llama3(frequencies, scaling)


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Wavelengths that fit the original context fewer than low_freq_factor times are stretched, those over high_freq_factor kept."""
    turns = scaling.original_context * frequencies / (2 * math.pi)
    kept = ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor
