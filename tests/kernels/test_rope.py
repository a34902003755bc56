import pytest
import torch

from kernels.errors import DtypeError, ShapeError
from kernels.rope import rope
from tests.kernels.agreement import TRITON_INTERPRETED, assert_agrees

DTYPES = [torch.float32, torch.float16, torch.bfloat16] if TRITON_INTERPRETED else [torch.float32]
SHAPES = [(1, 1, 1, 64), (5, 9, 3, 64), (17, 4, 4, 80), (11, 20, 2, 96), (3, 3, 1, 256), (2, 2, 1, 8)]
"""tokens, heads, kv_heads, head_size"""
POSITIONS = 50


def angles(head_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.outer(torch.arange(POSITIONS), 10000.0 ** -(torch.arange(0, head_size, 2) / head_size)).float()
    return angle.cos(), angle.sin()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_agrees_with_the_reference_inside_a_fused_projection(implementation, expected, shape, dtype):
    tokens, heads, kv_heads, head_size = shape
    fused = torch.randn(tokens, (heads + 2 * kv_heads) * head_size).to(dtype)
    positions = torch.randint(0, POSITIONS, (tokens,))

    def rotated() -> torch.Tensor:
        qkv = fused.clone()
        q, k, _ = qkv.split([heads * head_size, kv_heads * head_size, kv_heads * head_size], dim=1)
        rope(q.view(tokens, heads, head_size), k.view(tokens, kv_heads, head_size), *angles(head_size), positions)
        return qkv

    actual = rotated()
    assert_agrees(actual, expected(rotated))
    assert torch.equal(actual[:, (heads + kv_heads) * head_size :], fused[:, (heads + kv_heads) * head_size :])


def test_the_reference_turns_each_pair_by_its_angle(expected):
    q = torch.tensor([[[1.0, 0.0]]])
    quarter = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [1.0]])
    expected(lambda: rope(q, q.clone(), *quarter, torch.tensor([1])))
    assert_agrees(q, torch.tensor([[[0.0, 1.0]]]))


def test_it_refuses_what_does_not_fit_together():
    q, k, positions = torch.randn(2, 4, 8), torch.randn(2, 2, 8), torch.tensor([0, 1])
    cos, sin = angles(8)
    with pytest.raises(ShapeError):
        rope(q, k, cos[:, :3], sin[:, :3], positions)
    with pytest.raises(ShapeError):
        rope(q, k[:1], cos, sin, positions)
    with pytest.raises(ShapeError):
        rope(q.transpose(0, 1).contiguous().transpose(0, 1), k, cos, sin, positions)
    with pytest.raises(DtypeError):
        rope(q, k, cos, sin, positions.int())
