"""Own decoders against the gguf package's, bit for bit."""

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from inference.weights.dequantize import BLOCK_DECODERS, CHUNK_BLOCKS, decodable, decode

HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q6_K": [208], "Q4_K": [0, 2], "Q5_K": [0, 2]}
"""Where each block holds float16 numbers, which random bytes must not turn into infinities."""


def random_blocks(encoding: str, count: int) -> np.ndarray:
    """Blocks of random bits with finite scales: [count, block bytes]."""
    generator = np.random.default_rng(5)
    _, size = GGML_QUANT_SIZES[GGMLQuantizationType[encoding]]
    blocks = generator.integers(0, 256, (count, size), dtype=np.uint8)
    for at in HALVES[encoding]:
        blocks[:, at : at + 2] = generator.normal(0, 0.1, (count, 1)).astype(np.float16).view(np.uint8)
    return blocks


@pytest.mark.parametrize("encoding", HALVES)
@pytest.mark.parametrize("count", [1, 37, CHUNK_BLOCKS + 3])
def test_blocks_decode_to_the_packages_bits(encoding: str, count: int) -> None:
    count = min(count, 2000) if encoding.endswith("_K") else count
    blocks = random_blocks(encoding, count)
    reference = quants.dequantize(blocks, GGMLQuantizationType[encoding])
    out = torch.full(reference.shape, float("nan"))
    decode(torch.from_numpy(blocks), encoding, out)
    assert np.array_equal(out.numpy(), reference)


@pytest.mark.parametrize("encoding", BLOCK_DECODERS)
def test_blocks_decode_into_bfloat16_as_rounded_float32(encoding: str) -> None:
    blocks = random_blocks(encoding, 11)
    reference = torch.from_numpy(quants.dequantize(blocks, GGMLQuantizationType[encoding]))
    out = torch.empty(reference.shape, dtype=torch.bfloat16)
    decode(torch.from_numpy(blocks), encoding, out)
    assert torch.equal(out, reference.bfloat16())


@pytest.mark.parametrize(("encoding", "dtype"), [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_plain_types_decode_exactly(encoding: str, dtype: torch.dtype) -> None:
    values = torch.randn(3, 8).to(dtype)
    out = torch.empty(3, 8)
    decode(values.view(torch.uint8), encoding, out)
    assert torch.equal(out, values.float())


def test_integers_are_not_weights() -> None:
    assert not decodable("I32")
