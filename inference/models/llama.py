"""Llama: grouped-query attention, gated feed-forward, RMSNorm; biases only where the configuration asks for them."""

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
        mlp_bias=checkpoint.config.mlp_bias,
    )
