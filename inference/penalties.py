"""Presence, frequency and repetition penalties, from token counts that are kept on the device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from inference.protocol.sampling import Sampling
from inference.request import Tokens

_COLUMNS = 3  # repetition, frequency, presence


class Penalties:
    """Counts for the rows that need them; the place for them grows with the most that ever needed them at once."""

    def __init__(self, *, vocab: int, device: torch.device) -> None:
        self._vocab = vocab
        self._device = device
        self._slots: dict[int, int] = {}
        self._unused: list[int] = []
        self._generated = torch.zeros((0, vocab), dtype=torch.int32, device=device)
        self._in_prompt = torch.zeros((0, vocab), dtype=torch.bool, device=device)
        self._strength = torch.zeros((0, _COLUMNS), device=device)

    def add(self, row: int, sampling: Sampling, prompt: Tokens, generated: Tokens) -> None:
        """Count a row's tokens from the start."""
        slot = self._slots[row] = self._unused.pop() if self._unused else self._grow()
        self._generated[slot] = torch.from_numpy(np.bincount(generated, minlength=self._vocab).astype(np.int32)).to(self._device)
        seen = np.zeros(self._vocab, dtype=np.bool_)
        seen[prompt] = True
        self._in_prompt[slot] = torch.from_numpy(seen).to(self._device)
        strength = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        self._strength[slot] = torch.tensor(strength, device=self._device)

    def remove(self, row: int) -> None:
        slot = self._slots.pop(row, None)
        if slot is not None:
            self._unused.append(slot)

    def _grow(self) -> int:
        """Double the place; returns one slot and leaves the others unused."""
        old = len(self._strength)
        added = max(1, old)
        self._generated = torch.cat((self._generated, torch.zeros((added, self._vocab), dtype=torch.int32, device=self._device)))
        self._in_prompt = torch.cat((self._in_prompt, torch.zeros((added, self._vocab), dtype=torch.bool, device=self._device)))
        self._strength = torch.cat((self._strength, torch.zeros((added, _COLUMNS), device=self._device)))
        self._unused.extend(range(old + 1, old + added))
        return old

    def apply(self, logits: Tensor, rows: list[int]) -> Tensor:
        """Penalised copy of logits [rows, vocab].

        Repetition divides what is positive and multiplies what isn't, for tokens of the prompt and generated ones. Frequency (times the
        count) and presence are subtracted, for generated ones.
        """
        slots = self._index(rows)
        counts = self._generated[slots]
        repetition, frequency, presence = self._strength[slots].unsqueeze(-1).unbind(1)
        appeared = counts > 0
        scale = torch.where(appeared | self._in_prompt[slots], repetition, torch.ones_like(repetition))
        penalised = torch.where(logits > 0, logits / scale, logits * scale)
        return penalised - frequency * counts - presence * appeared

    def count(self, rows: list[int], tokens: Tensor) -> None:
        """Each row has generated its token. tokens: [rows], int64."""
        slots = self._index(rows)
        self._generated.index_put_((slots, tokens), torch.ones(len(rows), dtype=torch.int32, device=self._device), accumulate=True)

    def _index(self, rows: list[int]) -> Tensor:
        return torch.tensor([self._slots[row] for row in rows], device=self._device)
