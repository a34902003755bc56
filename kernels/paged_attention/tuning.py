"""Tile sizes for the Triton kernels, by head size and element size.

Chosen so that nothing spills and all fits on every target of compile_ahead; not yet measured on a GPU.
"""

from dataclasses import dataclass, replace

from kernels.errors import ShapeError


@dataclass(frozen=True, slots=True)
class Tile:
    rows: int
    """Query rows (tokens × heads of a group) of a program, a power of two, at least 16."""
    keys: int
    """Keys that a program reads at once, a power of two, at least 16."""
    warps: int
    stages: int


SPLIT_KEYS = 256
"""Keys of a decoding sequence below which splitting it over more programs costs more than it gains."""
PROGRAMS = 512
"""Programs that a decode step aims for: about four on each processor of a large GPU."""


PREFILL = {
    (64, 2): Tile(rows=64, keys=64, warps=4, stages=2),
    (128, 2): Tile(rows=64, keys=64, warps=8, stages=2),
    (256, 2): Tile(rows=64, keys=32, warps=8, stages=1),
    (64, 4): Tile(rows=32, keys=16, warps=8, stages=1),
    (128, 4): Tile(rows=32, keys=16, warps=8, stages=1),
    (256, 4): Tile(rows=16, keys=16, warps=8, stages=2),  # at one stage sm_100 spills two registers across the loop
}
"""By padded head size and bytes of an element."""
DECODE = {
    (64, 2): Tile(rows=16, keys=64, warps=2, stages=2),
    (128, 2): Tile(rows=16, keys=64, warps=2, stages=2),
    (256, 2): Tile(rows=16, keys=32, warps=4, stages=1),
    (64, 4): Tile(rows=16, keys=32, warps=4, stages=1),
    (128, 4): Tile(rows=16, keys=16, warps=4, stages=1),
    (256, 4): Tile(rows=16, keys=16, warps=8, stages=1),
}


def _pick(table: dict[tuple[int, int], Tile], group: int, head_size: int, element_bytes: int) -> Tile:
    width = max(64, _power_of_two(head_size))
    if (width, element_bytes) not in table:
        raise ShapeError(f"paged_attention: heads of {head_size} elements of {element_bytes} bytes have no tile")
    tile = table[width, element_bytes]
    return replace(tile, rows=max(tile.rows, _power_of_two(group)))


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def prefill(group: int, head_size: int, element_bytes: int) -> Tile:
    """For chunks of tokens; rows are a power of two that holds the group's heads."""
    return _pick(PREFILL, group, head_size, element_bytes)


def decode(group: int, head_size: int, element_bytes: int) -> Tile:
    """For single tokens; rows are a power of two that holds the group's heads."""
    return _pick(DECODE, group, head_size, element_bytes)


def splits(sequences: int, kv_heads: int, longest: int) -> int:
    """Parts that each decoding sequence's keys are split into."""
    return max(1, min(-(-longest // SPLIT_KEYS), PROGRAMS // (sequences * kv_heads), 64))
