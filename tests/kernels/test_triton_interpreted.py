"""Triton decides at its import whether it interprets, so its share of this folder's tests runs in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.agreement import TRITON_INTERPRETED

OPERATIONS = ("rms_norm", "rope", "silu_mul", "kv_write", "paged_attention")


@pytest.mark.skipif(TRITON_INTERPRETED, reason="this is that process")
def test_the_triton_kernels_agree_with_the_reference_under_the_interpreter():
    pytest.importorskip("triton")
    files = [str(Path(__file__).with_name(f"test_{operation}.py")) for operation in OPERATIONS]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
