from pathlib import Path

import pytest
import torch

from inference.config import EngineConfig, FairnessConfig
from inference.errors import ConfigError
from inference.memory import GIB, available_bytes, cache_size, describe
from inference.models.base import CacheGroup

GROUP = CacheGroup(layers=30, kv_heads=3, head_size=64, dtype=torch.float32)
CPU = torch.device("cpu")


def machine(root: Path, files: dict[str, str], *, available_kib: int = 8 << 20) -> Path:
    files = {"proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable:   {available_kib} kB\n"} | files
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_a_control_group_the_kernels_estimate_counts(tmp_path: Path) -> None:
    assert available_bytes(machine(tmp_path, {})) == 8 * GIB


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/b/memory.current": "5\n"},
            8 * GIB,
        ),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max",
                "sys/fs/cgroup/a/b/memory.current": "5",
                "sys/fs/cgroup/a/memory.max": str(3 * GIB),
                "sys/fs/cgroup/a/memory.current": str(2 * GIB),
                "sys/fs/cgroup/a/memory.stat": f"anon 7\ninactive_file {GIB // 2}\n",
            },
            3 * GIB // 2,
        ),
        (
            {
                "proc/self/cgroup": "0::/not/mounted/here\n",
                "sys/fs/cgroup/memory.max": str(2 * GIB),
                "sys/fs/cgroup/memory.current": str(3 * GIB),
            },
            0,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,memory:/x\n2:cpuset:/\n",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": str(4 * GIB),
                "sys/fs/cgroup/memory/x/memory.usage_in_bytes": str(GIB),
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": str(GIB),
            },
            3 * GIB,
        ),
    ],
    ids=["v2 without limit", "v2, limit of a parent", "v2, the container's own root", "v1"],
)
def test_a_control_groups_limit_counts(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert available_bytes(machine(tmp_path, files)) == expected


def test_this_machine_has_memory() -> None:
    assert available_bytes() > 0


def test_blocks_come_from_memory() -> None:
    size = cache_size(EngineConfig(kv_memory_bytes=GIB), [GROUP], CPU)
    assert size.block_bytes == 2 * 30 * 3 * 16 * 64 * 4
    assert size.blocks == GIB // size.block_bytes
    assert size.bytes <= GIB


def test_the_default_is_modest() -> None:
    size = cache_size(EngineConfig(), [GROUP], CPU)
    assert size.bytes <= min(2 * GIB, available_bytes())


def test_memory_that_holds_no_block_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="kv_memory_bytes"):
        cache_size(EngineConfig(kv_memory_bytes=1000), [GROUP], CPU)


def test_the_formula_its_result_and_the_concurrency_are_told() -> None:
    size = cache_size(EngineConfig(blocks=1024), [GROUP], CPU)
    text = describe(size, [GROUP], context_length=8192, max_sequences=16)
    assert "2 (K, V) × 30 layers × 3 KV heads × 64 × 4 B = 46080 B per token" in text
    assert "1024 blocks × 16 tokens × 46080 B = 16384 tokens" in text
    assert "requests of 512 tokens: 16 at a time (blocks for 32, max_sequences 16)" in text
    assert "requests of 8192 tokens: 2 at a time" in text


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"block_size": 0}, "block_size"),
        ({"blocks": 0}, "blocks"),
        ({"step_tokens": 0}, "step_tokens"),
        ({"queue_timeout_s": 0}, "queue_timeout_s"),
        ({"max_preemptions": -1}, "max_preemptions"),
        ({"fairness": FairnessConfig(quantum=1000)}, "quantum"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_setting_that_cannot_work_is_named(settings: dict[str, object], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        EngineConfig(**settings)  # type: ignore[arg-type]
