"""Prints a saved model's greedy tokens after a prompt, as JSON: run in a process of its own, whose environment chooses the kernels."""

import json
import sys
from pathlib import Path

from inference.models.load import load_model
from tests.inference.paged_run import greedy

if __name__ == "__main__":
    folder, prompt, steps = sys.argv[1:]
    json.dump(greedy(load_model(Path(folder)).model, json.loads(prompt), int(steps)), sys.stdout)
