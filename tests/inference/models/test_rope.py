"""Frequencies under each kind of scaling."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from inference.models.rope import rope_tables
from inference.weights.config import DecoderConfig, FactorScaling, parse_config
from tests.inference.tiny_models import COMMON, LLAMA3

POSITIONS = 5000
CPU = torch.device("cpu")


def config_of(reference: LlamaConfig) -> DecoderConfig:
    return parse_config(reference.to_dict() | {"architectures": ["LlamaForCausalLM"]}, Path("config.json"))


@pytest.mark.parametrize(
    "parameters",
    [{"rope_type": "default", "rope_theta": 500.0}, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}, LLAMA3],
    ids=lambda parameters: parameters["rope_type"],
)
def test_tables_are_transformers_own(parameters: dict[str, Any]) -> None:
    reference = LlamaConfig(**COMMON, rope_parameters=parameters)
    tables = rope_tables(config_of(reference), positions=POSITIONS, device=CPU)
    cos, sin = LlamaRotaryEmbedding(reference)(torch.empty(1), torch.arange(POSITIONS)[None])
    half = tables.cos.shape[1]
    torch.testing.assert_close(tables.cos, cos[0, :, :half], atol=1e-3, rtol=0)
    torch.testing.assert_close(tables.sin, sin[0, :, :half], atol=1e-3, rtol=0)


def test_factors_of_a_gguf_file_say_the_same_as_llama3_scaling() -> None:
    llama3 = config_of(LlamaConfig(**COMMON, rope_parameters=LLAMA3))
    # position 1's angles are the frequencies themselves
    scaled = torch.atan2(*(getattr(rope_tables(llama3, positions=2, device=CPU), name)[1].double() for name in ("sin", "cos")))
    plain = llama3.rope_base ** -(torch.arange(0, llama3.head_size, 2).double() / llama3.head_size)
    factors = replace(llama3, rope_scaling=FactorScaling(tuple((plain / scaled).tolist())))
    torch.testing.assert_close(
        rope_tables(factors, positions=100, device=CPU).cos, rope_tables(llama3, positions=100, device=CPU).cos, atol=1e-4, rtol=0
    )
