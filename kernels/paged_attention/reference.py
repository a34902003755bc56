# ruff: noqa: PLR0917
"""The definition of correct."""

import torch
from torch import Tensor


def _pages(cache: Tensor, table: Tensor, first: int, last: int) -> Tensor:
    """Tokens first … last - 1 of a sequence: [kv_heads, tokens, head_size], float32."""
    block_size = cache.shape[2]
    first_block = first // block_size
    pages = cache[table[first_block : -(-last // block_size)].long()].transpose(0, 1).flatten(1, 2)
    return pages[:, first - first_block * block_size : last - first_block * block_size].float()


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
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    group = q.shape[1] // key_cache.shape[1]
    starts = query_starts.tolist()
    for sequence, context in enumerate(context_lengths.tolist()):
        start, end = starts[sequence], starts[sequence + 1]
        if start == end:
            continue
        first_position = context - (end - start)
        first_key = 0 if window is None else max(0, first_position - window + 1)
        keys = _pages(key_cache, block_tables[sequence], first_key, context).repeat_interleave(group, dim=0)
        values = _pages(value_cache, block_tables[sequence], first_key, context).repeat_interleave(group, dim=0)
        scores = q[start:end].float().transpose(0, 1) @ keys.transpose(1, 2) * scale
        query_at = torch.arange(first_position, context, device=q.device).unsqueeze(1)
        key_at = torch.arange(first_key, context, device=q.device)
        unseen = key_at > query_at
        if window is not None:
            unseen |= key_at <= query_at - window
        weights = scores.masked_fill(unseen, float("-inf")).softmax(-1)
        out[start:end] = (weights @ values).transpose(0, 1).to(q.dtype)
    return out
