"""How many cache blocks fit, and what that allows: computed once at start, and told in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from inference.config import EngineConfig
from inference.errors import ConfigError
from inference.models.base import CacheGroup

GIB = 1 << 30
DEFAULT_PART = 0.25
DEFAULT_LIMIT = 2 * GIB
"""On a CPU the cache takes the smaller of a quarter of what is available and this, unless it is told otherwise."""
GPU_PART = 0.9

_UNLIMITED = 1 << 60  # cgroup v1 writes a huge number where there is no limit


def available_bytes(root: Path = Path("/")) -> int:
    """Memory this process can still take on this machine: the kernel's estimate, or what its control group leaves, whichever is less."""
    available = _meminfo(root / "proc/meminfo")
    for limit, used in _control_groups(root):
        available = min(available, max(0, limit - used))
    return available


def _meminfo(path: Path) -> int:
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise ConfigError(f"{path} has no MemAvailable; set kv_memory_bytes")


def _control_groups(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) of this process's control group and of those above it, version 2 or 1."""
    membership = root / "proc/self/cgroup"
    if not membership.exists():
        return
    base = root / "sys/fs/cgroup"
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = base, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            top, names = base / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        folder = top / path.lstrip("/")
        # Inside a container the path may be the host's: its own group then is the mount's root.
        for each in (folder, *(parent for parent in folder.parents if parent == top or top in parent.parents)):
            limit, used = (_number(each / name) for name in names)
            if limit is not None and used is not None and limit < _UNLIMITED:
                yield limit, used - _reclaimable(each)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None  # not there: no limit at this level
    return int(text) if text.isdecimal() else None


def _reclaimable(folder: Path) -> int:
    """File pages that the kernel gives up under pressure; they count as used, but can be had."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split(maxsplit=1) for line in lines)
    return int(values.get("inactive_file", values.get("total_inactive_file", 0)))


@dataclass(frozen=True, kw_only=True)
class CacheSize:
    """What the KV cache comes to."""

    blocks: int
    block_size: int
    block_bytes: int
    why: str
    """Where the number of blocks comes from."""

    @property
    def tokens(self) -> int:
        return self.blocks * self.block_size

    @property
    def bytes(self) -> int:
        return self.blocks * self.block_bytes


def cache_size(config: EngineConfig, groups: Sequence[CacheGroup], device: torch.device) -> CacheSize:
    """Blocks as configured, or as many as the configured memory or a modest part of the available one holds. Or ConfigError."""
    block_bytes = sum(group.block_bytes(config.block_size) for group in groups)
    if config.blocks is not None:
        return CacheSize(blocks=config.blocks, block_size=config.block_size, block_bytes=block_bytes, why="as configured (blocks)")
    if config.kv_memory_bytes is not None:
        memory, why = config.kv_memory_bytes, "as configured (kv_memory_bytes)"
    elif device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        memory, why = int(free * GPU_PART), f"{GPU_PART:.0%} of the {_gib(free)} free on {device}"
    else:
        available = available_bytes()
        memory = min(int(available * DEFAULT_PART), DEFAULT_LIMIT)
        why = f"the smaller of {DEFAULT_PART:.0%} of the {_gib(available)} available and {_gib(DEFAULT_LIMIT)}"
    if memory < block_bytes:
        raise ConfigError(f"kv_memory_bytes: {memory} bytes ({why}) hold not one block of {block_bytes} bytes")
    return CacheSize(blocks=memory // block_bytes, block_size=config.block_size, block_bytes=block_bytes, why=why)


def describe(size: CacheSize, groups: Sequence[CacheGroup], *, context_length: int, max_sequences: int) -> str:
    """The formula, its result, and how many requests of several lengths fit at a time."""
    lines = []
    for group in groups:
        lines.append(
            f"KV cache: 2 (K, V) × {group.layers} layers × {group.kv_heads} KV heads × {group.head_size} × {group.dtype.itemsize} B "
            f"= {group.block_bytes(size.block_size) // size.block_size} B per token"
        )
    per_token = size.block_bytes // size.block_size
    lines.append(f"  memory {_gib(size.bytes)}: {size.why}")
    lines.append(f"  {size.blocks} blocks × {size.block_size} tokens × {per_token} B = {size.tokens} tokens")
    lengths = sorted(
        {length for length in (512, 1024, 2048, 4096, 8192, 16384, 32768, 131072) if length < context_length} | {context_length}
    )
    for length in lengths:
        fit = size.blocks // -(-length // size.block_size)
        at_once = f"{min(fit, max_sequences)} at a time" if fit else "doesn't fit"
        note = f" (blocks for {fit}, max_sequences {max_sequences})" if fit > max_sequences else ""
        lines.append(f"  requests of {length} tokens: {at_once}{note}")
    return "\n".join(lines)


def _gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / (1 << 20):.1f} MiB"
