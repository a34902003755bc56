"""The GGUF reader against the package's own, and against damage."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.weights import BrokenCheckpoint, CheckpointNotFound, UnsupportedCheckpoint, WeightsError, open_checkpoint
from inference.weights.gguf_file import GGUFFile
from tests.inference.tiny_models import make
from tests.inference.weights.gguf_files import write_model


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "sound.gguf"
    write_model(path, make("llama"), "Q4_0", chat_template="{{ 'ü' }}")
    return path


def refused(path: Path) -> str | None:
    """Why a file is refused, or None if it opens."""
    try:
        open_checkpoint(path)
    except WeightsError as error:
        return str(error)
    return None


def test_reads_what_the_packages_reader_reads(sound: Path) -> None:
    ours, theirs = GGUFFile(sound), gguf.GGUFReader(sound)
    expected = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == expected
    assert set(ours.tensors) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert info.encoding == tensor.tensor_type.name
        assert bytes(ours.data(tensor.name)) == np.ascontiguousarray(tensor.data).tobytes()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_file_cut_anywhere_is_refused_by_name(sound: Path, data: st.DataObject) -> None:
    whole = sound.read_bytes()
    path = sound.with_name("cut.gguf")
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(BrokenCheckpoint, match=r"cut\.gguf: "):
        open_checkpoint(path)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damage_to_the_head_is_refused_or_harmless(sound: Path, data: st.DataObject) -> None:
    """Whatever a flipped byte makes of the head, nothing but a WeightsError comes of it."""
    damaged = bytearray(sound.read_bytes())
    head = min(tensor.offset for tensor in GGUFFile(sound).tensors.values())
    damaged[data.draw(st.integers(0, head - 1))] ^= data.draw(st.integers(1, 255))
    path = sound.with_name("damaged.gguf")
    path.write_bytes(damaged)
    refusal = refused(path)
    assert refusal is None or ("damaged.gguf" in refusal and "\n" not in refusal)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", BrokenCheckpoint, "empty"),
        (b"PK\x03\x04 and so on", BrokenCheckpoint, "wrong magic number"),
        (b"GGUF" + (1).to_bytes(4, "little") + bytes(64), UnsupportedCheckpoint, "version 1"),
        (b"GGUF" + (3).to_bytes(4, "big") + bytes(64), UnsupportedCheckpoint, "big-endian"),
    ],
    ids=["empty", "zip", "version-1", "big-endian"],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, content: bytes, error: type[WeightsError], message: str) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(content)
    with pytest.raises(error, match=message):
        open_checkpoint(path)


def test_one_part_of_several_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "part.gguf", "llama")
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedCheckpoint, match="one of 3 parts"):
        open_checkpoint(tmp_path / "part.gguf")


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound):
        open_checkpoint(tmp_path / "none.gguf")
    with pytest.raises(CheckpointNotFound):
        GGUFFile(tmp_path / "none.gguf")
