import pytest
import torch

from kernels.errors import DtypeError, ShapeError
from kernels.rms_norm import rms_norm
from tests.kernels.agreement import TRITON_INTERPRETED, assert_agrees

DTYPES = [torch.float32, torch.float16, torch.bfloat16] if TRITON_INTERPRETED else [torch.float32]
SHAPES = [(1, 1), (1, 576), (7, 37), (9, 576), (70, 576)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("with_residual", [False, True], ids=["alone", "residual"])
def test_it_agrees_with_the_reference(implementation, expected, shape, dtype, with_residual):
    tokens, hidden = shape
    x = torch.randn(tokens, 2 * hidden).to(dtype)[:, :hidden]
    weight = torch.randn(hidden).to(dtype)
    residual = torch.randn(shape).to(dtype) if with_residual else None
    before = x.clone()

    actual = rms_norm(x, weight, 1e-5, residual=residual)
    wanted = expected(lambda: rms_norm(x, weight, 1e-5, residual=residual))

    if with_residual:
        assert_agrees(actual[0], wanted[0])
        assert_agrees(actual[1], wanted[1])
    else:
        assert_agrees(actual, wanted)
    assert torch.equal(x, before)


def test_a_row_keeps_its_bits_in_any_batch(implementation):
    x, weight = torch.randn(40, 576), torch.randn(576)
    together = rms_norm(x, weight, 1e-5)
    assert torch.equal(rms_norm(x[17:18], weight, 1e-5), together[17:18])


def test_the_reference_makes_a_row_of_root_mean_square_one(expected):
    row = expected(lambda: rms_norm(torch.tensor([[3.0, -4.0]]), torch.tensor([1.0, 2.0]), 0.0))
    assert_agrees(row, torch.tensor([[3.0, -8.0]]) / 12.5**0.5)


def test_it_refuses_what_does_not_fit_together():
    x = torch.randn(2, 8)
    with pytest.raises(ShapeError):
        rms_norm(x, torch.randn(7), 1e-5)
    with pytest.raises(ShapeError):
        rms_norm(x, torch.randn(8), 1e-5, residual=torch.randn(3, 8))
    with pytest.raises(DtypeError):
        rms_norm(x, torch.randn(8), 1e-5, residual=torch.randn(2, 8).half())
