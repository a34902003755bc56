"""GGUF files give the model they were written from."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from inference.models.load import load_model
from inference.weights import BrokenCheckpoint, UnsupportedCheckpoint, open_checkpoint
from inference.weights.config import FactorScaling, LinearScaling
from tests.inference.paged_run import PagedRun
from tests.inference.tiny_models import TINY, make
from tests.inference.weights.gguf_files import add_tokenizer, finish, interleave, tokens_of_size, write_model
from tests.inference.weights.test_dequantize import random_blocks

PROMPT = [3, 17, 5, 99, 42, 8, 120, 5, 5, 63, 11]
ENCODINGS = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
ERROR_BOUND = {"F16": 1e-3, "BF16": 1e-2, "Q8_0": 0.02, "Q5_0": 0.1, "Q5_1": 0.1, "Q4_0": 0.2, "Q4_1": 0.2}
"""Largest error of a weight drawn with deviation 0.1."""


@pytest.mark.parametrize(
    ("name", "architecture"), [("llama", "llama"), ("mistral-without-window", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")]
)
def test_float32_file_has_the_logits_of_the_model_it_came_from(tmp_path: Path, name: str, architecture: str) -> None:
    reference = make(name)
    path = tmp_path / "tiny.F32.gguf"
    write_model(path, reference, architecture=architecture)
    loaded = load_model(path)
    assert loaded.checkpoint.name == "tiny"
    [logits] = PagedRun(loaded.model, [PROMPT]).run([[(0, len(PROMPT))]])
    with torch.no_grad():
        torch.testing.assert_close(logits, reference(torch.tensor([PROMPT])).logits[0], atol=1e-4, rtol=0)


def test_sliding_window_makes_a_llama_file_a_mistral(tmp_path: Path) -> None:
    reference = make("mistral")
    path = tmp_path / "tiny.gguf"
    write_model(path, reference, sliding_window=reference.config.sliding_window)
    loaded = load_model(path)
    assert loaded.checkpoint.architecture == "mistral"
    [logits] = PagedRun(loaded.model, [PROMPT * 2]).run([[(0, 2 * len(PROMPT))]])
    with torch.no_grad():
        torch.testing.assert_close(logits, reference(torch.tensor([PROMPT * 2])).logits[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_quantised_tensors_load_in_canonical_row_order(tmp_path: Path, encoding: str) -> None:
    reference = make("llama")
    path = tmp_path / "tiny.gguf"
    write_model(path, reference, encoding)
    tensors = open_checkpoint(path).tensors
    for name, parameter in reference.state_dict().items():
        if name == "lm_head.weight":
            assert name not in tensors
            continue
        out = torch.full(parameter.shape, float("nan"))
        tensors.read_into(name, out)
        exact = (
            parameter.numpy()
            if parameter.ndim == 1
            else quants.dequantize(quants.quantize(parameter.numpy(), GGMLQuantizationType[encoding]), GGMLQuantizationType[encoding])
        )
        assert np.array_equal(out.numpy(), exact), name
        assert (out - parameter).abs().max() <= ERROR_BOUND[encoding]


def test_stored_blocks_and_row_order_give_the_same_values(tmp_path: Path) -> None:
    reference = make("llama")
    path = tmp_path / "tiny.gguf"
    write_model(path, reference, "Q4_1")
    stored = open_checkpoint(path).tensors.stored("model.layers.1.self_attn.k_proj.weight")
    values = reference.state_dict()[stored.name].numpy()
    in_file = quants.quantize(interleave(values, 2), GGMLQuantizationType.Q4_1)
    assert (stored.encoding, stored.shape) == ("Q4_1", values.shape)
    assert bytes(stored.data) == in_file.tobytes()
    assert stored.row_order is not None
    assert np.array_equal(interleave(values, 2)[stored.row_order.numpy()], values)
    assert open_checkpoint(path).tensors.stored("model.layers.1.self_attn.v_proj.weight").row_order is None


def test_tokens_and_ends_come_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_model(path, make("llama"), chat_template="{{ messages }}")
    checkpoint = open_checkpoint(path)
    assert (checkpoint.bos_token, checkpoint.eos_token, checkpoint.eos_token_ids) == ("<|begin|>", "<|end|>", (0, 2))
    assert checkpoint.chat_template == "{{ messages }}"


def test_rope_scaling_of_the_file_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_model(path, make("llama"), rope_scaling_type=gguf.RopeScalingType.LINEAR, rope_scaling_factor=4.0)
    assert open_checkpoint(path).config.rope_scaling == LinearScaling(4.0)
    write_model(path, make("llama"), rope_scaling_type=gguf.RopeScalingType.YARN, rope_scaling_factor=4.0)
    with pytest.raises(UnsupportedCheckpoint, match=r"tiny\.gguf: rope scaling 'yarn'"):
        open_checkpoint(path)


def write_bare(path: Path, **tensors: tuple[np.ndarray, GGMLQuantizationType | None]) -> None:
    """A file with a sound head and these tensors only."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    add_tokenizer(writer, tokens_of_size(128), ["a b"])
    for name, (data, kind) in tensors.items():
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
    finish(writer)


def test_frequency_factors_are_read_from_their_tensor(tmp_path: Path) -> None:
    path = tmp_path / "factors.gguf"
    factors = np.array([1, 1, 2, 8], dtype=np.float32)
    write_bare(path, token_embd=(np.zeros((128, 32), dtype=np.float32), None), rope_freqs=(factors, None))
    checkpoint = open_checkpoint(path)
    assert checkpoint.config.rope_scaling == FactorScaling((1.0, 1.0, 2.0, 8.0))
    assert list(checkpoint.tensors) == ["model.embed_tokens.weight"]


@pytest.mark.parametrize("encoding", ["Q6_K", "Q4_K", "Q5_K"])
def test_super_blocks_load_from_a_file(tmp_path: Path, encoding: str) -> None:
    kind = GGMLQuantizationType[encoding]
    blocks = random_blocks(encoding, 8 * 2).reshape(8, -1)
    path = tmp_path / "super.gguf"
    write_bare(path, token_embd=(blocks, kind))
    tensors = open_checkpoint(path).tensors
    assert tensors.shape("model.embed_tokens.weight") == (8, 512)
    out = torch.full((8, 512), float("nan"))
    tensors.read_into("model.embed_tokens.weight", out)
    assert np.array_equal(out.numpy(), quants.dequantize(blocks, kind))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    model = make("llama")
    model.config.num_hidden_layers = 4
    write_model(path, model)
    with pytest.raises(BrokenCheckpoint, match=r"tiny\.gguf: tensor model\.layers\.3\..* is missing"):
        load_model(path)


def test_a_tensor_that_contradicts_the_configuration_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    model = make("llama")
    model.config.intermediate_size = 64
    write_model(path, model)
    with pytest.raises(BrokenCheckpoint, match=r"mlp\.gate_proj\.weight is \[96, 64\], the configuration says \[64, 64\]"):
        load_model(path)


@pytest.mark.parametrize("architecture", ["gemma3", "mamba"])
def test_other_architectures_are_refused_by_name(tmp_path: Path, architecture: str) -> None:
    path = tmp_path / "tiny.gguf"
    write_model(path, make("qwen2"), architecture=architecture)
    with pytest.raises(UnsupportedCheckpoint, match=f"GGUF architecture '{architecture}'"):
        open_checkpoint(path)


def test_every_tiny_model_is_covered_by_some_file_format() -> None:
    assert {tiny.config.model_type for tiny in TINY.values()} == {"llama", "mistral", "qwen2", "qwen3"}
