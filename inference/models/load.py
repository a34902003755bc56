"""From a path to a running model."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from inference.models import llama, mistral, qwen2, qwen3
from inference.models.base import Model
from inference.models.decoder import Target
from inference.protocol.frames import ModelCard
from inference.weights import BrokenCheckpoint, Checkpoint, UnsupportedCheckpoint, open_checkpoint

BUILDERS: dict[str, Callable[[Checkpoint, Target], Model]] = {
    "llama": llama.build,
    "mistral": mistral.build,
    "qwen2": qwen2.build,
    "qwen3": qwen3.build,
}
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, and the checkpoint it came from."""

    model: Model
    checkpoint: Checkpoint
    precision: str
    """What `auto` came to."""

    def card(self, *, max_prompt_tokens: int, created: int) -> ModelCard:
        """What the worker tells gateways about it. `created`: Unix seconds."""
        checkpoint = self.checkpoint
        return ModelCard(
            name=checkpoint.name,
            architecture=checkpoint.architecture,
            parameters=checkpoint.parameters,
            precision=self.precision,
            vocab_size=self.model.vocab_size,
            context_length=self.model.context_length,
            max_prompt_tokens=max_prompt_tokens,
            bos_token=checkpoint.bos_token,
            eos_token=checkpoint.eos_token,
            eos_token_ids=checkpoint.eos_token_ids,
            chat_template=checkpoint.chat_template,
            tokenizer_json=checkpoint.tokenizer_json,
            fingerprint=self.model.fingerprint,
            created=created,
        )


def load_model(
    path: Path | str, *, precision: str = "auto", device: torch.device | str = "cpu", max_context: int | None = None
) -> LoadedModel:
    """A Hugging Face folder or GGUF file, its weights packed on the device.

    precision: "fp32", "bf16", "fp16", or "auto": float32 on a CPU, bfloat16 elsewhere. Quantised weights are decoded.
    max_context: positions to prepare for, if fewer than the model's own context length.
    Raises WeightsError.
    """
    checkpoint, device = open_checkpoint(Path(path)), torch.device(device)
    if precision == "auto":
        precision = "fp32" if device.type == "cpu" else "bf16"
    if precision not in PRECISIONS:
        raise UnsupportedCheckpoint(checkpoint.path, f"precision {precision!r} isn't supported (only auto, {', '.join(PRECISIONS)})")
    config = checkpoint.config
    outside = [each for each in checkpoint.eos_token_ids if each >= config.vocab_size]
    if outside:
        raise BrokenCheckpoint(checkpoint.path, f"end-of-sequence token {outside[0]} is outside the vocabulary of {config.vocab_size}")
    target = Target(
        dtype=PRECISIONS[precision],
        device=device,
        context_length=min(config.context_length, max_context or config.context_length),
        fingerprint=checkpoint.fingerprint(precision),
    )
    model = BUILDERS[config.architecture](checkpoint, target)
    return LoadedModel(model, checkpoint, precision)
