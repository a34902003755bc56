"""Where compiled kernels are kept."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numba


def configure() -> None:
    """Give each state of the kernels' sources a cache of its own, unless NUMBA_CACHE_DIR names one.

    Numba's own key is the time stamp of one file; a kernel is made of several.
    """
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for source in sorted({*root.glob("*.py"), *root.glob("*/cpu.py")}):
        digest.update(source.read_bytes())
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    configuration: Any = numba.config
    configuration.CACHE_DIR = str(base / "lockgate" / "kernels" / digest.hexdigest()[:16])
