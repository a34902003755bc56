"""Models on disk: Hugging Face folders and GGUF files, read into one form."""

from pathlib import Path

from inference.weights.checkpoint import Checkpoint, StoredTensor, TensorSource
from inference.weights.default_model import default_model_path
from inference.weights.errors import BrokenCheckpoint, CheckpointNotFound, DownloadFailed, UnsupportedCheckpoint, WeightsError
from inference.weights.gguf_model import read_gguf
from inference.weights.resolve import resolve
from inference.weights.safetensors_folder import read_folder

__all__ = [
    "BrokenCheckpoint",
    "Checkpoint",
    "CheckpointNotFound",
    "DownloadFailed",
    "StoredTensor",
    "TensorSource",
    "UnsupportedCheckpoint",
    "WeightsError",
    "default_model_path",
    "open_checkpoint",
    "resolve",
]


def open_checkpoint(path: Path) -> Checkpoint:
    """A Hugging Face folder or a GGUF file. Reads heads and tokenizer, no weights. Raises WeightsError."""
    if path.is_dir():
        return read_folder(path)
    if not path.exists():
        raise CheckpointNotFound(path, "no such file or folder")
    if path.suffix.lower() == ".gguf":
        return read_gguf(path)
    raise UnsupportedCheckpoint(path, "neither a folder nor a .gguf file")
