"""Compiles every Triton kernel for GPUs that needn't be here, and prints what each takes of them.

python -m kernels.compile_ahead [--targets sm_80 gfx942] [--kernels chunk split] [--head-sizes 64] [--block-sizes 16] [--dtypes bf16]

A kernel that doesn't compile, wants more shared memory than the target has, or spills registers to memory, fails the run.
"""

import argparse
import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.kv_write.triton import kv_write_kernel
from kernels.kv_write.tuning import WARPS as KV_WRITE_WARPS
from kernels.paged_attention import tuning as attention
from kernels.paged_attention.triton import chunk_kernel, merge_kernel, split_kernel
from kernels.rms_norm.triton import rms_norm_kernel
from kernels.rms_norm.tuning import warps
from kernels.rope.triton import rope_kernel
from kernels.rope.tuning import HEADS
from kernels.rope.tuning import WARPS as ROPE_WARPS
from kernels.silu_mul.triton import silu_mul_kernel
from kernels.silu_mul.tuning import WARPS as SILU_MUL_WARPS
from kernels.silu_mul.tuning import WIDTH

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED_BYTES = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "gfx942": 64 << 10}
HEAD_SIZES = (64, 80, 96, 128, 256)
BLOCK_SIZES = (16, 32)
DTYPES = {"bf16": 2, "fp16": 2, "fp32": 4}
GROUP, KV_HEADS, SPLITS = 3, 4, 8


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel with everything that the compiler must know."""

    kernel: str
    function: Any
    types: dict[str, str]
    constants: dict[str, int | bool]
    options: dict[str, int]
    shape: str

    def source(self) -> ASTSource:
        signature = {name: self.types.get(name, "constexpr") for name in self.function.arg_names}
        constants = {(self.function.arg_names.index(name),): value for name, value in self.constants.items()}
        pointers = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(signature) if signature[name].startswith("*")}
        return ASTSource(self.function, signature, constants, pointers)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a compiled kernel takes; registers are 32 bits wide and a thread's own, None where the tools don't say."""

    registers: int | None
    spills: int | None
    shared_bytes: int


def _numbers(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "i32")


def _elementwise(dtype: str) -> Iterator[Variant]:
    x = f"*{dtype}"
    for width in (1024, 8192):
        yield Variant(
            "rms_norm",
            rms_norm_kernel,
            {
                "x": x,
                "residual": x,
                "weight": x,
                "out": x,
                "total": x,
                "x_stride": "i32",
                "residual_stride": "i32",
                "hidden": "i32",
                "eps": "fp32",
            },
            {"HAS_RESIDUAL": True, "WIDTH": width},
            {"num_warps": warps(width)},
            f"{dtype} {width}",
        )
    silu_mul = {"gate_up": x, "out": x, "stride": "i32", "inner": "i32"}
    yield Variant("silu_mul", silu_mul_kernel, silu_mul, {"WIDTH": WIDTH}, {"num_warps": SILU_MUL_WARPS}, dtype)


def _by_head(dtype: str, head_size: int) -> Iterator[Variant]:
    x, shape, width = f"*{dtype}", f"{dtype} {head_size}", triton.next_power_of_2(head_size)
    rope = {
        "q": x,
        "k": x,
        "cos": "*fp32",
        "sin": "*fp32",
        "positions": "*i64",
        "q_stride": "i32",
        "k_stride": "i32",
        "heads": "i32",
        "kv_heads": "i32",
    }
    half = head_size // 2
    constants: dict[str, int | bool] = {"HALF": half, "WIDTH": triton.next_power_of_2(half), "HEADS": HEADS}
    yield Variant("rope", rope_kernel, rope, constants, {"num_warps": ROPE_WARPS}, shape)
    write = {
        "k": x,
        "v": x,
        "key_cache": x,
        "value_cache": x,
        "slots": "*i64",
        "k_stride": "i32",
        "v_stride": "i32",
        "kv_heads": "i32",
        "block_size": "i32",
    }
    yield Variant("kv_write", kv_write_kernel, write, {"HEAD_SIZE": head_size, "WIDTH": width}, {"num_warps": KV_WRITE_WARPS}, shape)
    partials = {"partial_values": "*fp32", "partial_maxima": "*fp32", "partial_totals": "*fp32", "query_starts": "*i32"}
    constants = {"HEADS": KV_HEADS * GROUP, "SPLITS": SPLITS, "SPLITS_WIDTH": SPLITS, "HEAD_SIZE": head_size, "WIDTH": width}
    yield Variant("merge", merge_kernel, {**partials, "out": x}, constants, {}, shape)


def _attention(dtype: str, head_size: int, block_size: int) -> Iterator[Variant]:
    x, shape, element_bytes = f"*{dtype}", f"{dtype} {head_size} blocks of {block_size}", DTYPES[dtype]
    types = {"q": x, "key_cache": x, "value_cache": x, "block_tables": "*i32", "query_starts": "*i32", "context_lengths": "*i32"}
    numbers = {"q_stride": "i32", "table_width": "i32", "window": "i32", "scale": "fp32"}
    constants = {
        "KV_HEADS": KV_HEADS,
        "GROUP": GROUP,
        "HEAD_SIZE": head_size,
        "WIDTH": triton.next_power_of_2(head_size),
        "BLOCK_SIZE": block_size,
    }
    tile = attention.prefill(GROUP, head_size, element_bytes)
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    types_of_chunk = {**types, "out": x, **numbers, "sequences": "i32"}
    yield Variant("chunk", chunk_kernel, types_of_chunk, {**constants, "ROWS": tile.rows, "KEYS": tile.keys}, options, shape)
    tile = attention.decode(GROUP, head_size, element_bytes)
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    partials = {"partial_values": "*fp32", "partial_maxima": "*fp32", "partial_totals": "*fp32"}
    constants_of_split = {**constants, "SPLITS": SPLITS, "ROWS": tile.rows, "KEYS": tile.keys}
    yield Variant("split", split_kernel, {**types, **partials, **numbers}, constants_of_split, options, shape)


def variants(dtypes: Sequence[str], head_sizes: Sequence[int], block_sizes: Sequence[int]) -> Iterator[Variant]:
    """Every kernel at each of these types, head sizes and block sizes."""
    for dtype in dtypes:
        yield from _elementwise(dtype)
        for head_size in head_sizes:
            yield from _by_head(dtype, head_size)
            for block_size in block_sizes:
                yield from _attention(dtype, head_size, block_size)


def _amd_footprint(assembly: str) -> tuple[int | None, int | None]:
    registers = re.search(r"\.vgpr_count:\s+(\d+)", assembly)
    spills = re.search(r"\.vgpr_spill_count:\s+(\d+)", assembly)
    return int(registers[1]) if registers else None, int(spills[1]) if spills else None


def _nvidia_footprint(binary: bytes) -> tuple[int | None, int | None]:
    """From cuobjdump, where the installation has it."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        return None, None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(binary)
        cubin.flush()
        said = subprocess.run([tool, "--dump-resource-usage", cubin.name], capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+)", said), re.search(r"STACK:(\d+)", said)
    return int(registers[1]) if registers else None, int(stack[1]) // 4 if stack else None


def compile_for(variant: Variant, target: GPUTarget) -> Footprint:
    """Compile, no GPU needed; raises what the compiler raises."""
    compiled = triton.compile(variant.source(), target=target, options={"enable_fp_fusion": True, **variant.options})
    if target.backend == "hip":
        registers, spills = _amd_footprint(compiled.asm["amdgcn"])
    else:
        registers, spills = _nvidia_footprint(compiled.asm["cubin"])
    return Footprint(registers, spills, compiled.metadata.shared)


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 when everything compiled and fits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--kernels", nargs="+")
    parser.add_argument("--head-sizes", nargs="+", type=int, default=list(HEAD_SIZES))
    parser.add_argument("--block-sizes", nargs="+", type=int, default=list(BLOCK_SIZES))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    options = parser.parse_args(arguments)
    failed = 0
    wanted = list(variants(options.dtypes, options.head_sizes, options.block_sizes))
    for name, variant in itertools.product(options.targets, wanted):
        if options.kernels and variant.kernel not in options.kernels:
            continue
        taken = compile_for(variant, TARGETS[name])
        fits = taken.shared_bytes <= SHARED_BYTES[name] and not taken.spills
        failed += not fits
        sys.stdout.write(
            f"{name:7} {variant.kernel:9} {variant.shape:24} {taken.registers!s:>5} registers {taken.spills!s:>5} spilled "
            f"{taken.shared_bytes:7} bytes shared{'' if fits else '  DOES NOT FIT'}\n"
        )
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
