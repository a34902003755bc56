"""A step's tensors, from tables that are kept up to date rather than rebuilt."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch

from inference.batch import Batch
from inference.blocks import Block
from inference.request import Sequence

Array = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


class RowTables:
    """One row for each running sequence: its block table, how far it is computed, and the token that comes next."""

    def __init__(self, rows: int, *, widest: int) -> None:
        self.blocks: Array = np.zeros((rows, widest), dtype=np.int32)
        self.computed: np.ndarray[tuple[int], np.dtype[np.int64]] = np.zeros(rows, dtype=np.int64)
        self.next_token: np.ndarray[tuple[int], np.dtype[np.int64]] = np.zeros(rows, dtype=np.int64)
        self._unused = list(range(rows - 1, -1, -1))

    @property
    def unused(self) -> int:
        return len(self._unused)

    def take(self) -> int:
        return self._unused.pop()

    def give_back(self, row: int) -> None:
        self._unused.append(row)

    def set_blocks(self, row: int, start: int, blocks: Seq[Block]) -> None:
        """Write a table's blocks from position `start` on."""
        self.blocks[row, start : start + len(blocks)] = [block.index for block in blocks]


class BatchBuilder:
    """Flattens a step's work into preallocated buffers; the batch is valid until the next one is built."""

    def __init__(self, tables: RowTables, *, block_size: int, step_tokens: int, device: torch.device) -> None:
        self._tables = tables
        self._block_size = block_size
        self._device = device
        rows, widest = tables.blocks.shape
        self._rows = self._counts = np.zeros(0, dtype=np.int64)
        self._tokens = np.zeros(step_tokens, dtype=np.int64)
        self._positions = np.zeros(step_tokens, dtype=np.int64)
        self._slots = np.zeros(step_tokens, dtype=np.int64)
        self._starts = np.zeros(rows + 1, dtype=np.int32)
        self._contexts = np.zeros(rows, dtype=np.int32)
        self._blocks = np.zeros(rows * widest, dtype=np.int32)
        self._arange = np.arange(step_tokens, dtype=np.int64)

    def build(self, work: Seq[Sequence], logit_rows: Seq[int] | np.ndarray[tuple[int], np.dtype[np.int64]]) -> Batch:
        """`logit_rows`: indices into the flattened tokens."""
        tables, size, count = self._tables, self._block_size, len(work)
        rows = np.array([sequence.row for sequence in work], dtype=np.int64)
        counts = np.array([sequence.scheduled for sequence in work], dtype=np.int64)
        self._rows, self._counts = rows, counts
        starts = self._starts[: count + 1]
        np.cumsum(counts, out=starts[1:])
        total = int(starts[count])
        tokens, positions, slots = self._tokens[:total], self._positions[:total], self._slots[:total]
        computed = tables.computed[rows]
        if total == count:
            tokens[:] = tables.next_token[rows]
            positions[:] = computed
            of_token = rows
        else:
            of_token = np.repeat(rows, counts)
            np.subtract(self._arange[:total], np.repeat(starts[:-1] - computed, counts), out=positions)
            tokens[:] = tables.next_token[of_token]
            for index in np.flatnonzero(counts > 1).tolist():
                sequence = work[index]
                tokens[starts[index] : starts[index + 1]] = sequence.tokens[sequence.computed : sequence.computed + sequence.scheduled]
        block_of, offset = np.divmod(positions, size)
        np.multiply(tables.blocks[of_token, block_of], size, out=slots, casting="unsafe")
        slots += offset
        contexts = self._contexts[:count]
        np.add(computed, counts, out=contexts, casting="unsafe")
        widest = -(-int(contexts.max()) // size)
        blocks = self._blocks[: count * widest].reshape(count, widest)
        np.take(tables.blocks[:, :widest], rows, axis=0, out=blocks)
        np.putmask(blocks, self._arange_of(widest) >= -(-contexts[:, None] // size), 0)
        return Batch(
            tokens=self._on_device(tokens),
            positions=self._on_device(positions),
            slots=self._on_device(slots),
            query_starts=self._on_device(starts),
            context_lengths=self._on_device(contexts),
            block_tables=self._on_device(blocks),
            logit_rows=torch.as_tensor(np.asarray(logit_rows, dtype=np.int64)).to(self._device),
        )

    def advance(self) -> None:
        """The latest batch is computed: note it in the tables."""
        self._tables.computed[self._rows] += self._counts

    def _arange_of(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if count > len(self._arange):
            self._arange = np.arange(2 * count, dtype=np.int64)
        return self._arange[:count]

    def _on_device(
        self, array: np.ndarray[tuple[int, ...], np.dtype[np.int32]] | np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    ) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
