"""Causal attention over pages, prefill chunks and decoding sequences in one call."""

import torch
from torch import Tensor

from kernels.errors import DtypeError, ShapeError
from kernels.selection import implementation


def paged_attention(  # noqa: PLR0917
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
    """Each token against its own sequence's cached tokens up to and including itself; the step's K and V are written before the call.

    q: [tokens, heads, head_size], heads a multiple of kv_heads; a view into a fused projection allowed as long as each token's heads
    are dense.
    key_cache, value_cache: [blocks, kv_heads, block_size, head_size], dense.
    block_tables: [sequences, widest]; sequence i's tokens lie in the blocks of row i, in order.
    query_starts: [sequences + 1], at least one token to each; sequence i owns tokens query_starts[i] … query_starts[i + 1] - 1.
    context_lengths: [sequences]; tokens in the cache, the step's own included. All three int32.
    window: a token sees itself and the window - 1 before it; blocks wholly before a sequence's windows are never read.
    Returns [tokens, heads, head_size], dense, q's type. Rows that no sequence owns hold anything.
    """
    _, heads, head_size = q.shape
    kv_heads = key_cache.shape[1]
    if key_cache.shape != value_cache.shape or key_cache.shape[3] != head_size or heads % kv_heads:
        raise ShapeError(f"paged_attention: q {tuple(q.shape)}, caches {tuple(key_cache.shape)} and {tuple(value_cache.shape)}")
    sequences = context_lengths.shape[0]
    if query_starts.shape != (sequences + 1,) or block_tables.dim() != 2 or block_tables.shape[0] != sequences:
        raise ShapeError(
            f"paged_attention: tables {tuple(block_tables.shape)}, query_starts {tuple(query_starts.shape)}, {sequences} contexts"
        )
    if not (key_cache.is_contiguous() and value_cache.is_contiguous() and block_tables.is_contiguous()):
        raise ShapeError("paged_attention: caches and block tables must be dense")
    if q.stride(2) != 1 or (q.stride(1) != head_size and heads > 1):
        raise ShapeError(f"paged_attention: a token's heads must lie densely, not with strides {q.stride()}")
    if any(t.dtype != torch.int32 for t in (block_tables, query_starts, context_lengths)) or key_cache.dtype != value_cache.dtype:
        raise DtypeError("paged_attention: block_tables, query_starts and context_lengths are int32, both caches of one type")
    if window is not None and window < 1:
        raise ShapeError(f"paged_attention: a window of {window} tokens sees nothing")
    module = implementation("paged_attention", q.device, q.dtype, key_cache.dtype)
    out: Tensor = module.paged_attention(q, key_cache, value_cache, block_tables, query_starts, context_lengths, scale=scale, window=window)
    return out
