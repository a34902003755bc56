import os
import subprocess
import sys
from pathlib import Path

CODE = """
import numba, torch
from kernels.rms_norm import rms_norm
assert rms_norm(torch.ones(1, 4), torch.ones(4), 0.0).sum() == 4
print(numba.config.CACHE_DIR)
"""


def cache_of_a_process(**environment: str) -> Path:
    inherited = {name: value for name, value in os.environ.items() if name not in {"XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "TRITON_INTERPRET"}}
    run = subprocess.run([sys.executable, "-c", CODE], env={**inherited, **environment}, capture_output=True, text=True, check=True)
    return Path(run.stdout.strip())


def test_compiled_code_is_kept_in_the_users_cache(tmp_path: Path):
    folder = cache_of_a_process(XDG_CACHE_HOME=str(tmp_path))
    assert folder.is_relative_to(tmp_path)
    assert list(folder.rglob("*.nbi"))


def test_without_a_home_that_can_be_written_kernels_still_compile(tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.touch()
    folder = cache_of_a_process(HOME=str(blocked))
    assert not folder.is_relative_to(tmp_path)
    assert not folder.exists()


def test_numbas_own_variable_wins(tmp_path: Path):
    assert cache_of_a_process(NUMBA_CACHE_DIR=str(tmp_path)) == tmp_path
