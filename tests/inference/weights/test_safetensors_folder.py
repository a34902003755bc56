"""Hugging Face folders, sound and damaged."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.models.load import load_model
from inference.weights import BrokenCheckpoint, UnsupportedCheckpoint, WeightsError, open_checkpoint
from tests.inference.tiny_models import make, save

SHARDED = "llama3-scaling-biases-sharded"


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for name in ("llama", "qwen2", SHARDED):
        folders[name] = tmp_path_factory.mktemp(name)
        save(name, folders[name])
    return folders


@pytest.fixture
def folder(originals: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy to damage."""
    return lambda name: shutil.copytree(originals[name], tmp_path / name)


def edit(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            content.pop(key, None)
        else:
            content[key] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("name", ["llama", SHARDED])
def test_tensors_read_as_saved(folder: Callable[[str], Path], name: str) -> None:
    path = folder(name)
    assert (len(list(path.glob("*.safetensors"))) > 1) == (name == SHARDED)
    tensors = open_checkpoint(path).tensors
    for tensor_name, parameter in make(name).named_parameters():
        out = torch.empty(parameter.shape)
        tensors.read_into(tensor_name, out)
        assert torch.equal(out, parameter)
        stored = tensors.stored(tensor_name)
        assert (stored.shape, stored.encoding, stored.data.nbytes) == (tuple(parameter.shape), "F32", 4 * parameter.numel())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_files_load_in_any_precision(folder: Callable[[str], Path], dtype: torch.dtype) -> None:
    path = folder("llama")
    weights = {name: tensor.to(dtype) for name, tensor in load_file(path / "model.safetensors").items()}
    save_file(weights, path / "model.safetensors")
    out = torch.empty(weights["model.norm.weight"].shape)
    open_checkpoint(path).tensors.read_into("model.norm.weight", out)
    assert torch.equal(out, weights["model.norm.weight"].float())
    assert load_model(path, precision="bf16").model.cache_groups[0].dtype == torch.bfloat16


def test_ends_come_from_generation_config_and_tokenizer(folder: Callable[[str], Path]) -> None:
    path = folder("llama")
    edit(path / "generation_config.json", eos_token_id=[5, 7])
    checkpoint = open_checkpoint(path)
    assert checkpoint.eos_token_ids == (5, 7, 2)
    assert (checkpoint.bos_token, checkpoint.eos_token) == ("<s>", "</s>")
    (path / "generation_config.json").unlink()
    edit(path / "config.json", eos_token_id=9)
    assert open_checkpoint(path).eos_token_ids == (9, 2)


def test_chat_template_of_its_own_file_comes_first(folder: Callable[[str], Path]) -> None:
    path = folder("llama")
    assert open_checkpoint(path).chat_template == "{{ messages[0]['content'] }}"
    edit(path / "tokenizer_config.json", chat_template=[{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}])
    assert open_checkpoint(path).chat_template == "d"
    (path / "chat_template.jinja").write_text("file")
    assert open_checkpoint(path).chat_template == "file"
    (path / "chat_template.jinja").unlink()
    (path / "tokenizer_config.json").unlink()
    assert open_checkpoint(path).chat_template is None


def test_a_hub_snapshot_is_named_after_its_model(originals: dict[str, Path], tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--acme--tiny-llama" / "snapshots" / "0123abcd"
    shutil.copytree(originals["llama"], snapshot)
    assert open_checkpoint(snapshot).name == "acme/tiny-llama"


def test_old_rope_fields_are_understood(folder: Callable[[str], Path]) -> None:
    path = folder("llama")
    new = open_checkpoint(path).config
    edit(path / "config.json", rope_parameters=None, rope_theta=10000.0, rope_scaling=None)
    assert open_checkpoint(path).config == new


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"architectures": ["BloomForCausalLM"]}, UnsupportedCheckpoint, "architecture 'BloomForCausalLM'"),
        ({"architectures": None}, BrokenCheckpoint, "architectures"),
        ({"hidden_size": "wide"}, BrokenCheckpoint, "hidden_size must be an integer"),
        ({"hidden_size": None}, BrokenCheckpoint, "hidden_size"),
        ({"num_key_value_heads": 3}, BrokenCheckpoint, "multiple"),
        ({"hidden_act": "gelu"}, UnsupportedCheckpoint, "hidden_act 'gelu'"),
        ({"rms_norm_eps": 0}, BrokenCheckpoint, "rms_norm_eps"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, UnsupportedCheckpoint, "rope scaling 'yarn'"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, UnsupportedCheckpoint, "rope scaling 'dynamic'"),
        ({"rope_parameters": {"rope_type": "linear"}}, BrokenCheckpoint, "factor must be a positive number"),
        ({"quantization_config": {"quant_method": "awq"}}, UnsupportedCheckpoint, "quantised safetensors"),
        ({"tie_word_embeddings": "no"}, BrokenCheckpoint, "tie_word_embeddings"),
    ],
    ids=str,
)
def test_configurations_that_cannot_run_are_refused_by_field(
    folder: Callable[[str], Path], changes: dict[str, object], error: type[WeightsError], message: str
) -> None:
    path = folder("llama")
    edit(path / "config.json", **changes)
    with pytest.raises(error, match=r"config\.json: .*" + message):
        open_checkpoint(path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_broken_json_is_refused_by_file(folder: Callable[[str], Path], name: str) -> None:
    path = folder("llama")
    (path / name).write_text('{"cut": ')
    with pytest.raises(BrokenCheckpoint, match=name):
        open_checkpoint(path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(folder: Callable[[str], Path], name: str) -> None:
    path = folder("llama")
    (path / name).unlink()
    with pytest.raises(BrokenCheckpoint, match=name):
        open_checkpoint(path)


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, 0.999])
def test_a_truncated_file_is_named(folder: Callable[[str], Path], keep: float) -> None:
    path = folder("llama") / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: keep if isinstance(keep, int) else int(keep * len(whole))])
    with pytest.raises(BrokenCheckpoint, match=r"model\.safetensors: truncated or damaged"):
        open_checkpoint(path.parent)


def test_a_missing_or_escaping_shard_is_named(folder: Callable[[str], Path]) -> None:
    path = folder(SHARDED)
    index = path / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    first = next(iter(weight_map))
    edit(index, weight_map=weight_map | {first: "../elsewhere.safetensors"})
    with pytest.raises(BrokenCheckpoint, match="isn't a file of this folder"):
        open_checkpoint(path)
    edit(index, weight_map=weight_map | {"model.unheard_of.weight": weight_map[first]})
    with pytest.raises(BrokenCheckpoint, match=r"tensor model\.unheard_of\.weight is missing"):
        open_checkpoint(path)
    edit(index, weight_map=weight_map)
    (path / weight_map[first]).unlink()
    with pytest.raises(BrokenCheckpoint, match=f"{weight_map[first]}: the file is missing"):
        open_checkpoint(path)


def test_missing_surplus_and_misshapen_tensors_are_named(folder: Callable[[str], Path]) -> None:
    path = folder("llama")
    file = path / "model.safetensors"
    weights = load_file(file)
    bias = "model.layers.0.self_attn.q_proj.bias"
    save_file(weights | {bias: torch.zeros(64)}, file)
    with pytest.raises(UnsupportedCheckpoint, match=f"{bias} isn't part of"):
        load_model(path)
    save_file({name: tensor for name, tensor in weights.items() if name != "model.norm.weight"}, file)
    with pytest.raises(BrokenCheckpoint, match=r"model\.norm\.weight is missing"):
        load_model(path)
    save_file(weights | {"model.norm.weight": torch.ones(63)}, file)
    with pytest.raises(BrokenCheckpoint, match=r"model\.norm\.weight is \[63\], the configuration says \[64\]"):
        load_model(path)
    save_file(weights | {"model.norm.weight": torch.ones(64, dtype=torch.int64)}, file)
    with pytest.raises(UnsupportedCheckpoint, match="stored as I64"):
        load_model(path)


def test_buffers_that_old_versions_saved_are_ignored(folder: Callable[[str], Path]) -> None:
    path = folder("llama")
    file = path / "model.safetensors"
    save_file(load_file(file) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}, file)
    assert load_model(path).model.vocab_size == 128


def test_an_end_token_outside_the_vocabulary_is_refused(folder: Callable[[str], Path]) -> None:
    path = folder("llama")
    edit(path / "generation_config.json", eos_token_id=128)
    with pytest.raises(BrokenCheckpoint, match="128 is outside the vocabulary"):
        load_model(path)
