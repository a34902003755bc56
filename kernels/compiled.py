"""What every compiled CPU kernel is made of: arguments as a C structure, a function compiled ahead and cached, claims on work.

A kernel is one function that all threads run at once. Pieces of work aren't dealt out but claimed, one atomic addition each: on a
machine whose cores other processes share, whichever thread runs takes the next piece, and nobody waits for a thread that is put aside.
Kernels take addresses and strides, not arrays, so that one compilation serves every layout.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels import caching, threads

_FASTMATH = {"contract", "reassoc", "nsz"}
"""Sums may be vectorised and products fused; infinities and NaNs keep their meaning."""

ADDRESS = COUNT = ctypes.c_int64
REAL = ctypes.c_float


caching.configure()


def arguments(**fields: Any) -> type[ctypes.Structure]:
    """The structure that a kernel reads. Its first field counts the pieces of work that were claimed."""
    return type("Arguments", (ctypes.Structure,), {"_fields_": [("claimed", ctypes.c_int64), *fields.items()]})


_pointer_type: Any = types.CPointer


class Kernel:
    """A compiled region over one kind of arguments."""

    def __init__(self, function: Callable[[Any], None], structure: type[ctypes.Structure]) -> None:
        record = numba.from_dtype(np.dtype(structure))
        compiled = numba.cfunc(types.void(_pointer_type(record)), cache=True, error_model="numpy", fastmath=_FASTMATH)
        self._entry = compiled(function)
        self._structure = structure
        self._address: int = self._entry.address or 0
        self._here = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(self._address)

    def __call__(self, *values: float) -> None:
        """On every thread of the team."""
        packed = self._structure(0, *values)
        threads.run(self._address, ctypes.addressof(packed))

    def here(self, *values: float) -> None:
        """On the caller's thread alone, holding the GIL: for work too small to share, a few microseconds at most."""
        packed = self._structure(0, *values)
        self._here(ctypes.addressof(packed))


def kernel(structure: type[ctypes.Structure]) -> Callable[[Callable[[Any], None]], Kernel]:
    """Compile a function of a pointer to `structure`."""
    return lambda function: Kernel(function, structure)


def instruction(function: Callable[..., Any]) -> Any:
    """A function that writes LLVM instructions where compiled code calls it."""
    return intrinsic(function)


def subroutine(function: Callable[..., Any]) -> Any:
    """A compiled function that kernels call, kept out of line."""
    return numba.njit(inline="never", error_model="numpy", fastmath=_FASTMATH)(function)


@instruction
def claim(_context: Any, pointer: Any) -> Any:
    """The number of the next piece of work, each handed out once."""

    def generate(_: Any, builder: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        counter = builder.bitcast(values[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", counter, ir.IntType(64)(1), "monotonic")

    return types.int64(pointer), generate


_carray: Any = numba.__dict__["carray"]


def _array_of(element: Any) -> Any:
    """A function from an address and a count to a dense array of that many elements there."""

    @instruction
    def pointer(_context: Any, address: Any) -> Any:
        target = _pointer_type(element)

        def generate(context: Any, builder: ir.IRBuilder, _signature: Any, values: Any) -> Any:
            return builder.inttoptr(values[0], context.get_value_type(target))

        return target(types.int64), generate

    def array(address: int, count: int) -> Any:
        return _carray(pointer(address), count)

    return numba.njit(inline="always")(array)


float32s, int32s, int64s = _array_of(types.float32), _array_of(types.int32), _array_of(types.int64)
uint16s, uint32s = _array_of(types.uint16), _array_of(types.uint32)


@numba.njit(inline="always")
def fields(pointer: Any) -> Any:
    """The arguments that a kernel's pointer points to."""
    return _carray(pointer, 1)[0]
