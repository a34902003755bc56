"""Qwen3: Llama with a norm on each head's q and k before they turn."""

from inference.models.decoder import Target, build_decoder
from inference.models.transformer import Transformer
from inference.weights import Checkpoint


def build(checkpoint: Checkpoint, target: Target) -> Transformer:
    """Raises WeightsError."""
    return build_decoder(
        checkpoint,
        target,
        qkv_bias=checkpoint.config.attention_bias,
        output_bias=checkpoint.config.attention_bias,
        qk_norm=True,
    )
