"""Whole models on the Triton kernels, which the interpreter runs on a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

from inference.models.load import load_model
from kernels.selection import use
from tests.inference.paged_run import greedy
from tests.inference.tiny_models import WINDOW, save

PROMPT = [3, 17, 5, 99, 42, 8, 120, 5, 5, 63, 11]
STEPS = 6
NAMES = ["llama", "mistral", "qwen3"]
ROOT = Path(__file__).parents[3]


def test_greedy_tokens_are_the_references(tmp_path: Path) -> None:
    assert len(PROMPT) > WINDOW
    folders = [tmp_path / name for name in NAMES]
    expected = []
    for name, folder in zip(NAMES, folders, strict=True):
        save(name, folder)
        with use("reference"):
            expected.append(greedy(load_model(folder).model, PROMPT, STEPS))
    done = subprocess.run(
        [sys.executable, "-m", "tests.inference.models.greedy_tokens", json.dumps(PROMPT), str(STEPS), *map(str, folders)],
        env=os.environ | {"TRITON_INTERPRET": "1", "LOCKGATE_KERNELS": "triton"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected
