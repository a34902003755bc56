"""Tiny random models of every architecture, made by `transformers` with a fixed seed and saved as its users would."""

import json
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB_SIZE = 128
WINDOW = 8
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@dataclass(frozen=True)
class Tiny:
    """One model to make."""

    kind: type[PreTrainedModel]
    config: Any
    shard_size: str = "1GB"


TINY: dict[str, Tiny] = {
    "llama": Tiny(LlamaForCausalLM, LlamaConfig(**COMMON, tie_word_embeddings=True)),
    "llama-every-head-its-own": Tiny(LlamaForCausalLM, LlamaConfig(**(COMMON | {"num_key_value_heads": 4}))),
    "llama-wide-heads": Tiny(LlamaForCausalLM, LlamaConfig(**COMMON, head_dim=32)),
    "llama3-scaling-biases-sharded": Tiny(
        LlamaForCausalLM, LlamaConfig(**COMMON, rope_parameters=LLAMA3, attention_bias=True, mlp_bias=True), shard_size="100KB"
    ),
    "llama-linear-scaling": Tiny(
        LlamaForCausalLM, LlamaConfig(**COMMON, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0})
    ),
    "mistral": Tiny(MistralForCausalLM, MistralConfig(**COMMON, sliding_window=WINDOW)),
    "mistral-without-window": Tiny(MistralForCausalLM, MistralConfig(**COMMON, sliding_window=None)),
    "qwen2": Tiny(Qwen2ForCausalLM, Qwen2Config(**COMMON, tie_word_embeddings=True)),
    "qwen2-sliding-past-first-layer": Tiny(
        Qwen2ForCausalLM, Qwen2Config(**COMMON, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1)
    ),
    "qwen3": Tiny(Qwen3ForCausalLM, Qwen3Config(**COMMON, head_dim=16)),
}


def make(name: str) -> PreTrainedModel:
    """The model, every weight drawn anew (`transformers` starts biases at zero and norms at one, which would hide mistakes)."""
    tiny = TINY[name]
    model = tiny.kind(deepcopy(tiny.config)).float().eval()  # a test may resize what it made
    generator = torch.Generator().manual_seed(1234)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * drawn if "norm" in parameter_name else 0.1 * drawn)
    return model


def save(name: str, folder: Path) -> PreTrainedModel:
    """Make the model and save it with a small tokenizer."""
    model = make(name)
    model.save_pretrained(folder, max_shard_size=TINY[name].shard_size)
    save_tokenizer(folder)
    return model


def save_tokenizer(folder: Path) -> None:
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{index}": index for index in range(3, VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ messages[0]['content'] }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
