"""Block formats to values: bit for bit what `gguf.quants` gives, in chunks that stay in cache.

The default model's 134.5 M weights on one core: 0.6 s, where `gguf.quants` takes over 2 s for its linears alone. In numpy, not torch:
at start the cores are busy with everything else that starts, and torch's threads would wait for one another after each of thousands
of small operations.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from numpy.typing import NDArray
from torch import Tensor

CHUNK_BLOCKS = 8192  # 1 MB of float32: smaller chunks lose to call overhead, larger ones leave the cache
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

Blocks = NDArray[np.uint8]
Values = NDArray[np.float32]


def decodable(encoding: str) -> bool:
    """Can `decode` read this encoding?"""
    return encoding in PLAIN or encoding in BLOCK_DECODERS or GGMLQuantizationType[encoding] in quants._type_traits


def decode(raw: Tensor, encoding: str, out: Tensor) -> None:
    """Decode raw, uint8 [any shape], row after row into out, contiguous, any float type."""
    if encoding in PLAIN:
        out.view(-1).copy_(raw.reshape(-1).view(PLAIN[encoding]))
        return
    values_per_block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[encoding]]
    blocks, target = raw.reshape(-1, block_bytes).numpy(), out.view(-1, values_per_block)
    decoder = BLOCK_DECODERS.get(encoding)
    for start in range(0, len(blocks), CHUNK_BLOCKS):
        chunk, part = blocks[start : start + CHUNK_BLOCKS], target[start : start + CHUNK_BLOCKS]
        if decoder is None:
            part.copy_(torch.from_numpy(quants.dequantize(np.ascontiguousarray(chunk), GGMLQuantizationType[encoding])))
        elif part.dtype == torch.float32:
            decoder(chunk, part.numpy())
        else:
            values: Values = np.empty(part.shape, dtype=np.float32)
            decoder(chunk, values)
            part.copy_(torch.from_numpy(values))


def _half(blocks: Blocks, at: int) -> Values:
    """The float16 at byte `at` of every block: [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Blocks, out: NDArray[Any]) -> None:
    """Low nibbles are the block's first half, high ones its second."""
    half = packed.shape[1]
    out[:, :half] = packed & 15
    out[:, half:] = packed >> 4


def _fifth_bits(blocks: Blocks, at: int) -> Blocks:
    """32 bits, least significant first, as 0 or 16: [blocks, 32]."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << np.uint8(4)


def _q8_0(blocks: Blocks, out: Values) -> None:
    out[:] = blocks[:, 2:].view(np.int8)
    out *= _half(blocks, 0)


def _q4_0(blocks: Blocks, out: Values) -> None:
    _nibbles(blocks[:, 2:], out)
    out -= 8
    out *= _half(blocks, 0)


def _q4_1(blocks: Blocks, out: Values) -> None:
    _nibbles(blocks[:, 4:], out)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _q5_0(blocks: Blocks, out: Values) -> None:
    _nibbles(blocks[:, 6:], out)
    out += _fifth_bits(blocks, 2)
    out -= 16
    out *= _half(blocks, 0)


def _q5_1(blocks: Blocks, out: Values) -> None:
    _nibbles(blocks[:, 8:], out)
    out += _fifth_bits(blocks, 4)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _q6_k(blocks: Blocks, out: Values) -> None:
    """256 values: 128 bytes of low nibbles, 64 of upper bit pairs, 16 signed scales, one float16."""
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    steps = np.concatenate((low & 15, low >> 4), axis=2).reshape(-1, 8, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8).reshape(1, 1, 4, 1)
    steps |= (high.reshape(-1, 8, 32) & 3) << np.uint8(4)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32) * _half(blocks, 208)
    out[:] = steps.reshape(-1, 256)
    out -= 32
    by_scale = out.reshape(-1, 16, 16)
    by_scale *= scales[:, :, None]


BLOCK_DECODERS: dict[str, Callable[[Blocks, Values], None]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q6_K": _q6_k,
}
"""The formats with a decoder here; the others go through the package."""
