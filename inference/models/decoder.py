"""Puts a decoder together from a checkpoint: what Llama, Mistral and the dense Qwens share."""

from dataclasses import dataclass

import torch
from torch import Tensor

from inference.models.base import CacheGroup
from inference.models.layers import Attention, DecoderLayer, FeedForward, Norm
from inference.models.rope import RopeTables, rope_tables
from inference.models.transformer import Transformer
from inference.weights import BrokenCheckpoint, Checkpoint, UnsupportedCheckpoint
from kernels.linear import PackedLinear


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a model is built for."""

    dtype: torch.dtype
    device: torch.device
    context_length: int
    """Positions to prepare for."""
    fingerprint: str


class Loader:
    """Takes tensors out of a checkpoint for a device and type, checks their shapes, and knows what nobody has taken."""

    def __init__(self, checkpoint: Checkpoint, target: Target) -> None:
        self.checkpoint = checkpoint
        self.config = checkpoint.config
        self.target = target
        self._left = set(checkpoint.tensors)

    def tensor(self, name: str, *shape: int) -> Tensor:
        """One tensor of exactly this shape. Raises BrokenCheckpoint."""
        return self._rows([name], [shape[0]], shape[1:])

    def norm(self, name: str, size: int) -> Norm:
        return Norm(self.tensor(f"{name}.weight", size), self.config.norm_eps)

    def linear(self, prefix: str, outputs: dict[str, int], inputs: int, *, bias: bool) -> PackedLinear:
        """Projections of one input, fused: {name under prefix: output size}, row after row."""
        names, sizes = [f"{prefix}.{name}" for name in outputs], list(outputs.values())
        weight = self._rows([f"{name}.weight" for name in names], sizes, (inputs,))
        return PackedLinear.pack(weight, self._rows([f"{name}.bias" for name in names], sizes, ()) if bias else None)

    def drop(self, name: str) -> None:
        """A tensor that this model leaves unread."""
        self._left.discard(name)

    def finish(self) -> None:
        """Raises UnsupportedCheckpoint if the checkpoint holds more than the architecture knows: its results would be wrong."""
        if self._left:
            raise UnsupportedCheckpoint(
                self.checkpoint.path, f"tensor {min(self._left)} isn't part of the architecture {self.config.architecture}"
            )

    def _rows(self, names: list[str], sizes: list[int], rest: tuple[int, ...]) -> Tensor:
        whole = torch.empty((sum(sizes), *rest), dtype=self.target.dtype)
        for name, part in zip(names, whole.split_with_sizes(sizes), strict=True):
            shape = self.checkpoint.tensors.shape(name)
            if shape != tuple(part.shape):
                raise BrokenCheckpoint(self.checkpoint.path, f"tensor {name} is {list(shape)}, the configuration says {list(part.shape)}")
            self.checkpoint.tensors.read_into(name, part)
            self._left.discard(name)
        return whole.to(self.target.device)


def build_decoder(
    checkpoint: Checkpoint,
    target: Target,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
) -> Transformer:
    """A transformer with these differences from plain Llama. Raises WeightsError if the tensors don't fit the configuration."""
    config = checkpoint.config
    loader = Loader(checkpoint, target)
    vectors = loader.tensor("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
    if config.tie_embeddings:
        loader.drop("lm_head.weight")
        head = PackedLinear.pack(vectors)
    else:
        head = PackedLinear.pack(loader.tensor("lm_head.weight", config.vocab_size, config.hidden_size))
    rope = rope_tables(config, positions=target.context_length, device=target.device)
    windows = list(dict.fromkeys(config.windows))
    layers = []
    for index, window in enumerate(config.windows):
        prefix = f"model.layers.{index}"
        layers.append(
            DecoderLayer(
                attention_norm=loader.norm(f"{prefix}.input_layernorm", config.hidden_size),
                attention=_attention(loader, f"{prefix}.self_attn", rope, window, bias=qkv_bias, qk_norm=qk_norm),
                output=loader.linear(
                    f"{prefix}.self_attn", {"o_proj": config.hidden_size}, config.heads * config.head_size, bias=output_bias
                ),
                feed_forward_norm=loader.norm(f"{prefix}.post_attention_layernorm", config.hidden_size),
                feed_forward=_feed_forward(loader, f"{prefix}.mlp", bias=mlp_bias),
                cache_group=windows.index(window),
                cache_layer=config.windows[:index].count(window),
            )
        )
    norm = loader.norm("model.norm", config.hidden_size)
    loader.finish()
    return Transformer(
        vectors=vectors,
        layers=tuple(layers),
        norm=norm,
        head=head,
        cache_groups=tuple(
            CacheGroup(
                layers=config.windows.count(window), kv_heads=config.kv_heads, head_size=config.head_size, dtype=target.dtype, window=window
            )
            for window in windows
        ),
        context_length=target.context_length,
        eos_token_ids=checkpoint.eos_token_ids,
        fingerprint=target.fingerprint,
    )


def _attention(loader: Loader, prefix: str, rope: RopeTables, window: int | None, *, bias: bool, qk_norm: bool) -> Attention:
    config = loader.config
    kv_size = config.kv_heads * config.head_size
    outputs = {"q_proj": config.heads * config.head_size, "k_proj": kv_size, "v_proj": kv_size}
    return Attention(
        qkv=loader.linear(prefix, outputs, config.hidden_size, bias=bias),
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_size=config.head_size,
        rope=rope,
        window=window,
        q_norm=loader.norm(f"{prefix}.q_norm", config.head_size) if qk_norm else None,
        k_norm=loader.norm(f"{prefix}.k_norm", config.head_size) if qk_norm else None,
    )


def _feed_forward(loader: Loader, prefix: str, *, bias: bool) -> FeedForward:
    config = loader.config
    inner, hidden = config.intermediate_size, config.hidden_size
    return FeedForward(
        gate_up=loader.linear(prefix, {"gate_proj": inner, "up_proj": inner}, hidden, bias=bias),
        down=loader.linear(prefix, {"down_proj": hidden}, inner, bias=bias),
    )
