"""One saved tiny model per architecture and variant, beside transformers' own."""

from collections.abc import Callable
from functools import cache

import pytest
from transformers import PreTrainedModel

from inference.models.load import LoadedModel, load_model
from tests.inference.tiny_models import save

Pair = Callable[[str], tuple[LoadedModel, PreTrainedModel]]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """By name: the loaded model, and the one it must agree with."""

    @cache
    def get(name: str) -> tuple[LoadedModel, PreTrainedModel]:
        folder = tmp_path_factory.mktemp(name)
        reference = save(name, folder)
        return load_model(folder), reference

    return get
