"""The layers that architectures are put together from. They call the device only through `kernels`."""

from dataclasses import dataclass

from torch import Tensor

from inference.batch import Batch
from inference.models.rope import RopeTables
from kernels.kv_write import kv_write
from kernels.linear import PackedLinear
from kernels.paged_attention import paged_attention
from kernels.rms_norm import rms_norm
from kernels.rope import rope
from kernels.silu_mul import silu_mul


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm over rows."""

    weight: Tensor  # [hidden]
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of x + residual, and the sum."""
        return rms_norm(x, self.weight, self.eps, residual=residual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Grouped-query attention over pages, up to (not with) the output projection."""

    qkv: PackedLinear
    """Fused: rows of q, then k, then v."""
    heads: int
    kv_heads: int
    head_size: int
    rope: RopeTables
    window: int | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None

    def __call__(self, x: Tensor, batch: Batch, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        """[tokens, hidden] to [tokens, heads · head_size]; the tokens' K and V are in the caches afterwards."""
        qkv = self.qkv(x).view(-1, self.heads + 2 * self.kv_heads, self.head_size)
        q, k, v = qkv.split_with_sizes((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q.reshape(-1, self.head_size)).view(-1, self.heads, self.head_size)
            k = self.k_norm(k.reshape(-1, self.head_size)).view(-1, self.kv_heads, self.head_size)
        rope(q, k, self.rope.cos, self.rope.sin, batch.positions)
        kv_write(k, v, key_cache, value_cache, batch.slots)
        return paged_attention(
            q,
            key_cache,
            value_cache,
            batch.block_tables,
            batch.query_starts,
            batch.context_lengths,
            scale=self.head_size**-0.5,
            window=self.window,
        ).view(-1, self.heads * self.head_size)


@dataclass(frozen=True, slots=True)
class FeedForward:
    """down(silu(gate(x)) · up(x)), gate and up fused."""

    gate_up: PackedLinear
    down: PackedLinear

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(silu_mul(self.gate_up(x)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """Attention and feed-forward, each behind its own norm."""

    attention_norm: Norm
    attention: Attention
    output: PackedLinear
    feed_forward_norm: Norm
    feed_forward: FeedForward
    cache_group: int
    cache_layer: int
    """Which layer of its cache group it is."""

    def attend(
        self, hidden: Tensor, residual: Tensor | None, batch: Batch, key_cache: Tensor, value_cache: Tensor
    ) -> tuple[Tensor, Tensor]:
        """First half: what attention gathered (before the output projection), and the residual stream so far."""
        if residual is None:
            normed, residual = self.attention_norm(hidden), hidden
        else:
            normed, residual = self.attention_norm.add(hidden, residual)
        return self.attention(normed, batch, key_cache, value_cache), residual

    def transform(self, gathered: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Second half, row by row: the layer's output, not yet added to the residual stream, and that stream."""
        normed, residual = self.feed_forward_norm.add(self.output(gathered), residual)
        return self.feed_forward(normed), residual
