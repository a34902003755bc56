# ruff: noqa: PLR0917
"""Inner loops of the CPU kernels, written as LLVM vectors of eight floats so that registers are what we say they are.

LLVM lowers them to whatever the machine has (AVX2 here, two NEON registers each on Arm).
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kernels.compiled import instruction

LANES = 8
PANEL = 16
"""Columns of a panel: two vectors, so that six rows' sums, two vectors of weights and one of x fill the 16 registers of AVX2."""
TILE_ROWS = 6

_I16, _I32, _I64, _F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_F32, LANES)
_INTS = ir.VectorType(_I32, LANES)
_SHORTS = ir.VectorType(_I16, LANES)
_CONTRACT = ("contract",)


def _external(b: ir.IRBuilder, signature: ir.FunctionType, name: str) -> Any:
    insert: Any = cgutils.get_or_insert_function
    return insert(b.module, signature, name)


def _variable(b: ir.IRBuilder, value: Any) -> Any:
    """A place on the stack, which LLVM keeps in a register."""
    allocate: Any = cgutils.alloca_once_value
    return allocate(b, value)


def _splat(value: float) -> ir.Constant:
    return ir.Constant(_VECTOR, [value] * LANES)


def _broadcast(b: ir.IRBuilder, scalar: Any) -> Any:
    vector = b.insert_element(ir.Constant(_VECTOR, ir.Undefined), scalar, _I32(0))
    return b.shuffle_vector(vector, vector, ir.Constant(_INTS, [0] * LANES))


def _at(b: ir.IRBuilder, address: Any, elements: Any, element: Any) -> Any:
    """A pointer to `element`s, `elements` of them past an address."""
    return b.gep(b.inttoptr(address, element.as_pointer()), [elements])


def _load(b: ir.IRBuilder, pointer: Any) -> Any:
    return b.load(b.bitcast(pointer, _VECTOR.as_pointer()), align=4)


def _load_bfloat16(b: ir.IRBuilder, pointer: Any) -> Any:
    shorts = b.load(b.bitcast(pointer, _SHORTS.as_pointer()), align=2)
    return b.bitcast(b.shl(b.zext(shorts, _INTS), ir.Constant(_INTS, [16] * LANES)), _VECTOR)


def _store(b: ir.IRBuilder, vector: Any, pointer: Any) -> None:
    b.store(vector, b.bitcast(pointer, _VECTOR.as_pointer()), align=4)


def _multiply_add(b: ir.IRBuilder, x: Any, y: Any, z: Any) -> Any:
    """x · y + z, fused where the machine can."""
    return b.fadd(b.fmul(x, y, flags=_CONTRACT), z, flags=_CONTRACT)


def _exp(b: ir.IRBuilder, x: Any) -> Any:
    """e^x within 1 unit of the last place (8 M points); 0 below -87, e^88 above 88. Reduced to ±ln 2 / 2, then degree 7."""
    floor = _external(b, ir.FunctionType(_VECTOR, [_VECTOR]), "llvm.floor.v8f32")
    vanishes = b.fcmp_ordered("<", x, _splat(-87.0))
    x = b.select(b.fcmp_ordered(">", x, _splat(88.0)), _splat(88.0), b.select(vanishes, _splat(-87.0), x))
    whole = b.call(floor, [_multiply_add(b, x, _splat(1.44269504088896341), _splat(0.5))])
    part = _multiply_add(b, whole, _splat(-0.693359375), x)
    part = _multiply_add(b, whole, _splat(2.12194440e-4), part)
    series = _splat(1 / 5040)
    for factor in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
        series = _multiply_add(b, series, part, _splat(factor))
    exponent = b.shl(b.add(b.fptosi(whole, _INTS), ir.Constant(_INTS, [127] * LANES)), ir.Constant(_INTS, [23] * LANES))
    return b.select(vanishes, _splat(0.0), b.fmul(series, b.bitcast(exponent, _VECTOR)))


def _fold(b: ir.IRBuilder, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """The lanes of a vector combined, pairwise and always in the same order."""
    width = LANES
    while width > 1:
        width //= 2
        upper = b.shuffle_vector(vector, vector, ir.Constant(_INTS, [(lane + width) % LANES for lane in range(LANES)]))
        vector = combine(vector, upper)
    return b.extract_element(vector, _I32(0))


def _tile(rows: int, load: Callable[[ir.IRBuilder, Any], Any], element: Any) -> Any:
    @instruction
    def tile(
        _context: Any,
        x: Any,
        x_stride: Any,
        panel: Any,
        panel_stride: Any,
        depth: Any,
        start: Any,
        start_stride: Any,
        out: Any,
        out_stride: Any,
    ) -> Any:
        def generate(context: Any, b: ir.IRBuilder, _signature: Any, values: Any) -> Any:
            x, x_stride, panel, panel_stride, depth, start, start_stride, out, out_stride = values
            x_rows = [_at(b, x, b.mul(x_stride, _I64(row)), _F32) for row in range(rows)]
            halves = [_I64(0), _I64(LANES)]
            sums = []
            for row in range(rows):
                begin = _at(b, start, b.mul(start_stride, _I64(row)), _F32)
                sums.append([_variable(b, _load(b, b.gep(begin, [half]))) for half in halves])
            with cgutils.for_range(b, depth) as loop:
                line = _at(b, panel, b.mul(loop.index, panel_stride), element)
                weights = [load(b, b.gep(line, [half])) for half in halves]
                for row in range(rows):
                    value = _broadcast(b, b.load(b.gep(x_rows[row], [loop.index]), align=4))
                    for half, weight in zip(sums[row], weights, strict=True):
                        b.store(_multiply_add(b, value, weight, b.load(half)), half)
            for row in range(rows):
                end = _at(b, out, b.mul(out_stride, _I64(row)), _F32)
                for half, total in zip(halves, sums[row], strict=True):
                    _store(b, b.load(total), b.gep(end, [half]))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), generate

    return tile


# Each adds [rows, depth] · [depth, 16] to [rows, 16] at `start` and writes it to `out`; strides in elements, the panel's between its lines.
# Every element's sum runs over depth in order, whatever the rows around it: results don't depend on the batch.
tile_1, tile_2, tile_3, tile_4, tile_5, tile_6 = (_tile(rows, _load, _F32) for rows in range(1, TILE_ROWS + 1))
tile_1_bfloat16, tile_2_bfloat16, tile_3_bfloat16, tile_4_bfloat16, tile_5_bfloat16, tile_6_bfloat16 = (
    _tile(rows, _load_bfloat16, _I16) for rows in range(1, TILE_ROWS + 1)
)


@instruction
def row_maximum(_context: Any, row: Any, count: Any) -> Any:
    """The largest of `count` floats, count a multiple of 8 and not 0."""

    def generate(_: Any, b: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        row, count = values
        best = _variable(b, _load(b, _at(b, row, _I64(0), _F32)))
        with cgutils.for_range_slice(b, _I64(LANES), count, _I64(LANES), _I64) as (index, _):
            value, so_far = _load(b, _at(b, row, index, _F32)), b.load(best)
            b.store(b.select(b.fcmp_ordered(">", value, so_far), value, so_far), best)
        return _fold(b, b.load(best), lambda x, y: b.select(b.fcmp_ordered(">", x, y), x, y))

    return types.float32(types.int64, types.int64), generate


@instruction
def row_exponentials(_context: Any, row: Any, count: Any, maximum: Any) -> Any:
    """Replace `count` floats by e^(float - maximum) and return their sum; count a multiple of 8."""

    def generate(_: Any, b: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        row, count, maximum = values
        top = _broadcast(b, maximum)
        total = _variable(b, _splat(0.0))
        with cgutils.for_range_slice(b, _I64(0), count, _I64(LANES), _I64) as (index, _):
            place = _at(b, row, index, _F32)
            value = _exp(b, b.fsub(_load(b, place), top))
            _store(b, value, place)
            b.store(b.fadd(b.load(total), value), total)
        return _fold(b, b.load(total), b.fadd)

    return types.float32(types.int64, types.int64, types.float32), generate


@instruction
def row_silu_mul(_context: Any, gate: Any, up: Any, out: Any, count: Any) -> Any:
    """out = gate / (1 + e^-gate) · up over `count` floats, a multiple of 8."""

    def generate(context: Any, b: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        gate, up, out, count = values
        with cgutils.for_range_slice(b, _I64(0), count, _I64(LANES), _I64) as (index, _):
            value = _load(b, _at(b, gate, index, _F32))
            spread = b.fadd(_splat(1.0), _exp(b, b.fneg(value)))
            _store(b, b.fmul(b.fdiv(value, spread), _load(b, _at(b, up, index, _F32))), _at(b, out, index, _F32))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


def _transpose(load: Callable[[ir.IRBuilder, Any], Any], element: Any) -> Any:
    @instruction
    def transpose(_context: Any, source: Any, source_stride: Any, out: Any, out_stride: Any) -> Any:
        def generate(context: Any, b: ir.IRBuilder, _signature: Any, values: Any) -> Any:
            source, source_stride, out, out_stride = values

            def mix(x: Any, y: Any, lanes: list[int]) -> Any:
                return b.shuffle_vector(x, y, ir.Constant(_INTS, lanes))

            lines = [load(b, _at(b, source, b.mul(source_stride, _I64(line)), element)) for line in range(LANES)]
            pairs = []
            for i in range(0, LANES, 2):
                pairs.append(mix(lines[i], lines[i + 1], [0, 8, 1, 9, 4, 12, 5, 13]))
                pairs.append(mix(lines[i], lines[i + 1], [2, 10, 3, 11, 6, 14, 7, 15]))
            fours = []
            for i in (0, 4):
                for j in (0, 1):
                    fours.append(mix(pairs[i + j], pairs[i + j + 2], [0, 1, 8, 9, 4, 5, 12, 13]))
                    fours.append(mix(pairs[i + j], pairs[i + j + 2], [2, 3, 10, 11, 6, 7, 14, 15]))
            for line in range(LANES):
                half = [0, 1, 2, 3, 8, 9, 10, 11] if line < 4 else [4, 5, 6, 7, 12, 13, 14, 15]
                column = mix(fours[line % 4], fours[line % 4 + 4], half)
                _store(b, column, _at(b, out, b.mul(out_stride, _I64(line)), _F32))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return transpose


# An 8 × 8 block from lines `source_stride` elements apart to columns of a float32 matrix whose lines are `out_stride` apart.
transpose_8 = _transpose(_load, _F32)
transpose_8_bfloat16 = _transpose(_load_bfloat16, _I16)


@instruction
def prefetch(_context: Any, address: Any, count: Any) -> Any:
    """Ask for `count` bytes to be brought into the caches."""

    def generate(context: Any, b: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        address, count = values
        byte = ir.IntType(8)
        signature = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), _I32, _I32, _I32])
        fetch = _external(b, signature, "llvm.prefetch.p0")
        with cgutils.for_range_slice(b, _I64(0), count, _I64(64), _I64) as (offset, _):
            b.call(fetch, [_at(b, address, offset, byte), _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _widen(load: Callable[[ir.IRBuilder, Any], Any], element: Any) -> Any:
    @instruction
    def widen(_context: Any, source: Any, out: Any, count: Any) -> Any:
        def generate(context: Any, b: ir.IRBuilder, _signature: Any, values: Any) -> Any:
            source, out, count = values
            with cgutils.for_range_slice(b, _I64(0), count, _I64(LANES), _I64) as (index, _):
                _store(b, load(b, _at(b, source, index, element)), _at(b, out, index, _F32))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), generate

    return widen


# `count` elements, a multiple of 8, to float32.
widen, widen_bfloat16 = _widen(_load, _F32), _widen(_load_bfloat16, _I16)
