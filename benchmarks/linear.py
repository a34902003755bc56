# ruff: noqa: T201
"""Times PackedLinear beside torch's own linear at the shapes of one model, all layers once per run as a step does.

python -m benchmarks.linear --rows 1 8 32 --threads 2
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from kernels import threads
from kernels.linear import PackedLinear

HIDDEN, INNER, QKV, VOCABULARY, LAYERS = 576, 1536, 960, 49152, 30
LAYER_SHAPES = ((QKV, HIDDEN), (HIDDEN, HIDDEN), (2 * INNER, HIDDEN), (HIDDEN, INNER))


class Torch:
    """torch's own linear."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self._weight)


def milliseconds(work: Callable[[], object], *, seconds: float = 1.0, least: int = 3) -> tuple[float, float]:
    """Best and median time of a run, over about `seconds`."""
    work()
    times: list[float] = []
    while len(times) < least or sum(times) < seconds:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3, statistics.median(times) * 1e3


def run_all(layers: Sequence[Callable[[Tensor], Tensor]], inputs: dict[int, Tensor], widths: Sequence[int]) -> None:
    for layer, width in zip(layers, widths, strict=True):
        layer(inputs[width])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 128, 512])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="the weights' type")
    parser.add_argument("--torch", action="store_true", help="torch's own linear as well")
    options = parser.parse_args()
    threads.configure(options.threads)

    shapes = [*LAYER_SHAPES * LAYERS, (VOCABULARY, HIDDEN)]
    widths = [width for _, width in shapes]
    weights = [torch.randn(shape).to(getattr(torch, options.dtype)) for shape in shapes]
    kinds: dict[str, list[Callable[[Tensor], Tensor]]] = {"packed": [PackedLinear.pack(weight) for weight in weights]}
    if options.torch:
        kinds["torch"] = [Torch(weight.float()) for weight in weights]
    weight_bytes = sum(weight.nbytes for weight in weights)
    print(f"{len(shapes)} layers, {weight_bytes / 1e6:.0f} MB of weights, {options.threads} threads")
    for rows in options.rows:
        inputs = {width: torch.randn(rows, width) for width in {HIDDEN, INNER}}
        for kind, layers in kinds.items():
            best, median = milliseconds(partial(run_all, layers, inputs, widths))
            flops = 2 * rows * sum(weight.numel() for weight in weights)
            print(
                f"{rows:5} rows  {kind:7}  best {best:7.1f} ms  median {median:7.1f} ms  "
                f"{weight_bytes / best / 1e6:5.1f} GB/s  {flops / best / 1e6:5.0f} GFLOP/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
