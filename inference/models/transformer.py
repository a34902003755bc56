"""A decoder-only transformer over paged caches: the `Model` of all dense architectures."""

import torch
from torch import Tensor
from torch.nn.functional import embedding

from inference.batch import Batch
from inference.models.base import CacheGroup, KVCache
from inference.models.layers import DecoderLayer, Norm
from kernels.linear import PackedLinear


class Transformer:
    """Implements `Model`. Immutable; one instance serves any number of caches."""

    def __init__(
        self,
        *,
        vectors: Tensor,
        layers: tuple[DecoderLayer, ...],
        norm: Norm,
        head: PackedLinear,
        cache_groups: tuple[CacheGroup, ...],
        context_length: int,
        eos_token_ids: tuple[int, ...],
        fingerprint: str,
    ) -> None:
        self._vectors = vectors  # [vocab, hidden]
        self._layers = layers
        self._norm = norm
        self._head = head
        self.vocab_size = vectors.shape[0]
        self.context_length = context_length
        self.eos_token_ids = eos_token_ids
        self.fingerprint = fingerprint
        self.cache_groups = cache_groups
        self.device = vectors.device

    def forward(self, batch: Batch, caches: tuple[KVCache, ...]) -> Tensor:
        """Write the step's K and V into the caches and return logits for batch.logit_rows: [rows, vocab], float32."""
        normed = self._run(batch, caches)
        if normed is None:
            return torch.empty((0, self.vocab_size), dtype=torch.float32, device=self.device)
        with torch.no_grad():  # outside inference mode, whose results nobody may change in place afterwards
            return self._head(normed).float()

    @torch.inference_mode()
    def _run(self, batch: Batch, caches: tuple[KVCache, ...]) -> Tensor | None:
        """All layers and the last norm: [rows, hidden], or None if no logits are wanted."""
        pages = [(cache.keys.unbind(0), cache.values.unbind(0)) for cache in caches]
        hidden, residual = embedding(batch.tokens, self._vectors), None
        *layers, last = self._layers
        for layer in layers:
            keys, values = pages[layer.cache_group]
            gathered, residual = layer.attend(hidden, residual, batch, keys[layer.cache_layer], values[layer.cache_layer])
            hidden, residual = layer.transform(gathered, residual)
        keys, values = pages[last.cache_group]
        gathered, residual = last.attend(hidden, residual, batch, keys[last.cache_layer], values[last.cache_layer])
        # past the last attention a row concerns no other: only rows whose logits are wanted go on
        rows = batch.logit_rows
        if not rows.shape[0]:
            return None
        hidden, residual = last.transform(gathered.index_select(0, rows), residual.index_select(0, rows))
        normed, _ = self._norm.add(hidden, residual)
        return normed
