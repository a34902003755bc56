# ruff: noqa: PLR0917
"""Attention straight from the pages, with the matrix tiles of the linear layers.

A piece of work is one sequence's KV head and some query tokens: their heads of the group are the rows of one matrix. Keys come 64 at a
time, at positions that are multiples of 64, and are transposed into scratch panels that stay in the caches; so are values, widened.
A row's result depends on its position and its cache alone, not on the chunk or the batch that brought it: decoding gives the bits that
prefill gives.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels import vectors as vec
from kernels.compiled import ADDRESS, COUNT, REAL, arguments, claim, fields, float32s, int32s, kernel, subroutine, uint16s, uint32s
from kernels.paged_attention import reference

ROWS = 48
"""Rows of a tile: enough that transposing the keys is a small part of the work, few enough to fit the second-level cache. Not tuned."""


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


@subroutine
def _tile(
    rows: Any, x: Any, x_stride: Any, panel: Any, panel_stride: Any, depth: Any, start: Any, start_stride: Any, out: Any, out_stride: Any
) -> None:
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


@subroutine
def _page(cache: Any, a: Any, table: Any, kv_head: Any, key: Any) -> Any:
    """The address of one key or value: [head_size], the page's next ones behind it."""
    block = np.int64(table[key // a.block_size])
    return cache + ((block * a.kv_heads + kv_head) * a.block_size + key % a.block_size) * a.head_size * a.cache_bytes


@subroutine
def _transpose_keys(page: Any, cache_bytes: Any, head_size: Any, count: Any, panels: Any, column: Any) -> None:
    """`count` keys of a page to columns `column` … of panels of 16 keys, [head_size, 16] each."""
    key = 0
    while key < count:
        at = column + key
        panel = panels + (at // 16 * head_size * 16 + at % 16) * 4
        if at % 8 == 0 and key + 8 <= count:
            for i in range(0, head_size, 8):
                source = page + (key * head_size + i) * cache_bytes
                if cache_bytes == 4:
                    vec.transpose_8(source, head_size, panel + i * 64, 16)
                else:
                    vec.transpose_8_bfloat16(source, head_size, panel + i * 64, 16)
            key += 8
        else:
            target = uint32s(panel, head_size * 16)
            if cache_bytes == 4:
                words = uint32s(page + key * head_size * 4, head_size)
                for i in range(head_size):
                    target[i * 16] = words[i]
            else:
                shorts = uint16s(page + key * head_size * 2, head_size)
                for i in range(head_size):
                    target[i * 16] = np.uint32(shorts[i]) << np.uint32(16)
            key += 1


@subroutine
def _gather(a: Any, table: Any, kv_head: Any, from_key: Any, to_key: Any, end: Any, panels: Any, lines: Any) -> None:
    """Keys from_key … to_key - 1 to panels, by their place among the 64, values to lines, from the first; fetches the next 64."""
    page_bytes = a.block_size * a.head_size * a.cache_bytes
    key = from_key
    while key < to_key:
        count = min(a.block_size - key % a.block_size, to_key - key)
        ahead = key - key % a.block_size + 64
        if ahead < end:
            vec.prefetch(_page(a.key_cache, a, table, kv_head, ahead), page_bytes)
            vec.prefetch(_page(a.value_cache, a, table, kv_head, ahead), page_bytes)
        _transpose_keys(_page(a.key_cache, a, table, kv_head, key), a.cache_bytes, a.head_size, count, panels, key % 64)
        values, line = _page(a.value_cache, a, table, kv_head, key), lines + (key - from_key) * a.head_size * 4
        if a.cache_bytes == 4:
            vec.widen(values, line, count * a.head_size)
        else:
            vec.widen_bfloat16(values, line, count * a.head_size)
        key += count


@subroutine
def _weigh(rows: Any, group: Any, first_position: Any, first_key: Any, window: Any, size: Any, scores: Any, sums: Any, limits: Any) -> None:
    """Scores of 64 keys to weights, in place; each row's maximum, total and sums so far follow its new maximum."""
    for row in range(rows):
        position = first_position + row // group
        visible_from, visible_to = position - window + 1 - first_key, position + 1 - first_key
        line = float32s(scores + row * 256, 64)
        for key in range(min(np.int64(64), visible_from)):
            line[key] = -np.inf
        for key in range(max(np.int64(0), visible_to), 64):
            line[key] = -np.inf
        highest = max(limits[2 * row], vec.row_maximum(scores + row * 256, 64))
        if highest > limits[2 * row]:
            shrink = np.exp(np.float32(limits[2 * row] - highest))
            limits[2 * row] = highest
            limits[2 * row + 1] *= shrink
            total = float32s(sums + row * size * 4, size)
            for i in range(size):
                total[i] *= shrink
        limits[2 * row + 1] += vec.row_exponentials(scores + row * 256, 64, highest)


@subroutine
def _multiply(
    rows: Any, x: Any, x_stride: Any, panel: Any, panel_stride: Any, depth: Any, start: Any, start_stride: Any, out: Any, out_stride: Any
) -> None:
    """One panel for all rows, in tiles as even as they go."""
    tiles = (rows + 5) // 6
    for tile in range(tiles):
        top = rows * tile // tiles
        height = rows * (tile + 1) // tiles - top
        at, begin, end = x + top * x_stride * 4, start + top * start_stride * 4, out + top * out_stride * 4
        _tile(height, at, x_stride, panel, panel_stride, depth, begin, start_stride, end, out_stride)


@subroutine
def _attend(a: Any, sequence: Any, kv_head: Any, first_token: Any, tokens: Any, scratch: Any, limits: Any) -> None:
    """Tokens first_token … of one sequence's chunk, all heads of one KV head."""
    group, size = a.heads // a.kv_heads, a.head_size
    rows = tokens * group
    starts = int32s(a.query_starts, a.sequences + 1)
    chunk = starts[sequence + 1] - starts[sequence]
    context = np.int64(int32s(a.context_lengths, a.sequences)[sequence])
    table = int32s(a.block_tables + sequence * a.table_width * 4, a.table_width)
    first_position = context - chunk + first_token
    end = first_position + tokens
    lowest = max(np.int64(0), first_position - a.window + 1)
    first_row = starts[sequence] + first_token

    zeros = scratch
    queries = zeros + 16 * 4
    sums = queries + rows * size * 4
    scores = sums + rows * size * 4
    panels = scores + rows * 64 * 4
    lines = panels + 64 * size * 4

    for row in range(rows):
        token, head = first_row + row // group, kv_head * group + row % group
        source = float32s(a.q + (token * a.q_stride + head * size) * 4, size)
        query, total = float32s(queries + row * size * 4, size), float32s(sums + row * size * 4, size)
        for i in range(size):
            query[i] = source[i] * a.scale
            total[i] = np.float32(0.0)
        limits[2 * row] = np.float32(-1e30)
        limits[2 * row + 1] = np.float32(0.0)

    for first_key in range(lowest // 64 * 64, end, 64):
        from_key, to_key = max(lowest, first_key), min(end, first_key + 64)
        _gather(a, table, kv_head, from_key, to_key, end, panels, lines)
        for panel in range((from_key - first_key) // 16, (to_key - first_key + 15) // 16):
            _multiply(rows, queries, size, panels + panel * size * 64, 16, size, zeros, 0, scores + panel * 64, 64)
        _weigh(rows, group, first_position, first_key, a.window, size, scores, sums, limits)
        weights = scores + (from_key - first_key) * 4
        for column in range(0, size, 16):
            _multiply(rows, weights, 64, lines + column * 4, size, to_key - from_key, sums + column * 4, size, sums + column * 4, size)

    for row in range(rows):
        token, head = first_row + row // group, kv_head * group + row % group
        target, total = float32s(a.out + (token * a.heads + head) * size * 4, size), float32s(sums + row * size * 4, size)
        part = np.float32(1.0) / limits[2 * row + 1]
        for i in range(size):
            target[i] = total[i] * part


@kernel(_Arguments)
def _paged_attention(pointer: Any) -> None:
    a = fields(pointer)
    starts = int32s(a.query_starts, a.sequences + 1)
    rows = a.tokens_at_once * (a.heads // a.kv_heads)
    scratch = np.empty(16 + rows * (2 * a.head_size + 64) + 128 * a.head_size, np.float32)
    scratch[:16] = np.float32(0.0)
    limits = np.empty(2 * rows, np.float32)
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
        _attend(a, sequence, within % a.kv_heads, first_token, tokens, scratch.ctypes.data, limits)


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
