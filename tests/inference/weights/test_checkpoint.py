"""What a checkpoint's fingerprint depends on."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from inference.weights import open_checkpoint
from tests.inference.tiny_models import save


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    save("llama", path)
    return path


def fingerprint(path: Path, precision: str = "fp32") -> str:
    return open_checkpoint(path).fingerprint(precision)


def test_a_copy_elsewhere_and_in_shards_is_the_same_model(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert fingerprint(copy) == fingerprint(folder)
    weights = load_file(copy / "model.safetensors")
    weight_map = {name: f"{index % 2}.safetensors" for index, name in enumerate(weights)}
    for shard in set(weight_map.values()):
        save_file({name: tensor for name, tensor in weights.items() if weight_map[name] == shard}, copy / shard)
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert fingerprint(copy) == fingerprint(folder)


def test_one_changed_bit_is_another_model(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1000] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    assert fingerprint(copy) != fingerprint(folder)


def test_configuration_and_precision_are_part_of_it(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    assert len({fingerprint(folder), fingerprint(folder, "bf16"), fingerprint(copy)}) == 3


def test_tied_embeddings_count_once(folder: Path) -> None:
    per_layer = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 96 + 2 * 64
    assert open_checkpoint(folder).parameters == 128 * 64 + 3 * per_layer + 64
