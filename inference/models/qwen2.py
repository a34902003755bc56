"""Qwen2: Llama with biases on q, k and v; later layers may slide."""

import torch

from inference.models.decoder import build_decoder
from inference.models.transformer import Transformer
from inference.weights import Checkpoint


def build(checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device, context_length: int, fingerprint: str) -> Transformer:
    """Raises WeightsError."""
    return build_decoder(
        checkpoint,
        dtype=dtype,
        device=device,
        context_length=context_length,
        fingerprint=fingerprint,
        qkv_bias=True,
    )
