import pytest
import torch

from kernels.errors import ShapeError
from kernels.silu_mul import silu_mul
from tests.kernels.agreement import TRITON_INTERPRETED, assert_agrees

DTYPES = [torch.float32, torch.float16, torch.bfloat16] if TRITON_INTERPRETED else [torch.float32]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (1, 1536), (3, 37), (30, 1030)], ids=str)
def test_it_agrees_with_the_reference(implementation, expected, shape, dtype):
    tokens, inner = shape
    gate_up = (10 * torch.randn(tokens, 2 * inner)).to(dtype)
    assert_agrees(silu_mul(gate_up), expected(lambda: silu_mul(gate_up)))


def test_extreme_gates_neither_overflow_nor_vanish_wrongly(implementation):
    gate = torch.tensor([[-1e30, -100.0, -88.0, 0.0, 88.0, 100.0, 1e30, -0.0]])
    out = silu_mul(torch.cat((gate, torch.ones(1, 8)), dim=1))
    assert_agrees(out, torch.tensor([[0.0, 0.0, 0.0, 0.0, 88.0, 100.0, 1e30, 0.0]]))


def test_the_reference_gates(expected):
    assert_agrees(expected(lambda: silu_mul(torch.tensor([[1.0, 3.0]]))), torch.tensor([[3.0]]) / (1 + torch.tensor(-1.0).exp()))


def test_it_refuses_an_odd_row():
    with pytest.raises(ShapeError):
        silu_mul(torch.randn(2, 7))
