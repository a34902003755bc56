"""Qwen2: Llama with biases on q, k and v; later layers may slide."""

from inference.models.decoder import Target, build_decoder
from inference.models.transformer import Transformer
from inference.weights import Checkpoint


def build(checkpoint: Checkpoint, target: Target) -> Transformer:
    """Raises WeightsError."""
    return build_decoder(checkpoint, target, qkv_bias=True)
