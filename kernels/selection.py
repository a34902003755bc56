"""Which implementation an operation runs: by device, unless LOCKGATE_KERNELS or `use` says otherwise."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from types import ModuleType

import torch

from kernels.errors import NoImplementationError

NAMES = ("reference", "cpu", "triton")


def _checked(name: str) -> str:
    if name not in NAMES:
        raise NoImplementationError(f"LOCKGATE_KERNELS: {name!r} is none of {', '.join(NAMES)}")
    return name


def _from_environment() -> str | None:
    name = os.environ.get("LOCKGATE_KERNELS")
    return _checked(name) if name else None


_forced: str | None = _from_environment()


def forced() -> str | None:
    """The implementation that everything runs on, or None when the device decides."""
    return _forced


@contextmanager
def use(name: str) -> Iterator[None]:
    """Run everything in the block on one implementation."""
    global _forced  # noqa: PLW0603 - one for the process, as the environment variable is
    before, _forced = _forced, _checked(name)
    try:
        yield
    finally:
        _forced = before


@cache
def _load(operation: str, name: str) -> ModuleType:
    return importlib.import_module(f"kernels.{operation}.{name}")


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


def _runs_triton(device: torch.device) -> bool:
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"


def implementation(operation: str, device: torch.device, *dtypes: torch.dtype) -> ModuleType:
    """The module that carries out an operation.

    A forced implementation is taken or refused, never replaced, but for types that the CPU kernels leave to the reference.
    """
    name = _forced
    if name is None:
        name = "cpu" if device.type == "cpu" else "triton" if device.type == "cuda" and has_triton() else "reference"
    if name == "triton":
        if not has_triton():
            raise NoImplementationError("the Triton kernels need the package triton: install lockgate[gpu]")
        if not _runs_triton(device):
            raise NoImplementationError(f"Triton kernels run on {device.type} only under TRITON_INTERPRET=1")
    if name == "cpu":
        if device.type != "cpu":
            raise NoImplementationError(f"the CPU kernels can't read tensors on {device.type}")
        module = _load(operation, name)
        return module if module.supports(*dtypes) else _load(operation, "reference")
    return _load(operation, name)
