import pytest
import torch

from kernels.errors import DtypeError, ShapeError
from kernels.kv_write import kv_write
from tests.kernels.agreement import TRITON_INTERPRETED, assert_agrees

CPU_TYPES = [(torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16)]
TYPES = [*CPU_TYPES, (torch.float16, torch.float16)] if TRITON_INTERPRETED else CPU_TYPES
SHAPES = [(1, 1, 64, 16), (7, 3, 64, 16), (33, 2, 80, 32), (40, 4, 8, 4)]
"""tokens, kv_heads, head_size, block_size"""


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_only_the_slots_change_and_they_hold_the_tokens(implementation, expected, shape, types):
    tokens, kv_heads, head_size, block_size = shape
    source, cached = types
    fused = torch.randn(tokens, 3 * kv_heads * head_size).to(source)
    _, k, v = (part.view(tokens, kv_heads, head_size) for part in fused.chunk(3, dim=1))
    blocks = -(-2 * tokens // block_size)
    slots = torch.randperm(blocks * block_size)[:tokens]

    def written() -> torch.Tensor:
        caches = torch.full((2, blocks, kv_heads, block_size, head_size), 7.0, dtype=cached)
        kv_write(k, v, *caches, slots)
        return caches

    actual = written()
    wanted = expected(written)
    assert_agrees(actual, wanted)
    untouched = torch.ones(blocks * block_size, dtype=torch.bool)
    untouched[slots] = False
    lines = actual.transpose(2, 3).reshape(2, blocks * block_size, -1)
    assert (lines[:, untouched] == 7.0).all()


@pytest.mark.skipif(TRITON_INTERPRETED, reason="the interpreter cuts off")
def test_bfloat16_caches_round_to_nearest_even_and_keep_nan(implementation):
    even_half, odd_half, above_half, largest, nan, infinity = 0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800001, 0x7F800000
    bits = torch.tensor([even_half, odd_half, above_half, largest, nan, infinity, 1, -0x7FFFFFFF], dtype=torch.int32)
    k = bits.view(torch.float32).view(1, 1, 8)
    caches = torch.zeros(2, 1, 1, 4, 8, dtype=torch.bfloat16)
    kv_write(k, k, *caches, torch.tensor([2]))
    torch.testing.assert_close(caches[0, 0, 0, 2], k.view(8).bfloat16(), rtol=0, atol=0, equal_nan=True)


def test_it_refuses_what_does_not_fit_together():
    k, caches, slots = torch.randn(2, 3, 8), torch.zeros(2, 4, 3, 16, 8), torch.tensor([0, 1])
    with pytest.raises(ShapeError):
        kv_write(k, k[:1], *caches, slots)
    with pytest.raises(ShapeError):
        kv_write(k[:, :2], k[:, :2], *caches, slots)
    with pytest.raises(ShapeError):
        kv_write(k, k, *caches.transpose(3, 4), slots)
    with pytest.raises(DtypeError):
        kv_write(k, k, *caches, slots.int())
