"""Drives a model over shuffled pages the way an engine does, and collects every token's logits."""

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from inference.batch import Batch
from inference.models.base import KVCache, Model

Step = list[tuple[int, int]]
"""Which sequence brings how many of its tokens."""

STALE = 100.0  # what unwritten cache positions hold: large enough to spoil any logit that reads one


@dataclass
class PagedRun:
    """Caches, and for every sequence a block table drawn at random from the pool."""

    model: Model
    sequences: list[list[int]]
    block_size: int = 4
    seed: int = 0
    longest: int = 0
    done: list[int] = field(init=False)
    caches: tuple[KVCache, ...] = field(init=False)

    def __post_init__(self) -> None:
        widest = -(-max([self.longest, *map(len, self.sequences)]) // self.block_size)
        blocks = list(range(widest * len(self.sequences) + 3))
        random.Random(self.seed).shuffle(blocks)
        self.tables = torch.tensor([[blocks.pop() for _ in range(widest)] for _ in self.sequences], dtype=torch.int32)
        self.done = [0] * len(self.sequences)
        self.caches = tuple(
            KVCache(group, blocks=widest * len(self.sequences) + 3, block_size=self.block_size, device=self.model.device)
            for group in self.model.cache_groups
        )
        for cache in self.caches:
            cache.keys.fill_(STALE)
            cache.values.fill_(STALE)

    def step(self, work: Step, *, rows: list[int] | None = None) -> Tensor:
        """Run one step; logits of `rows` of the flattened batch, or of every row."""
        tokens: list[int] = []
        positions: list[Tensor] = []
        slots: list[Tensor] = []
        starts = [0]
        for sequence, count in work:
            begin = self.done[sequence]
            tokens += self.sequences[sequence][begin : begin + count]
            at = torch.arange(begin, begin + count)
            positions.append(at)
            slots.append(self.tables[sequence][at // self.block_size].long() * self.block_size + at % self.block_size)
            starts.append(len(tokens))
            self.done[sequence] += count
        contexts = [self.done[sequence] for sequence, _ in work]
        widest = -(-max(contexts) // self.block_size)
        batch = Batch(
            tokens=torch.tensor(tokens),
            positions=torch.cat(positions),
            slots=torch.cat(slots),
            query_starts=torch.tensor(starts, dtype=torch.int32),
            context_lengths=torch.tensor(contexts, dtype=torch.int32),
            block_tables=self.tables[[sequence for sequence, _ in work], :widest].contiguous(),
            logit_rows=torch.tensor(range(len(tokens)) if rows is None else rows, dtype=torch.int64),
        )
        return self.model.forward(batch, self.caches)

    def run(self, schedule: list[Step]) -> list[Tensor]:
        """All steps; for each sequence the logits of its tokens, [tokens, vocab]."""
        gathered: list[list[Tensor]] = [[] for _ in self.sequences]
        for work in schedule:
            logits = self.step(work)
            for (sequence, _), part in zip(work, logits.split([count for _, count in work]), strict=True):
                gathered[sequence].append(part)
        return [torch.cat(parts) for parts in gathered]


def greedy(model: Model, prompt: list[int], steps: int) -> list[int]:
    """The plainest generation there is: the prompt at once, then token by token."""
    sequence = list(prompt)
    run = PagedRun(model, [sequence], block_size=16, longest=len(prompt) + steps)
    logits = run.step([(0, len(prompt))], rows=[len(prompt) - 1])
    for _ in range(steps - 1):
        sequence.append(int(logits[0].argmax()))
        logits = run.step([(0, 1)])
    return [*sequence, int(logits[0].argmax())][len(prompt) :]
