# ruff: noqa: T201
"""The engine alone, without a gateway: output tokens per second with 1, 8 and 32 requests in flight.

python -m benchmarks.engine [--model PATH] [--precision fp32] [--prompt 109] [--out 64] [--in-flight 1 8 32]
"""

import argparse
import random
import statistics
import time

import torch

from inference.config import EngineConfig
from inference.engine import Engine
from inference.models.load import load_model
from inference.protocol.frames import Submit
from inference.protocol.sampling import Sampling
from inference.weights.resolve import resolve
from kernels import threads


def submit(number: int, prompt: list[int], out: int) -> Submit:
    sampling = Sampling(max_tokens=out, temperature=0.0, ignore_eos=True)
    return Submit(request_id=f"r{number}", prompt=prompt, sampling=sampling, allowance=out, account="", share="one", cache_domain=b"bench")


def run(engine: Engine, rng: random.Random, *, in_flight: int, requests: int, prompt: int, out: int) -> dict[str, float]:
    """Keep `in_flight` requests going until `requests` have ended; closed loop."""
    waiting = [submit(i, [rng.randrange(100, 40_000) for _ in range(prompt)], out) for i in range(requests)]
    steps: list[float] = []
    ended = tokens = 0
    begin = time.perf_counter()
    for _ in range(min(in_flight, requests)):
        engine.submit(waiting.pop())
    while ended < requests:
        at = time.perf_counter()
        output = engine.step()
        steps.append(time.perf_counter() - at)
        tokens += len(output.tokens)
        for _ in output.finished:
            ended += 1
            if waiting:
                engine.submit(waiting.pop())
    wall = time.perf_counter() - begin
    return {"tok/s": tokens / wall, "steps": len(steps), "step ms median": statistics.median(steps) * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--prompt", type=int, default=109)
    parser.add_argument("--out", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--step-tokens", type=int, default=512)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 8, 32])
    arguments = parser.parse_args()
    threads.configure(arguments.threads or torch.get_num_threads())
    model = load_model(resolve(arguments.model), precision=arguments.precision).model
    engine = Engine(model, EngineConfig(step_tokens=arguments.step_tokens, prefill_chunk=arguments.step_tokens))
    rng = random.Random(0)
    run(engine, rng, in_flight=2, requests=2, prompt=arguments.prompt, out=8)
    for in_flight in arguments.in_flight:
        result = run(engine, rng, in_flight=in_flight, requests=max(in_flight, 2), prompt=arguments.prompt, out=arguments.out)
        print(f"{in_flight:>3} in flight  " + "  ".join(f"{name} {value:.1f}" for name, value in result.items()), flush=True)


if __name__ == "__main__":
    main()
