"""Mistral: Llama whose layers attend within a sliding window (which the configuration brings)."""

from inference.models.decoder import Target, build_decoder
from inference.models.transformer import Transformer
from inference.weights import Checkpoint


def build(checkpoint: Checkpoint, target: Target) -> Transformer:
    """Raises WeightsError."""
    return build_decoder(checkpoint, target)
