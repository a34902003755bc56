"""A model on disk, read once into a form that doesn't depend on its file format."""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from inference.weights.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as its file holds it."""

    name: str
    shape: tuple[int, ...]
    """Of the values, outermost dimension first, as in the canonical layout."""
    encoding: str
    """"F32", "F16", "BF16", or a block format's name such as "Q4_1"."""
    data: memoryview
    """The file's bytes, row after row, in the file's own row order."""
    row_order: Tensor | None = None
    """Rows of `data` in canonical order, where the file's order differs: canonical row i is the file's row row_order[i]."""


class TensorSource(Protocol):
    """Lazy tensors under canonical Hugging Face names."""

    def __contains__(self, name: str) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Raises BrokenCheckpoint if there is no such tensor."""
        ...

    def stored(self, name: str) -> StoredTensor:
        """The raw content, undecoded: what a kernel that multiplies block formats reads."""
        ...

    def read_into(self, name: str, out: Tensor) -> None:
        """Decode into `out`, a contiguous CPU tensor of the tensor's shape, in out's dtype."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One model on disk: its configuration, its lazy tensors, its tokenizer and how a chat is written."""

    name: str
    path: Path
    config: DecoderConfig
    tensors: TensorSource
    tokenizer_json: str
    """The `tokenizers` library's own format."""
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    eos_token_ids: tuple[int, ...]

    @property
    def architecture(self) -> str:
        return self.config.architecture

    @property
    def parameters(self) -> int:
        """Distinct weights: tied embeddings count once."""
        total = 0
        for name in self.tensors:
            count = 1
            for size in self.tensors.shape(name):
                count *= size
            total += count
        return total

    def fingerprint(self, precision: str) -> str:
        """Hex SHA-256 over configuration, precision and every byte of every tensor, with its name, shape and encoding.

        Everything that changes what the model computes changes it; where the files lie, how they are split and when they were
        written don't. Each tensor is hashed on its own, so that all cores take part; the digests are hashed in order of name.
        """

        def digest(name: str) -> bytes:
            stored = self.tensors.stored(name)
            header = f"{name}\0{stored.shape}\0{stored.encoding}\0".encode()
            return hashlib.sha256(header + hashlib.sha256(stored.data).digest()).digest()

        whole = hashlib.sha256(f"{precision}\0{self.config!r}\0".encode())
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            for each in pool.map(digest, sorted(self.tensors)):
                whole.update(each)
        return whole.hexdigest()
