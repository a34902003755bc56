"""The GGUF container: metadata and where each tensor's bytes lie.

A reader of its own because the `gguf` package's takes 4.8 s for the default model (it wraps every vocabulary string in several
numpy arrays); this one takes 0.15 s. What the numbers in a file mean (types, block sizes) still comes from that package.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from inference.weights.errors import BrokenCheckpoint, CheckpointNotFound, UnsupportedCheckpoint

MAGIC = b"GGUF"
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
MOST_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the tensor directory."""

    name: str
    shape: tuple[int, ...]
    """Outermost dimension first (the file lists them innermost first)."""
    encoding: str
    offset: int
    """From the start of the file."""
    size_bytes: int


class GGUFFile:
    """An open GGUF file: parsed head, memory-mapped data. Raises WeightsError on anything that isn't sound."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                # private and writable: torch warns about tensors over read-only memory
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except FileNotFoundError:
            raise CheckpointNotFound(path, "no such file") from None
        except ValueError:
            raise BrokenCheckpoint(path, "the file is empty") from None
        except OSError as error:
            raise BrokenCheckpoint(path, f"can't be read: {error.strerror}") from error
        self._at = 0
        try:
            self.metadata, self.tensors = self._head()
        except struct.error:
            raise BrokenCheckpoint(path, f"truncated: the head ends at byte {len(self._map)} in mid-field") from None
        except UnicodeDecodeError as error:
            raise BrokenCheckpoint(path, f"a string near byte {self._at} isn't UTF-8") from error

    def data(self, name: str) -> memoryview:
        """A tensor's bytes, mapped from the file."""
        tensor = self.tensors[name]
        return memoryview(self._map)[tensor.offset : tensor.offset + tensor.size_bytes]

    def _head(self) -> tuple[dict[str, object], dict[str, TensorInfo]]:
        if self._map[:4] != MAGIC:
            raise BrokenCheckpoint(self.path, "not a GGUF file (wrong magic number)")
        self._at = 4
        version = self._unpack("<I")
        if version not in (2, 3):
            big_endian = version in (2 << 24, 3 << 24)
            raise UnsupportedCheckpoint(self.path, "big-endian GGUF" if big_endian else f"GGUF version {version} (only 2 and 3)")
        tensor_count, entry_count = self._unpack("<Q"), self._unpack("<Q")
        metadata: dict[str, object] = {}
        for _ in range(entry_count):
            key = self._string()
            metadata[key] = self._value(self._unpack("<I"))
        directory = [self._directory_entry() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise BrokenCheckpoint(self.path, f"general.alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        return metadata, {name: self._locate(name, shape, kind, start + offset) for name, shape, kind, offset in directory}

    def _unpack(self, form: str) -> int:
        """Any scalar; the caller knows which."""
        (value,) = struct.unpack_from(form, self._map, self._at)
        self._at += struct.calcsize(form)
        return value  # type: ignore[no-any-return]

    def _bytes(self, size: int) -> bytes:
        if size > len(self._map) - self._at:
            raise BrokenCheckpoint(self.path, f"truncated: {size} bytes announced at byte {self._at}, the file ends at {len(self._map)}")
        self._at += size
        return self._map[self._at - size : self._at]

    def _string(self) -> str:
        return self._bytes(self._unpack("<Q")).decode()

    def _value(self, kind: int) -> object:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            return self._array(self._unpack("<I"), self._unpack("<Q"))
        if kind not in SCALARS:
            raise BrokenCheckpoint(self.path, f"unknown value type {kind} at byte {self._at}")
        return self._unpack(SCALARS[kind])

    def _array(self, kind: int, count: int) -> list[object]:
        if kind == STRING:
            return self._strings(count)
        if kind not in SCALARS:
            raise BrokenCheckpoint(self.path, f"array of value type {kind} at byte {self._at}")
        dtype = np.dtype(SCALARS[kind])
        return np.frombuffer(self._bytes(count * dtype.itemsize), dtype=dtype).tolist()  # type: ignore[no-any-return]

    def _strings(self, count: int) -> list[object]:
        """The two long arrays of every file, vocabulary and merges: a tight loop."""
        data, at, unpack = self._map, self._at, struct.Struct("<Q").unpack_from
        strings: list[object] = []
        for _ in range(count):
            (size,) = unpack(data, at)
            at += 8 + size
            strings.append(data[at - size : at].decode())
        if at > len(data):
            raise BrokenCheckpoint(self.path, f"truncated: a list of strings runs past the file's end at byte {len(data)}")
        self._at = at
        return strings

    def _directory_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self._string(), self._unpack("<I")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise BrokenCheckpoint(self.path, f"tensor {name} has {dimensions} dimensions")
        sizes = [self._unpack("<Q") for _ in range(dimensions)]
        return name, tuple(reversed(sizes)), self._unpack("<I"), self._unpack("<Q")

    def _locate(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> TensorInfo:
        try:
            encoding = GGMLQuantizationType(kind)
        except ValueError:
            raise UnsupportedCheckpoint(self.path, f"tensor {name} has the unknown type {kind}") from None
        values_per_block, block_bytes = GGML_QUANT_SIZES[encoding]
        if shape[-1] % values_per_block:
            raise BrokenCheckpoint(self.path, f"tensor {name}: rows of {shape[-1]} values don't fill {encoding.name} blocks")
        size_bytes = block_bytes * (shape[-1] // values_per_block)
        for size in shape[:-1]:
            size_bytes *= size
        if offset + size_bytes > len(self._map):
            raise BrokenCheckpoint(
                self.path, f"truncated: tensor {name} needs bytes {offset} to {offset + size_bytes}, the file ends at {len(self._map)}"
            )
        return TensorInfo(name, shape, encoding.name, offset, size_bytes)
