from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from kernels.selection import use
from tests.kernels.agreement import IMPLEMENTATION


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(20)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a kernel allocates and doesn't write shows as NaN."""
    for name in ("empty", "empty_like"):
        allocate = getattr(torch, name)

        def nan(*args: object, allocate: Callable[..., Tensor] = allocate, **kwargs: object) -> Tensor:
            tensor = allocate(*args, **kwargs)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        monkeypatch.setattr(torch, name, nan)


@pytest.fixture
def implementation(poisoned: None) -> Iterator[str]:
    """Everything runs on the implementation under test."""
    with use(IMPLEMENTATION):
        yield IMPLEMENTATION


@pytest.fixture
def expected() -> Callable[[Callable[[], object]], object]:
    """What the reference makes of a call."""

    def by_reference(call: Callable[[], object]) -> object:
        with use("reference"):
            return call()

    return by_reference
