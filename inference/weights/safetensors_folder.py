"""A Hugging Face folder as a Checkpoint: safetensors in one file or several, and the JSON beside them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from inference.weights.checkpoint import Checkpoint, StoredTensor
from inference.weights.config import parse_config, read_json
from inference.weights.errors import BrokenCheckpoint, UnsupportedCheckpoint

ENCODINGS = ("F32", "F16", "BF16")
HUB_CACHE_PREFIX = "models--"


def read_folder(path: Path) -> Checkpoint:
    """Raises WeightsError."""
    config_path = path / "config.json"
    raw_config = read_json(config_path)
    tokenizer_path = path / "tokenizer.json"
    tokenizer = read_json(tokenizer_path)
    tokenizer_config_path = path / "tokenizer_config.json"
    tokenizer_config = read_json(tokenizer_config_path) if tokenizer_config_path.exists() else {}
    eos_token = _special_token(tokenizer_config.get("eos_token"))
    return Checkpoint(
        name=_name(path),
        path=path,
        config=parse_config(raw_config, config_path),
        tensors=FolderTensors(path),
        tokenizer_json=tokenizer_path.read_text(encoding="utf-8"),
        chat_template=_chat_template(path, tokenizer_config),
        bos_token=_special_token(tokenizer_config.get("bos_token")),
        eos_token=eos_token,
        eos_token_ids=_eos_token_ids(path, raw_config, tokenizer, eos_token),
    )


class Slice(Protocol):
    """A tensor's head, as the library's untyped handle gives it."""

    def get_shape(self) -> list[int]: ...

    def get_dtype(self) -> str: ...


class Handle(Protocol):
    """An open safetensors file."""

    def keys(self) -> list[str]: ...

    def get_slice(self, name: str) -> Slice: ...

    def get_tensor(self, name: str) -> Tensor: ...


class FolderTensors:
    """The tensors of all safetensors files of a folder: heads are read and checked at once, tensors when asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        index = folder / "model.safetensors.index.json"
        single = folder / "model.safetensors"
        self._files: dict[str, tuple[Path, Handle]] = {}
        if index.exists():
            self._open_shards(index)
        elif single.exists():
            handle = _open(single)
            self._files = dict.fromkeys(handle.keys(), (single, handle))
        else:
            raise BrokenCheckpoint(folder, "holds neither model.safetensors nor model.safetensors.index.json")
        # a buffer that old checkpoints saved; it follows from the configuration
        self._files = {name: file for name, file in self._files.items() if not name.endswith("rotary_emb.inv_freq")}

    def _open_shards(self, index: Path) -> None:
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise BrokenCheckpoint(index, "weight_map must name a file for each tensor")
        handles = {}
        for shard in sorted({str(each) for each in weight_map.values()}):
            if Path(shard).name != shard:
                raise BrokenCheckpoint(index, f"{shard!r} isn't a file of this folder")
            handles[shard] = _open(self._folder / shard)
        held = {shard: set(handle.keys()) for shard, handle in handles.items()}
        for name, shard in weight_map.items():
            if name not in held[shard]:
                raise BrokenCheckpoint(self._folder / shard, f"tensor {name} is missing")
            self._files[name] = (self._folder / shard, handles[shard])

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        _, handle = self._file(name)
        return tuple(handle.get_slice(name).get_shape())

    def stored(self, name: str) -> StoredTensor:
        encoding, tensor = self._read(name)
        data = tensor.contiguous().view(-1).view(torch.uint8).numpy().data
        return StoredTensor(name, tuple(tensor.shape), encoding, data)

    def read_into(self, name: str, out: Tensor) -> None:
        _, tensor = self._read(name)
        out.copy_(tensor)

    def _read(self, name: str) -> tuple[str, Tensor]:
        """Encoding, and the tensor over the mapped file."""
        path, handle = self._file(name)
        encoding = handle.get_slice(name).get_dtype()
        if encoding not in ENCODINGS:
            raise UnsupportedCheckpoint(path, f"tensor {name} is stored as {encoding} (only {', '.join(ENCODINGS)})")
        return encoding, handle.get_tensor(name)

    def _file(self, name: str) -> tuple[Path, Handle]:
        if name not in self._files:
            raise BrokenCheckpoint(self._folder, f"tensor {name} is missing")
        return self._files[name]


def _open(path: Path) -> Handle:
    try:
        return cast(Handle, safe_open(path, framework="pt", device="cpu"))
    except FileNotFoundError:
        raise BrokenCheckpoint(path, "the file is missing") from None
    except (SafetensorError, OSError) as error:
        raise BrokenCheckpoint(path, f"truncated or damaged: {error}") from error


def _name(path: Path) -> str:
    """The folder's name, or `owner/model` where the folder is a snapshot in the hub's cache."""
    resolved = path.resolve()
    for parent in resolved.parents:
        if parent.name.startswith(HUB_CACHE_PREFIX):
            return parent.name.removeprefix(HUB_CACHE_PREFIX).replace("--", "/")
    return resolved.name


def _special_token(value: object) -> str | None:
    """A token as plain text or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _chat_template(path: Path, tokenizer_config: dict[str, object]) -> str | None:
    """A file of its own before the configuration's field; of several named ones, `default`."""
    file = path / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    value = tokenizer_config.get("chat_template")
    if isinstance(value, list):
        named = {each.get("name"): each.get("template") for each in value if isinstance(each, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _eos_token_ids(path: Path, config: dict[str, object], tokenizer: dict[str, object], eos_token: str | None) -> tuple[int, ...]:
    """What generation_config.json lists (or, without one, config.json), and the tokenizer's own end-of-sequence token."""
    generation_path = path / "generation_config.json"
    generation = read_json(generation_path) if generation_path.exists() else {}
    source, listed = generation_path, generation.get("eos_token_id")
    if listed is None:
        source, listed = path / "config.json", config.get("eos_token_id")
    ids = [] if listed is None else listed if isinstance(listed, list) else [listed]
    if not all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in ids):
        raise BrokenCheckpoint(source, f"eos_token_id {listed!r} isn't a token id or a list of them")
    added = tokenizer.get("added_tokens")
    for each in added if isinstance(added, list) else []:
        if isinstance(each, dict) and eos_token is not None and each.get("content") == eos_token:
            ids = [*ids, each["id"]]
    return tuple(dict.fromkeys(ids))
