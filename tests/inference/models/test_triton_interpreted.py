"""Whole models on the Triton kernels, which the interpreter runs on a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inference.models.load import load_model
from kernels.selection import use
from tests.inference.paged_run import greedy
from tests.inference.tiny_models import save

PROMPT = [3, 17, 5, 99, 42, 8, 120, 5, 5, 63, 11]
STEPS = 6
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])
def test_greedy_tokens_are_the_references(tmp_path: Path, name: str) -> None:
    save(name, tmp_path)
    with use("reference"):
        expected = greedy(load_model(tmp_path).model, PROMPT, STEPS)
    done = subprocess.run(
        [sys.executable, "-m", "tests.inference.models.greedy_tokens", str(tmp_path), json.dumps(PROMPT), str(STEPS)],
        env=os.environ | {"TRITON_INTERPRET": "1", "LOCKGATE_KERNELS": "triton"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected
    assert len(set(expected)) > 1
