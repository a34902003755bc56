"""What every compiled CPU kernel is made of: arguments as a C structure, a function compiled ahead and cached, a claim on the next piece of work.

A kernel is one function that all threads run at once. Pieces of work aren't dealt out but claimed, one atomic addition each: on a machine whose cores
other processes share, whichever thread runs takes the next piece, and nobody waits for a thread that the system has put aside.
Kernels take addresses and strides, not arrays: one compilation serves every layout, and a call costs 1 µs instead of 10.
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

ADDRESS = COUNT = ctypes.c_int64
REAL = ctypes.c_float


caching.configure()


def arguments(**fields: Any) -> type[ctypes.Structure]:
    """The structure that a kernel reads. Its first field counts the pieces of work that were claimed."""
    return type("Arguments", (ctypes.Structure,), {"_fields_": [("claimed", ctypes.c_int64), *fields.items()]})


class Kernel:
    """A compiled region over one kind of arguments."""

    def __init__(self, function: Callable[[Any], None], structure: type[ctypes.Structure]) -> None:
        record = numba.from_dtype(np.dtype(structure))
        compiled = numba.cfunc(types.void(types.CPointer(record)), cache=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
        self._entry = compiled(function)
        self._structure = structure
        self._address: int = self._entry.address
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


@intrinsic
def claim(_context: Any, pointer: Any) -> Any:
    """The number of the next piece of work, each handed out once."""

    def generate(_: Any, builder: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        counter = builder.bitcast(values[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", counter, ir.IntType(64)(1), "monotonic")

    return types.int64(pointer), generate


def _pointer_to(element: Any) -> Any:
    @intrinsic
    def pointer(_context: Any, address: Any) -> Any:
        target = types.CPointer(element)

        def generate(context: Any, builder: ir.IRBuilder, _signature: Any, values: Any) -> Any:
            return builder.inttoptr(values[0], context.get_value_type(target))

        return target(types.int64), generate

    return pointer


as_float32 = _pointer_to(types.float32)
as_uint32 = _pointer_to(types.uint32)
as_uint16 = _pointer_to(types.uint16)
as_int32 = _pointer_to(types.int32)
as_int64 = _pointer_to(types.int64)
