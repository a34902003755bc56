"""The default model's own greedy tokens, by the plainest loop there is (the engine's runs over all golden items are its own tests)."""

import json
from pathlib import Path

import pytest

from inference.models.load import LoadedModel, load_model
from inference.weights import default_model_path
from tests.inference.paged_run import greedy

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "smollm2_greedy.json").read_text())["items"]
TEXTS = ["What is the capital of France?", "List three uses of a paperclip.", "1, 2, 3, 4, 5, 6,", "The three primary colours are"]
MOST_STEPS = 16


@pytest.fixture(scope="module")
def default_model() -> LoadedModel:
    return load_model(default_model_path(), max_context=4096)


@pytest.mark.parametrize("text", TEXTS)
def test_greedy_tokens_are_the_golden_ones(default_model: LoadedModel, text: str) -> None:
    [item] = [item for item in GOLDEN if item["text"] == text]
    steps = min(item["safe_steps"], MOST_STEPS)
    assert greedy(default_model.model, item["prompt_ids"], steps) == item["tokens"][:steps]


def test_card_describes_the_model(default_model: LoadedModel) -> None:
    card = default_model.card(max_prompt_tokens=4095, created=1)
    assert (card.name, card.architecture, card.precision) == ("SmolLM2-135M-Instruct", "llama", "fp32")
    assert (card.vocab_size, card.context_length, card.parameters) == (49152, 4096, 134_515_008)
    assert (card.eos_token_ids, card.eos_token) == ((2,), "<|im_end|>")
    assert card.chat_template is not None
    assert card.fingerprint == default_model.model.fingerprint
    assert len(card.fingerprint) == 64
