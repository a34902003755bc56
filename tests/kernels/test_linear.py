import pytest
import torch
from torch.nn import functional

from kernels.errors import ShapeError
from kernels.linear import PackedLinear
from kernels.selection import use
from tests.kernels.agreement import IMPLEMENTATION, assert_agrees

ROWS = [1, 2, 5, 6, 7, 13, 200]
SHAPES = [(1, 1), (16, 8), (37, 23), (960, 576), (48, 1536)]
"""out, in"""


@pytest.mark.parametrize("kind", [IMPLEMENTATION, "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_agrees_with_a_product_in_double_precision(poisoned, shape, dtype, with_bias, kind):
    outputs, inputs = shape
    weight = torch.randn(shape).to(dtype) / inputs**0.5
    bias = torch.randn(outputs).to(dtype) if with_bias else None
    with use(kind):
        linear = PackedLinear.pack(weight, bias)
    for rows in ROWS:
        x = torch.randn(rows, inputs + 3)[:, :inputs]
        exact = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
        assert_agrees(linear(x), exact.float())


@pytest.mark.skipif(IMPLEMENTATION != "cpu", reason="promises of the CPU kernel only")
class TestOnTheCpu:
    def test_a_row_keeps_its_bits_in_any_batch(self):
        linear = PackedLinear.pack(torch.randn(100, 576))
        x = torch.randn(120, 576)
        together = linear(x)
        for first, count in ((0, 1), (57, 1), (3, 8), (100, 20)):
            assert torch.equal(linear(x[first : first + count]), together[first : first + count])

    def test_bfloat16_weights_give_the_bits_of_the_same_weights_widened(self):
        weight = torch.randn(100, 576).bfloat16()
        x = torch.randn(9, 576)
        assert torch.equal(PackedLinear.pack(weight)(x), PackedLinear.pack(weight.float())(x))

    def test_it_holds_no_second_copy(self):
        weight = torch.randn(960, 576)
        assert PackedLinear.pack(weight).nbytes == weight.nbytes + 960 * 4


def test_no_rows_give_no_rows():
    assert PackedLinear.pack(torch.randn(8, 4))(torch.randn(0, 4)).shape == (0, 8)


def test_it_refuses_what_does_not_fit_together():
    with pytest.raises(ShapeError):
        PackedLinear.pack(torch.randn(8, 4), torch.randn(4))
    with pytest.raises(ShapeError):
        PackedLinear.pack(torch.randn(8, 4))(torch.randn(2, 5))
