import numpy as np
import pytest
import torch

from inference.random_stream import bits, exponential, keys, stream

MASK32 = (1 << 32) - 1
MASK64 = (1 << 64) - 1


def mix64(value: int) -> int:
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK64
    return value ^ value >> 31


def mix32(value: int) -> int:
    value = (value ^ value >> 16) * 0x85EBCA6B & MASK32
    value = (value ^ value >> 13) * 0xC2B2AE35 & MASK32
    return value ^ value >> 16


def reference(start: int, position: int, token: int) -> int:
    key = mix64((start + (position + 1) * 0x9E3779B97F4A7C15) & MASK64)
    low, high = key & MASK32, key >> 32
    return mix32(mix32((token * 0x9E3779B1 + low) & MASK32) ^ high)


def key(start: int, position: int) -> torch.Tensor:
    return keys(np.array([start], dtype=np.uint64), np.array([position], dtype=np.uint64))


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 0), (2**63, 5), (-1, 9), (2**70, 10**6)])
def test_bits_are_those_of_plain_integer_arithmetic(seed: int, position: int) -> None:
    start = stream(seed, 3)
    tokens = torch.tensor([0, 1, 77, 49151, 2**31 - 1], dtype=torch.int32)
    got = bits(key(start, position), tokens)[0].tolist()
    assert [value & MASK32 for value in got] == [reference(start, position, token) for token in tokens.tolist()]


def test_streams_of_seeds_choices_and_positions_differ() -> None:
    starts = {stream(seed, choice) for seed in range(50) for choice in range(50)}
    assert len(starts) == 2500
    drawn = {tuple(key(start, position)[0].tolist()) for start in list(starts)[:100] for position in range(50)}
    assert len(drawn) == 5000


def test_a_row_draws_the_same_alone_and_among_others() -> None:
    starts = np.array([stream(seed, 0) for seed in range(5)], dtype=np.uint64)
    positions = np.array([3, 1, 4, 1, 5], dtype=np.uint64)
    vocabulary = torch.arange(1000, dtype=torch.int32)
    together = exponential(keys(starts, positions), vocabulary)
    for row in range(5):
        assert torch.equal(exponential(key(int(starts[row]), int(positions[row])), vocabulary)[0], together[row])


def test_a_candidate_draws_what_it_draws_within_the_whole_vocabulary() -> None:
    vocabulary = torch.arange(1000, dtype=torch.int32)
    whole = exponential(key(stream(1, 0), 2), vocabulary)
    some = torch.tensor([[5, 999, 17]], dtype=torch.int32)
    assert torch.equal(exponential(key(stream(1, 0), 2), some)[0], whole[0, some[0].long()])


def test_draws_are_exponential() -> None:
    draws = exponential(key(stream(123, 0), 0), torch.arange(200_000, dtype=torch.int32))[0].double()
    assert bool((draws > 0).all())
    assert bool(torch.isfinite(draws).all())
    ordered = torch.sort(draws).values
    distance = (1 - torch.exp(-ordered) - (torch.arange(len(ordered)) + 0.5) / len(ordered)).abs().max()
    assert float(distance) < 1.95 / len(ordered) ** 0.5, "Kolmogorov–Smirnov at 0.1 %"


def test_neighbouring_positions_are_uncorrelated() -> None:
    vocabulary = torch.arange(100_000, dtype=torch.int32)
    first, second = (exponential(key(stream(9, 0), position), vocabulary)[0] for position in (0, 1))
    assert abs(float(torch.corrcoef(torch.stack((first, second)))[0, 1])) < 0.015
