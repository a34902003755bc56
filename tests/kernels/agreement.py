"""How near an implementation must come to the reference: stated here once."""

import os

import torch
from torch import Tensor

TRITON_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
IMPLEMENTATION = "triton" if TRITON_INTERPRETED else "cpu"
"""Triton decides at its import whether it interprets, so a process tests either (test_triton_interpreted starts the other one)."""

TOLERANCE = {
    torch.float32: (1e-5, 1e-5),
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (1.6e-2, 1.6e-2),  # the interpreter cuts off where a GPU rounds
}
"""Absolute and relative, of the type of the result."""


def assert_agrees(actual: Tensor, expected: Tensor) -> None:
    absolute, relative = TOLERANCE[expected.dtype]
    torch.testing.assert_close(actual, expected, atol=absolute, rtol=relative)
