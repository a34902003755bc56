import os
import subprocess
import sys

import pytest

from tests.kernels.agreement import TRITON_INTERPRETED


def compiled(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kernels.compile_ahead", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(TRITON_INTERPRETED, reason="an interpreted kernel has nothing to compile")
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_kernels_compile_and_fit_a_gpu_that_is_not_here(target):
    pytest.importorskip("triton")
    run = compiled("--targets", target, "--dtypes", "bf16", "--head-sizes", "64", "--block-sizes", "16")
    assert run.returncode == 0, run.stdout + run.stderr
    names = {line.split()[1] for line in run.stdout.splitlines()}
    assert names == {"rms_norm", "silu_mul", "rope", "kv_write", "merge", "chunk", "split"}
    assert "DOES NOT FIT" not in run.stdout
