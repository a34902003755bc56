# ruff: noqa: PLR0917
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Two ways through the same inner loop: tiles of query tokens for chunks, split keys for decoding sequences. A mixed batch takes both.

Query heads that share a KV head are rows of one tile, so their keys are read once. Nothing is read back to the host: which sequence a
program serves it finds itself in query_starts, and the grids are upper bounds.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.paged_attention import tuning


@triton.jit
def _attend(
    queries,
    position,
    table,
    key_cache,
    value_cache,
    kv_head,
    first_key,
    end_key,
    lowest_key,
    window,
    scale,
    KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Weighted values [ROWS, WIDTH], maximum and total [ROWS] of keys first_key … end_key - 1; scale is in powers of two."""
    column = tl.arange(0, WIDTH)
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    values = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(first_key, end_key, KEYS):
        key = start + tl.arange(0, KEYS)
        known = (key >= lowest_key) & (key < end_key)
        block = tl.load(table + key // BLOCK_SIZE, mask=known, other=0).to(tl.int64)
        line = ((block * KV_HEADS + kv_head) * BLOCK_SIZE + key % BLOCK_SIZE) * HEAD_SIZE
        k = tl.load(key_cache + line[None, :] + column[:, None], mask=known[None, :] & (column < HEAD_SIZE)[:, None], other=0.0)
        scores = tl.dot(queries, k.to(queries.dtype), input_precision="ieee") * scale
        seen = known[None, :] & (key[None, :] <= position[:, None]) & (key[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        highest = tl.maximum(maximum, tl.max(scores, 1))
        # A row that has seen nothing yet stays at -inf; taking 0 from it instead keeps NaN out.
        base = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(maximum - base)
        v = tl.load(value_cache + line[:, None] + column[None, :], mask=known[:, None] & (column < HEAD_SIZE)[None, :], other=0.0)
        values = values * shrink[:, None] + tl.dot(weights.to(queries.dtype), v.to(queries.dtype), input_precision="ieee")
        total = total * shrink + tl.sum(weights, 1)
        maximum = highest
    return values, maximum, total


@triton.jit
def chunk_kernel(
    q,
    key_cache,
    value_cache,
    block_tables,
    query_starts,
    context_lengths,
    out,
    q_stride,
    table_width,
    sequences,
    window,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Grid: (tokens // TOKENS + sequences, kv_heads). Sequence i has its tiles from query_starts[i] // TOKENS + i on."""
    TOKENS: tl.constexpr = ROWS // GROUP
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = tile * 0
    last = sequences - 1
    while sequence < last:
        middle = (sequence + last + 1) // 2
        if tl.load(query_starts + middle) // TOKENS + middle <= tile:
            sequence = middle
        else:
            last = middle - 1
    start = tl.load(query_starts + sequence)
    chunk = tl.load(query_starts + sequence + 1) - start
    first_token = (tile - (start // TOKENS + sequence)) * TOKENS
    if (first_token >= chunk) | (chunk == 1):  # one token is the split kernel's
        return
    context = tl.load(context_lengths + sequence)

    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    token = first_token + row // GROUP
    inside = (row < TOKENS * GROUP) & (token < chunk)
    position = context - chunk + token
    head = kv_head * GROUP + row % GROUP
    mask = inside[:, None] & (column < HEAD_SIZE)[None, :]
    line = (start + token).to(tl.int64)
    queries = tl.load(q + line[:, None] * q_stride + head[:, None] * HEAD_SIZE + column[None, :], mask=mask, other=0.0)

    lowest_key = tl.maximum(context - chunk + first_token - window + 1, 0)
    end_key = tl.minimum(context, context - chunk + first_token + TOKENS)
    values, _, total = _attend(
        queries,
        position,
        block_tables + sequence.to(tl.int64) * table_width,
        key_cache,
        value_cache,
        kv_head,
        lowest_key // KEYS * KEYS,
        end_key,
        lowest_key,
        window,
        scale,
        KV_HEADS,
        HEAD_SIZE,
        WIDTH,
        BLOCK_SIZE,
        ROWS,
        KEYS,
    )
    result = values / tl.where(total == 0.0, 1.0, total)[:, None]
    place = out + line[:, None] * (KV_HEADS * GROUP * HEAD_SIZE) + head[:, None] * HEAD_SIZE + column[None, :]
    tl.store(place, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def split_kernel(
    q,
    key_cache,
    value_cache,
    block_tables,
    query_starts,
    context_lengths,
    partial_values,
    partial_maxima,
    partial_totals,
    q_stride,
    table_width,
    window,
    scale,
    SPLITS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Grid: (sequences, kv_heads, SPLITS). Partials: [sequences, heads, SPLITS(, head_size)], float32."""
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    start = tl.load(query_starts + sequence)
    if tl.load(query_starts + sequence + 1) - start != 1:
        return
    context = tl.load(context_lengths + sequence)
    lowest_key = tl.maximum(context - window, 0)
    first_key = lowest_key // KEYS * KEYS
    length = tl.cdiv(tl.cdiv(context - first_key, SPLITS), KEYS) * KEYS
    first_key += split * length
    end_key = tl.minimum(context, first_key + length)

    row = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    head = kv_head * GROUP + row
    mask = (row < GROUP)[:, None] & (column < HEAD_SIZE)[None, :]
    queries = tl.load(q + start.to(tl.int64) * q_stride + head[:, None] * HEAD_SIZE + column[None, :], mask=mask, other=0.0)
    values, maximum, total = _attend(
        queries,
        tl.zeros([ROWS], tl.int32) + context - 1,
        block_tables + sequence.to(tl.int64) * table_width,
        key_cache,
        value_cache,
        kv_head,
        first_key,
        end_key,
        lowest_key,
        window,
        scale,
        KV_HEADS,
        HEAD_SIZE,
        WIDTH,
        BLOCK_SIZE,
        ROWS,
        KEYS,
    )
    part = (sequence * (KV_HEADS * GROUP) + head).to(tl.int64) * SPLITS + split
    tl.store(partial_values + part[:, None] * HEAD_SIZE + column[None, :], values, mask=mask)
    tl.store(partial_maxima + part, maximum, mask=row < GROUP)
    tl.store(partial_totals + part, total, mask=row < GROUP)


@triton.jit
def merge_kernel(
    partial_values,
    partial_maxima,
    partial_totals,
    query_starts,
    out,
    HEADS: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS_WIDTH: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Grid: (sequences, heads)."""
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    start = tl.load(query_starts + sequence)
    if tl.load(query_starts + sequence + 1) - start != 1:
        return
    split = tl.arange(0, SPLITS_WIDTH)
    column = tl.arange(0, WIDTH)
    part = (sequence * HEADS + head).to(tl.int64) * SPLITS + split
    maxima = tl.load(partial_maxima + part, mask=split < SPLITS, other=float("-inf"))
    totals = tl.load(partial_totals + part, mask=split < SPLITS, other=0.0)
    mask = (split < SPLITS)[:, None] & (column < HEAD_SIZE)[None, :]
    values = tl.load(partial_values + part[:, None] * HEAD_SIZE + column[None, :], mask=mask, other=0.0)
    factors = tl.exp2(maxima - tl.max(maxima, 0))
    result = tl.sum(values * factors[:, None], 0) / tl.sum(totals * factors, 0)
    place = out + (start.to(tl.int64) * HEADS + head) * HEAD_SIZE + column
    tl.store(place, result.to(out.dtype.element_ty), mask=column < HEAD_SIZE)


def paged_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lengths: Tensor,
    *,
    scale: float,
    window: int | None = None,
) -> Tensor:
    tokens, heads, head_size = q.shape
    _, kv_heads, block_size, _ = key_cache.shape
    sequences, table_width = block_tables.shape
    out = torch.empty((tokens, heads, head_size), dtype=q.dtype, device=q.device)
    if not tokens:
        return out
    group = heads // kv_heads
    width = triton.next_power_of_2(head_size)
    span = table_width * block_size if window is None else min(window, table_width * block_size)
    where = (q, key_cache, value_cache, block_tables, query_starts.contiguous(), context_lengths.contiguous())
    powers_of_two = scale * 1.4426950408889634
    shape = {"KV_HEADS": kv_heads, "GROUP": group, "HEAD_SIZE": head_size, "WIDTH": width, "BLOCK_SIZE": block_size}

    splits = tuning.splits(sequences, kv_heads, span)
    tile = tuning.decode(group, head_size, q.element_size())
    partial_values = torch.empty((sequences, heads, splits, head_size), dtype=torch.float32, device=q.device)
    partial_maxima = torch.empty((sequences, heads, splits), dtype=torch.float32, device=q.device)
    partial_totals = torch.empty_like(partial_maxima)
    partials = (partial_values, partial_maxima, partial_totals)
    window_keys = table_width * block_size if window is None else window
    split_kernel[(sequences, kv_heads, splits)](
        *where,
        *partials,
        q.stride(0),
        table_width,
        window_keys,
        powers_of_two,
        SPLITS=splits,
        **shape,
        ROWS=tile.rows,
        KEYS=tile.keys,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    merge_kernel[(sequences, heads)](
        *partials,
        where[4],
        out,
        HEADS=heads,
        SPLITS=splits,
        SPLITS_WIDTH=triton.next_power_of_2(splits),
        HEAD_SIZE=head_size,
        WIDTH=width,
    )
    if tokens > sequences:
        tile = tuning.prefill(group, head_size, q.element_size())
        chunk_kernel[(tokens // (tile.rows // group) + sequences, kv_heads)](
            *where,
            out,
            q.stride(0),
            table_width,
            sequences,
            window_keys,
            powers_of_two,
            **shape,
            ROWS=tile.rows,
            KEYS=tile.keys,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    return out
