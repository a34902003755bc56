"""Precision, context and device of a loaded model."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from inference.models.load import load_model
from inference.weights import UnsupportedCheckpoint
from tests.inference.paged_run import PagedRun
from tests.inference.tiny_models import save

PROMPT = [3, 17, 5, 99, 42, 8, 120]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    save("qwen3", path)
    return path


def test_auto_is_float32_on_a_cpu(folder: Path) -> None:
    loaded = load_model(folder)
    assert loaded.precision == "fp32"
    assert [group.dtype for group in loaded.model.cache_groups] == [torch.float32]
    assert loaded.model.device == torch.device("cpu")


def test_bfloat16_stays_close_to_the_reference_in_bfloat16(folder: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    [logits] = PagedRun(load_model(folder, precision="bf16").model, [PROMPT]).run([[(0, len(PROMPT))]])
    with torch.no_grad():
        exact = reference(torch.tensor([PROMPT])).logits[0]
        rounded = reference.bfloat16()(torch.tensor([PROMPT])).logits[0].float()
    assert (logits - exact).norm() <= 1.5 * (rounded - exact).norm()


def test_context_is_the_smaller_of_the_models_and_the_one_asked_for(folder: Path) -> None:
    assert load_model(folder).model.context_length == 256
    assert load_model(folder, max_context=64).model.context_length == 64
    assert load_model(folder, max_context=4096).model.context_length == 256


def test_precision_is_part_of_the_fingerprint(folder: Path) -> None:
    assert load_model(folder).model.fingerprint != load_model(folder, precision="bf16").model.fingerprint


def test_an_unknown_precision_is_refused(folder: Path) -> None:
    with pytest.raises(UnsupportedCheckpoint, match="precision 'int3' isn't supported"):
        load_model(folder, precision="int3")
