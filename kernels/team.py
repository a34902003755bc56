"""The compiled half of `threads`: how a worker waits for a region, and how a region is run.

The caller publishes a region, works on it itself, withdraws it, and waits only for workers that are inside. A worker that the system
hasn't scheduled meanwhile is never waited for: it comes late and finds nothing. Each region claims its pieces of work, so whoever is
running does them. OpenMP's barrier waits for all: beside other busy processes on the same two cores, all linear layers of a 135 M model
took 106 to 135 ms for one row with OpenMP and, half a minute before, 49 to 55 ms with this: one run each under a load that varied.
"""

import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

GENERATION, REGION, ARGUMENTS, INSIDE, ASLEEP, STOP = (line * 8 for line in range(6))
"""Words of the shared state, one to a cache line."""
WORDS = 48
SPIN_TURNS = 4000
"""How often a worker looks for the next region before it sleeps: about 100 µs, the longest gap between two operations of a step."""
PATIENCE_TURNS = 2000
"""How often the caller looks for the last worker to leave before it offers it its core."""

FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine()) if sys.platform == "linux" else None
"""The system call's number; None where there is no futex, and no team then."""
_PAUSE = {"x86_64": "llvm.x86.sse2.pause"}.get(platform.machine())
_FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE = 128, 129


def _instruction(function: Callable[..., Any]) -> Any:
    """A function that writes LLVM instructions where compiled code calls it."""
    return intrinsic(function)


_I32, _I64 = ir.IntType(32), ir.IntType(64)
_BYTES = ir.IntType(8).as_pointer()


def _external(b: ir.IRBuilder, signature: ir.FunctionType, name: str) -> Any:
    insert: Any = cgutils.get_or_insert_function
    return insert(b.module, signature, name)


def _word(b: ir.IRBuilder, state: Any, index: Any) -> Any:
    return b.gep(b.inttoptr(state, _I64.as_pointer()), [index])


@_instruction
def load_word(_context: Any, state: Any, index: Any) -> Any:
    def generate(_: Any, b: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        return b.load_atomic(_word(b, *values), "seq_cst", 8)

    return types.int64(types.int64, types.int64), generate


@_instruction
def store_word(_context: Any, state: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, b: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        b.store_atomic(values[2], _word(b, values[0], values[1]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@_instruction
def add_word(_context: Any, state: Any, index: Any, value: Any) -> Any:
    def generate(_: Any, b: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        return b.atomic_rmw("add", _word(b, values[0], values[1]), values[2], "seq_cst")

    return types.int64(types.int64, types.int64, types.int64), generate


@_instruction
def pause(_context: Any) -> Any:
    def generate(context: Any, b: ir.IRBuilder, _signature: Any, _values: Any) -> Any:
        if _PAUSE:
            b.call(_external(b, ir.FunctionType(ir.VoidType(), []), _PAUSE), [])
        return context.get_dummy_value()

    return types.void(), generate


def _futex(b: ir.IRBuilder, word: Any, operation: int, value: Any) -> None:
    number = ir.FunctionType(_I64, [_I64], var_arg=True)
    call = _external(b, number, "syscall")
    nothing = ir.Constant(_BYTES, None)
    b.call(call, [_I64(FUTEX or 0), b.bitcast(word, _BYTES), _I32(operation), value, nothing, nothing, _I32(0)])


@_instruction
def sleep_while(_context: Any, state: Any, index: Any, value: Any) -> Any:
    """Sleep unless the word's low half already differs from value's; until woken, perhaps for no reason."""

    def generate(context: Any, b: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        _futex(b, _word(b, values[0], values[1]), _FUTEX_WAIT_PRIVATE, b.trunc(values[2], _I32))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@_instruction
def wake_all(_context: Any, state: Any, index: Any) -> Any:
    def generate(context: Any, b: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        _futex(b, _word(b, *values), _FUTEX_WAKE_PRIVATE, _I32(np.iinfo(np.int32).max))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_instruction
def yield_core(_context: Any) -> Any:
    def generate(context: Any, b: ir.IRBuilder, _signature: Any, _values: Any) -> Any:
        b.call(_external(b, ir.FunctionType(_I32, []), "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


@_instruction
def call(_context: Any, region: Any, arguments: Any) -> Any:
    def generate(context: Any, b: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        function = ir.FunctionType(ir.VoidType(), [_BYTES]).as_pointer()
        b.call(b.inttoptr(values[0], function), [b.inttoptr(values[1], _BYTES)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def work(state: int) -> None:
    """A worker's life, until STOP is set and it is woken."""
    seen = load_word(state, GENERATION)
    while load_word(state, STOP) == 0:
        turns = 0
        while load_word(state, GENERATION) == seen:
            turns += 1
            if turns < SPIN_TURNS:
                pause()
            else:
                add_word(state, ASLEEP, 1)
                sleep_while(state, GENERATION, seen)
                add_word(state, ASLEEP, -1)
        seen = load_word(state, GENERATION)
        # Inside before it looks: the caller withdraws a region before it counts who is inside, so one of the two sees the other.
        add_word(state, INSIDE, 1)
        region = load_word(state, REGION)
        if region != 0:
            call(region, load_word(state, ARGUMENTS))
        add_word(state, INSIDE, -1)


def run(state: int, region: int, arguments: int) -> None:
    """Carry out a region with whichever workers come."""
    store_word(state, ARGUMENTS, arguments)
    store_word(state, REGION, region)
    add_word(state, GENERATION, 1)
    if load_word(state, ASLEEP) > 0:
        wake_all(state, GENERATION)
    call(region, arguments)
    store_word(state, REGION, 0)
    turns = 0
    while load_word(state, INSIDE) > 0:
        turns += 1
        if turns < PATIENCE_TURNS:
            pause()
        else:
            yield_core()
