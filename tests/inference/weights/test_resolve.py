"""What MODEL may say."""

import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from inference.weights import CheckpointNotFound, DownloadFailed, UnsupportedCheckpoint, default_model_path, open_checkpoint, resolve


def test_nothing_said_is_the_default_model() -> None:
    assert resolve() == resolve("") == default_model_path()
    assert default_model_path().suffix == ".gguf"


def test_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "some.gguf"
    file.touch()
    assert resolve(str(tmp_path)) == tmp_path
    assert resolve(str(file)) == file


@pytest.mark.parametrize("model", ["/nowhere/model.gguf", "./missing", "~/missing", "just-a-name", "a b/c", "a/b/c"])
def test_what_is_nowhere_is_not_found(model: str) -> None:
    with pytest.raises(CheckpointNotFound):
        resolve(model)


def test_hub_ids_are_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, ...]] = []

    def snapshot(repository: str, **_: object) -> str:
        asked.append((repository,))
        return str(tmp_path)

    def file(repository: str, name: str) -> str:
        asked.append((repository, name))
        return str(tmp_path / name)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", file)
    assert resolve("acme/tiny") == tmp_path
    assert resolve("acme/tiny-gguf/tiny.Q8_0.gguf") == tmp_path / "tiny.Q8_0.gguf"
    assert asked == [("acme/tiny",), ("acme/tiny-gguf", "tiny.Q8_0.gguf")]


def test_an_unreachable_hub_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("no connection\nand nothing cached")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(DownloadFailed, match=r"acme/tiny: .*can't be reached: no connection and nothing cached") as raised:
        resolve("acme/tiny")
    assert raised.value.retryable


def test_a_hub_id_without_the_hub_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointNotFound, match="install the package huggingface_hub"):
        resolve("acme/tiny")


def test_only_folders_and_gguf_files_are_checkpoints(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.touch()
    with pytest.raises(UnsupportedCheckpoint, match="neither a folder nor a"):
        open_checkpoint(file)
