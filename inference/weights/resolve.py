"""From what an operator wrote as MODEL to a path on this machine."""

import re
from pathlib import Path

from inference.weights.default_model import default_model_path
from inference.weights.errors import CheckpointNotFound, DownloadFailed

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_FILE = re.compile(rf"({HUB_ID.pattern})/([\w./-]+\.gguf)")
DEFAULT = "default"
FOLDER_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "chat_template.jinja"]


def resolve(model: str | None = None) -> Path:
    """A folder or a .gguf file as it is; `owner/model` or `owner/model/file.gguf` from the hub; nothing or "default": the default model.

    Raises CheckpointNotFound, or DownloadFailed, which may be tried again.
    """
    if not model or model == DEFAULT:
        return default_model_path()
    path = Path(model).expanduser()
    if path.is_dir() or path.is_file():
        return path
    if model.startswith(("/", ".", "~")):
        raise CheckpointNotFound(path, "no such file or folder")
    if match := HUB_FILE.fullmatch(model):
        return _download(match[1], file=match[2])
    if HUB_ID.fullmatch(model):
        return _download(model)
    raise CheckpointNotFound(model, "neither a file or folder here nor a hub id of the form owner/model")


def _download(repository: str, *, file: str | None = None) -> Path:
    """Into the hub library's own cache; what is there already isn't fetched again."""
    try:
        from huggingface_hub import hf_hub_download, snapshot_download
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
    except ImportError:
        raise CheckpointNotFound(
            repository, "no such file or folder here; to fetch it from the hub, install the package huggingface_hub"
        ) from None
    try:
        if file is not None:
            return Path(hf_hub_download(repository, file))
        return Path(snapshot_download(repository, allow_patterns=FOLDER_FILES))
    except LocalEntryNotFoundError as error:
        raise DownloadFailed(repository, f"not in the local cache, and the hub can't be reached: {_line(error)}") from error
    except (RepositoryNotFoundError, EntryNotFoundError) as error:
        raise CheckpointNotFound(repository, f"the hub has no such model, or it needs a login: {_line(error)}") from error
    except (HfHubHTTPError, OSError) as error:
        raise DownloadFailed(repository, f"the download failed: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
