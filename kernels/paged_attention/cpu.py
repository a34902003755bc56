"""Attention straight from the pages, with the matrix tiles of the linear layers.

A piece of work is one sequence's KV head and some query tokens: their heads of the group are the rows of one matrix. Keys come 64 at a time, at
positions that are multiples of 64; each page's keys are transposed into a scratch panel that stays in the first-level cache, values are read where they lie.
A row's result depends on its position and its cache alone, not on the chunk or the batch that brought it: decoding gives the bits that prefill gives.
"""

import numpy as np
import torch
from numba import carray, njit
from torch import Tensor

from kernels import vectors as vec
from kernels.compiled import ADDRESS, COUNT, REAL, arguments, as_float32, as_int32, as_uint16, as_uint32, claim, kernel
from kernels.paged_attention import reference

ROWS = 48
"""Rows of a tile: enough that transposing the keys is a twentieth of the work, few enough that scratch stays in the second-level cache."""


def supports(*dtypes: torch.dtype) -> bool:
    """q's type and the caches'."""
    return dtypes in {(torch.float32, torch.float32), (torch.float32, torch.bfloat16)}


_Arguments = arguments(
    q=ADDRESS,
    q_stride=COUNT,
    key_cache=ADDRESS,
    value_cache=ADDRESS,
    cache_bytes=COUNT,
    block_tables=ADDRESS,
    table_width=COUNT,
    query_starts=ADDRESS,
    context_lengths=ADDRESS,
    sequences=COUNT,
    out=ADDRESS,
    heads=COUNT,
    kv_heads=COUNT,
    head_size=COUNT,
    block_size=COUNT,
    window=COUNT,
    tokens_at_once=COUNT,
    scale=REAL,
)


@njit(inline="never")  # type: ignore[untyped-decorator]
def _tile(rows, x, x_stride, panel, panel_stride, depth, start, start_stride, out, out_stride):  # type: ignore[no-untyped-def]
    if rows == 6:
        vec.tile_6(x, x_stride, panel, panel_stride, depth, start, start_stride, out, out_stride)
    elif rows == 5:
        vec.tile_5(x, x_stride, panel, panel_stride, depth, start, start_stride, out, out_stride)
    elif rows == 4:
        vec.tile_4(x, x_stride, panel, panel_stride, depth, start, start_stride, out, out_stride)
    elif rows == 3:
        vec.tile_3(x, x_stride, panel, panel_stride, depth, start, start_stride, out, out_stride)
    elif rows == 2:
        vec.tile_2(x, x_stride, panel, panel_stride, depth, start, start_stride, out, out_stride)
    else:
        vec.tile_1(x, x_stride, panel, panel_stride, depth, start, start_stride, out, out_stride)


@njit(inline="never")  # type: ignore[untyped-decorator]
def _tile_bfloat16(rows, x, x_stride, panel, panel_stride, depth, start, start_stride, out, out_stride):  # type: ignore[no-untyped-def]
    if rows == 6:
        vec.tile_6_bfloat16(x, x_stride, panel, panel_stride, depth, start, start_stride, out, out_stride)
    elif rows == 5:
        vec.tile_5_bfloat16(x, x_stride, panel, panel_stride, depth, start, start_stride, out, out_stride)
    elif rows == 4:
        vec.tile_4_bfloat16(x, x_stride, panel, panel_stride, depth, start, start_stride, out, out_stride)
    elif rows == 3:
        vec.tile_3_bfloat16(x, x_stride, panel, panel_stride, depth, start, start_stride, out, out_stride)
    elif rows == 2:
        vec.tile_2_bfloat16(x, x_stride, panel, panel_stride, depth, start, start_stride, out, out_stride)
    else:
        vec.tile_1_bfloat16(x, x_stride, panel, panel_stride, depth, start, start_stride, out, out_stride)


@njit(inline="never")  # type: ignore[untyped-decorator]
def _transpose_keys(page, cache_bytes, head_size, count, panels, column):  # type: ignore[no-untyped-def]
    """`count` keys of a page to columns `column` … of panels of 16 keys, [head_size, 16] each."""
    key = 0
    while key < count:
        at = column + key
        if at % 8 == 0 and key + 8 <= count:
            panel = panels + (at // 16 * head_size * 16 + at % 16) * 4
            for i in range(0, head_size, 8):
                source = page + (key * head_size + i) * cache_bytes
                if cache_bytes == 4:
                    vec.transpose_8(source, head_size, panel + i * 64, 16)
                else:
                    vec.transpose_8_bfloat16(source, head_size, panel + i * 64, 16)
            key += 8
        else:
            target = carray(as_uint32(panels + (at // 16 * head_size * 16 + at % 16) * 4), head_size * 16)
            if cache_bytes == 4:
                words = carray(as_uint32(page + key * head_size * 4), head_size)
                for i in range(head_size):
                    target[i * 16] = words[i]
            else:
                shorts = carray(as_uint16(page + key * head_size * 2), head_size)
                for i in range(head_size):
                    target[i * 16] = np.uint32(shorts[i]) << np.uint32(16)
            key += 1


@njit(inline="never")  # type: ignore[untyped-decorator]
def _attend(a, sequence, kv_head, first_token, tokens, queries, accumulated, scores, panels, limits, zeros):  # type: ignore[no-untyped-def]
    """Tokens first_token … of one sequence's chunk, all heads of one KV head."""
    group = a.heads // a.kv_heads
    size = a.head_size
    rows = tokens * group
    starts = carray(as_int32(a.query_starts), a.sequences + 1)
    chunk = starts[sequence + 1] - starts[sequence]
    context = np.int64(carray(as_int32(a.context_lengths), a.sequences)[sequence])
    table = carray(as_int32(a.block_tables + sequence * a.table_width * 4), a.table_width)
    first_position = context - chunk + first_token
    last_position = first_position + tokens - 1
    lowest = max(0, first_position - a.window + 1)
    q_base, out_base = a.q, a.out
    first_row = starts[sequence] + first_token
    maxima, totals = limits[:rows], limits[rows : 2 * rows]

    for row in range(rows):
        source = carray(as_float32(q_base + ((first_row + row // group) * a.q_stride + (kv_head * group + row % group) * size) * 4), size)
        for i in range(size):
            queries[row * size + i] = source[i] * a.scale
            accumulated[row * size + i] = np.float32(0.0)
        maxima[row] = np.float32(-1e30)
        totals[row] = np.float32(0.0)

    tiles = (rows + 5) // 6
    q_at, s_at, o_at, p_at = queries.ctypes.data, scores.ctypes.data, accumulated.ctypes.data, panels.ctypes.data
    page_elements = a.block_size * size
    for first_key in range(lowest // 64 * 64, last_position + 1, 64):
        from_key, to_key = max(lowest, first_key), min(last_position + 1, first_key + 64)

        key = from_key
        while key < to_key:
            offset = key % a.block_size
            count = min(a.block_size - offset, to_key - key)
            page = (
                a.key_cache
                + ((np.int64(table[key // a.block_size]) * a.kv_heads + kv_head) * page_elements + offset * size) * a.cache_bytes
            )
            _transpose_keys(page, a.cache_bytes, size, count, p_at, key - first_key)
            key += count

        for panel in range((from_key - first_key) // 16, (to_key - first_key + 15) // 16):
            for tile in range(tiles):
                top = rows * tile // tiles
                height = rows * (tile + 1) // tiles - top
                _tile(
                    height,
                    q_at + top * size * 4,
                    size,
                    p_at + panel * size * 64,
                    16,
                    size,
                    zeros.ctypes.data,
                    0,
                    s_at + (top * 64 + panel * 16) * 4,
                    64,
                )

        for row in range(rows):
            position = first_position + row // group
            visible_from = max(np.int64(0), position - a.window + 1 - first_key)
            visible_to = min(np.int64(64), position + 1 - first_key)
            line = scores[row * 64 : row * 64 + 64]
            if visible_from > 0:
                line[: min(visible_from, np.int64(64))] = -np.inf
            if visible_to < 64:
                line[max(visible_to, np.int64(0)) :] = -np.inf
            line_at = s_at + row * 256
            highest = max(maxima[row], vec.row_maximum(line_at, 64))
            if highest > maxima[row]:
                shrink = np.exp(np.float32(maxima[row] - highest))
                maxima[row] = highest
                totals[row] *= shrink
                for i in range(row * size, row * size + size):
                    accumulated[i] *= shrink
            totals[row] += vec.row_exponentials(line_at, 64, highest)

        key = from_key
        while key < to_key:
            offset = key % a.block_size
            count = min(a.block_size - offset, to_key - key)
            page = (
                a.value_cache
                + ((np.int64(table[key // a.block_size]) * a.kv_heads + kv_head) * page_elements + offset * size) * a.cache_bytes
            )
            for tile in range(tiles):
                top = rows * tile // tiles
                height = rows * (tile + 1) // tiles - top
                weights = s_at + (top * 64 + key - first_key) * 4
                for column in range(0, size, 16):
                    sums = o_at + (top * size + column) * 4
                    if a.cache_bytes == 4:
                        _tile(height, weights, 64, page + column * 4, size, count, sums, size, sums, size)
                    else:
                        _tile_bfloat16(height, weights, 64, page + column * 2, size, count, sums, size, sums, size)
            key += count

    for row in range(rows):
        target = carray(as_float32(out_base + ((first_row + row // group) * a.heads + kv_head * group + row % group) * size * 4), size)
        part = np.float32(1.0) / totals[row]
        for i in range(size):
            target[i] = accumulated[row * size + i] * part


@kernel(_Arguments)
def _paged_attention(pointer):  # type: ignore[no-untyped-def]
    a = carray(pointer, 1)[0]
    starts = carray(as_int32(a.query_starts), a.sequences + 1)
    rows = a.tokens_at_once * (a.heads // a.kv_heads)
    queries, accumulated = np.empty(rows * a.head_size, np.float32), np.empty(rows * a.head_size, np.float32)
    scores, panels = np.empty(rows * 64, np.float32), np.empty(64 * a.head_size, np.float32)
    limits, zeros = np.empty(2 * rows, np.float32), np.zeros(16, np.float32)
    sequence, passed = 0, 0  # pieces are claimed in order, so the sequence that a piece belongs to is found by walking on
    while True:
        piece = claim(pointer)
        while sequence < a.sequences:
            chunk = starts[sequence + 1] - starts[sequence]
            pieces = (chunk + a.tokens_at_once - 1) // a.tokens_at_once * a.kv_heads
            if piece < passed + pieces:
                break
            passed += pieces
            sequence += 1
        if sequence == a.sequences:
            break
        within = piece - passed
        first_token = within // a.kv_heads * a.tokens_at_once
        tokens = min(a.tokens_at_once, starts[sequence + 1] - starts[sequence] - first_token)
        _attend(a, sequence, within % a.kv_heads, first_token, tokens, queries, accumulated, scores, panels, limits, zeros)


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
    if head_size % vec.PANEL:
        return reference.paged_attention(q, key_cache, value_cache, block_tables, query_starts, context_lengths, scale=scale, window=window)
    query_starts, context_lengths = query_starts.contiguous(), context_lengths.contiguous()
    out = torch.empty(tokens, heads, head_size)
    _paged_attention(
        q.data_ptr(),
        q.stride(0),
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        key_cache.element_size(),
        block_tables.data_ptr(),
        block_tables.shape[1],
        query_starts.data_ptr(),
        context_lengths.data_ptr(),
        context_lengths.shape[0],
        out.data_ptr(),
        heads,
        kv_heads,
        head_size,
        block_size,
        2**62 if window is None else window,
        max(1, ROWS // (heads // kv_heads)),
        scale,
    )
    return out
