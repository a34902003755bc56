# ruff: noqa: T201
"""Times paged attention at one model's shapes: decoding at memory speed, prefill chunks at arithmetic speed.

python -m benchmarks.attention --threads 2 --dtype bfloat16
"""

import argparse
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.linear import milliseconds
from kernels import threads
from kernels.paged_attention import paged_attention

HEADS, KV_HEADS, HEAD_SIZE, BLOCK_SIZE = 9, 3, 64, 16


@dataclass(frozen=True, slots=True)
class Case:
    chunk: int
    context: int
    sequences: int

    def arguments(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """A step of these sequences, their pages scattered over the cache."""
        blocks = -(-self.context // BLOCK_SIZE)
        caches = torch.randn(2, self.sequences * blocks, KV_HEADS, BLOCK_SIZE, HEAD_SIZE).to(dtype)
        tables = torch.randperm(self.sequences * blocks, dtype=torch.int32).view(self.sequences, blocks)
        starts = torch.arange(0, self.sequences * self.chunk + 1, self.chunk, dtype=torch.int32)
        contexts = torch.full((self.sequences,), self.context, dtype=torch.int32)
        return torch.randn(self.sequences * self.chunk, HEADS, HEAD_SIZE), caches[0], caches[1], tables, starts, contexts

    def flops(self) -> int:
        seen = sum(self.context - self.chunk + 1 + token for token in range(self.chunk))
        return 4 * HEAD_SIZE * HEADS * seen * self.sequences

    def cache_bytes(self, dtype: torch.dtype) -> int:
        return 2 * self.sequences * self.context * KV_HEADS * HEAD_SIZE * dtype.itemsize


CASES = (Case(1, 1000, 1), Case(1, 200, 8), Case(1, 200, 32), Case(1, 1000, 32), Case(16, 200, 1), Case(512, 512, 1), Case(512, 3000, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="the cache's type")
    options = parser.parse_args()
    threads.configure(options.threads)
    dtype: torch.dtype = getattr(torch, options.dtype)
    for case in CASES:
        best, median = milliseconds(partial(paged_attention, *case.arguments(dtype), scale=HEAD_SIZE**-0.5))
        print(
            f"{case.sequences:3} × {case.chunk:3} tokens at {case.context:4}  best {best:8.3f} ms  median {median:8.3f} ms  "
            f"{case.cache_bytes(dtype) / best / 1e6:5.1f} GB/s  {case.flops() / best / 1e6:5.0f} GFLOP/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
