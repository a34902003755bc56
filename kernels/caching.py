"""Where compiled kernels are kept."""

import atexit
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numba


def _folder() -> Path:
    """One for each state of the kernels' sources: Numba's own key is the time stamp of one file, and a kernel is made of several."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for source in sorted({*root.glob("*.py"), *root.glob("*/cpu.py")}):
        digest.update(source.read_bytes())
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME")
    if base:
        folder = Path(base) / ("" if os.environ.get("XDG_CACHE_HOME") else ".cache") / "lockgate" / "kernels" / digest.hexdigest()[:16]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            pass  # a home that can't be written is what the other folder is for
        else:
            if os.access(folder, os.W_OK):
                return folder
    private = tempfile.mkdtemp(prefix="lockgate-kernels-")
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    return Path(private)


def configure() -> None:
    """Tell Numba, unless NUMBA_CACHE_DIR does. Where neither home nor cache can be written, compiled code lasts as long as the process.

    Through the environment too: Numba reads that again whenever it compiles.
    """
    if "NUMBA_CACHE_DIR" not in os.environ:
        configuration: Any = numba.config
        configuration.CACHE_DIR = os.environ["NUMBA_CACHE_DIR"] = str(_folder())
