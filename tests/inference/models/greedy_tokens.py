"""Prints the greedy tokens of saved models after a prompt, as JSON: run in a process of its own, whose environment chooses the kernels."""

import json
import sys
from pathlib import Path

from inference.models.load import load_model
from tests.inference.paged_run import greedy

if __name__ == "__main__":
    prompt, steps, *folders = sys.argv[1:]
    json.dump([greedy(load_model(Path(folder)).model, json.loads(prompt), int(steps)) for folder in folders], sys.stdout)
