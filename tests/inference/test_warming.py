"""What the worker runs before it is ready."""

import pytest

from inference.config import EngineConfig
from inference.warming import warm_up
from tests.inference.scripted_model import ScriptedModel


@pytest.mark.parametrize("block_size", [1, 16, 256])
def test_it_runs_a_prompt_and_decodes_with_blocks_of_any_size(block_size):
    model = ScriptedModel()
    warm_up(model, EngineConfig(block_size=block_size, step_tokens=8, prefill_chunk=8))
    assert model.steps > 4


@pytest.mark.parametrize("context_length", [2, 3, 4, 40])
def test_it_fits_a_model_of_any_context_length(context_length):
    model = ScriptedModel(context_length=context_length)
    warm_up(model, EngineConfig())
    assert model.steps >= 1
