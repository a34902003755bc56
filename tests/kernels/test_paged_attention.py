from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels.errors import DtypeError, ShapeError
from kernels.paged_attention import paged_attention
from tests.kernels.agreement import TRITON_INTERPRETED, assert_agrees


@dataclass(frozen=True)
class Shape:
    chunks: tuple[int, ...]
    contexts: tuple[int, ...]
    heads: int
    kv_heads: int
    head_size: int
    block_size: int


SHAPES = {
    "one token": Shape((1,), (1,), 1, 1, 64, 16),
    "decodes, group of 3": Shape((1, 1, 1), (1, 64, 129), 9, 3, 64, 16),
    "split decode": Shape((1, 1), (300, 3), 6, 2, 64, 16),
    "prefill from nothing": Shape((17,), (17,), 8, 1, 128, 16),
    "mixed": Shape((1, 5, 1, 40), (70, 5, 33, 100), 9, 3, 64, 16),
    "tiles of blocks of 32": Shape((3, 30), (100, 65), 4, 4, 80, 32),
    "heads of 96": Shape((1, 9), (33, 90), 6, 2, 96, 16),
    "heads of 256": Shape((2, 1), (33, 20), 2, 1, 256, 32),
    "blocks of 8, heads of 32": Shape((20, 1), (40, 9), 4, 2, 32, 8),
    "blocks of 5, group of 7": Shape((9, 1), (33, 90), 7, 1, 16, 5),
    "heads of 8": Shape((3, 1), (5, 9), 2, 2, 8, 4),
}
if not TRITON_INTERPRETED:
    SHAPES["long"] = Shape((90, 1), (700, 300), 9, 3, 64, 16)
FLOAT32, NARROW_CACHE, FLOAT16 = (torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.float16, torch.float16)
CASES = [(None, FLOAT32), (40, FLOAT32), (None, FLOAT16)]
"""window, types of queries and caches"""
if not TRITON_INTERPRETED:
    CASES = [(window, types) for window in (None, 1, 40) for types in (FLOAT32, NARROW_CACHE)]


def step(shape: Shape, types: tuple[torch.dtype, torch.dtype], window: int | None = None) -> tuple[Tensor, ...]:
    """The arguments of a step, in pages drawn at random; whatever no token may see is NaN."""
    query_type, cache_type = types
    blocks = [-(-context // shape.block_size) for context in shape.contexts]
    pages = (1 + torch.randperm(sum(blocks))).split(blocks)
    caches = torch.full((2, 1 + sum(blocks), shape.kv_heads, shape.block_size, shape.head_size), float("nan"), dtype=cache_type)
    tables = torch.zeros(len(blocks), max(blocks), dtype=torch.int32)
    for row, (page, context, chunk) in enumerate(zip(pages, shape.contexts, shape.chunks, strict=True)):
        tables[row, : len(page)] = page
        first = 0 if window is None else max(0, context - chunk - window + 1)
        for position in range(first, context):
            place = page[position // shape.block_size], slice(None), position % shape.block_size
            for cache in caches:
                cache[place] = torch.randn(shape.kv_heads, shape.head_size)
        tables[row, : first // shape.block_size] = 0
    starts = torch.tensor([0, *torch.tensor(shape.chunks).cumsum(0)], dtype=torch.int32)
    q = torch.randn(sum(shape.chunks), (shape.heads + 2) * shape.head_size).to(query_type)
    q = q[:, : shape.heads * shape.head_size].view(-1, shape.heads, shape.head_size)
    return q, caches[0], caches[1], tables, starts, torch.tensor(shape.contexts, dtype=torch.int32)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_it_agrees_with_the_reference(implementation, expected, shape, case):
    window, types = case
    arguments = step(shape, types, window)
    actual = paged_attention(*arguments, scale=shape.head_size**-0.5, window=window)
    assert_agrees(actual, expected(lambda: paged_attention(*arguments, scale=shape.head_size**-0.5, window=window)))


def test_the_reference_is_causal_attention_where_there_are_no_pages(expected):
    q, keys, values, tables, starts, contexts = step(Shape((12,), (12,), 6, 2, 16, 12), FLOAT32)
    page = int(tables[0, 0])
    plain = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), keys[page], values[page], is_causal=True, scale=0.3, enable_gqa=True
    )
    assert_agrees(expected(lambda: paged_attention(q, keys, values, tables, starts, contexts, scale=0.3)), plain.transpose(0, 1))


@pytest.mark.skipif(TRITON_INTERPRETED, reason="a promise of the CPU kernel only")
@pytest.mark.parametrize("window", [None, 70])
def test_a_token_keeps_its_bits_in_any_chunk(implementation, window):
    q, keys, values, tables, starts, contexts = step(Shape((50,), (200,), 9, 3, 64, 16), FLOAT32)
    together = paged_attention(q, keys, values, tables, starts, contexts, scale=0.125, window=window)
    for token in (0, 13, 49):
        alone = paged_attention(
            q[token : token + 1],
            keys,
            values,
            tables,
            torch.tensor([0, 1], dtype=torch.int32),
            torch.tensor([151 + token], dtype=torch.int32),
            scale=0.125,
            window=window,
        )
        assert torch.equal(alone, together[token : token + 1])


def test_it_refuses_what_does_not_fit_together():
    q, keys, values, tables, starts, contexts = step(Shape((2, 1), (5, 9), 4, 2, 16, 4), FLOAT32)
    with pytest.raises(ShapeError):
        paged_attention(q[:, :3], keys, values, tables, starts, contexts, scale=1.0)
    with pytest.raises(ShapeError):
        paged_attention(q, keys, values, tables, starts[:2], contexts, scale=1.0)
    with pytest.raises(ShapeError):
        paged_attention(q, keys, values, tables, starts, contexts, scale=1.0, window=0)
    with pytest.raises(DtypeError):
        paged_attention(q, keys, values, tables.long(), starts, contexts, scale=1.0)
