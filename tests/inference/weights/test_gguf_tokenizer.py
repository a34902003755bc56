"""Byte-level BPE out of GGUF metadata."""

import json
from pathlib import Path

import pytest
from jinja2 import Environment
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from inference.weights import BrokenCheckpoint, Checkpoint, UnsupportedCheckpoint, default_model_path, open_checkpoint
from inference.weights.gguf_tokenizer import GGUFTokenizer
from tests.inference.weights.gguf_files import BYTE_LETTERS

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "smollm2_greedy.json").read_text())["items"]
TRICKY = "I'M sure 12345 don't  x\n\n  y\t中文 naïve e\u0301 [a]!!\r\n"
BASE: dict[str, object] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["<|begin|>", "<|end|>", "<user tag>", *BYTE_LETTERS, "ab", "abc"],
    "tokenizer.ggml.token_type": [3, 3, 4, *[1] * 258],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
}


def tokenizer(**changes: object) -> Tokenizer:
    metadata = BASE | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return Tokenizer.from_str(GGUFTokenizer(metadata, Path("some.gguf")).to_json())


def words(pre: str, text: str) -> list[str]:
    loaded = tokenizer(pre=pre)
    if loaded.normalizer is not None:
        text = loaded.normalizer.normalize_str(text)
    return [word for word, _ in loaded.pre_tokenizer.pre_tokenize_str(text)]


@pytest.fixture(scope="module")
def default_model() -> Checkpoint:
    return open_checkpoint(default_model_path())


@pytest.fixture(scope="module")
def default_tokenizer(default_model: Checkpoint) -> Tokenizer:
    return Tokenizer.from_str(default_model.tokenizer_json)


@pytest.mark.parametrize("item", GOLDEN, ids=lambda item: item["text"][:20])
def test_golden_prompts_are_reproduced(default_model: Checkpoint, default_tokenizer: Tokenizer, item: dict[str, object]) -> None:
    text = item["text"]
    if item["kind"] == "chat":
        template = Environment(autoescape=False).from_string(default_model.chat_template or "")
        text = template.render(messages=[{"role": "user", "content": text}], add_generation_prompt=True)
    assert default_tokenizer.encode(text).ids == item["prompt_ids"]
    assert default_tokenizer.decode(item["tokens"]) == item["output"]


def test_default_model_ends_at_its_turn_token(default_model: Checkpoint) -> None:
    assert (default_model.bos_token, default_model.eos_token, default_model.eos_token_ids) == ("<|im_start|>", "<|im_end|>", (2,))
    assert (default_model.name, default_model.parameters) == ("SmolLM2-135M-Instruct", 134_515_008)


def test_qwen2_splits_as_transformers_does() -> None:
    split = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated")
    reference = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    text = normalizers.NFC().normalize_str(TRICKY)
    assert words("qwen2", TRICKY) == [word for word, _ in reference.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["a", "Ġ12345"]),
        ("default", ["a", "Ġ12345"]),
        ("smollm", ["a", "Ġ", "1", "2", "3", "4", "5"]),
        ("qwen2", ["a", "Ġ", "1", "2", "3", "4", "5"]),
        ("llama-bpe", ["a", "Ġ", "123", "45"]),
    ],
)
def test_digits_are_cut_as_the_model_was_trained(pre: str, expected: list[str]) -> None:
    assert words(pre, "a 12345") == expected


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe"])
def test_any_text_survives_a_round_trip(pre: str) -> None:
    loaded = tokenizer(pre=pre)
    assert loaded.decode(loaded.encode(TRICKY, add_special_tokens=False).ids) == TRICKY


def test_whole_words_pass_by_the_merges_only_where_the_model_says_so() -> None:
    assert tokenizer(pre="llama-bpe").encode("abc", add_special_tokens=False).tokens == ["abc"]
    assert tokenizer(pre="gpt-2").encode("abc").tokens == ["ab", "c"]


def test_control_tokens_are_special_and_user_defined_ones_are_text() -> None:
    loaded = tokenizer(pre="smollm")
    encoding = loaded.encode("<|begin|>ab<user tag>")
    assert encoding.tokens == ["<|begin|>", "ab", "<user tag>"]
    assert loaded.decode(encoding.ids) == "ab<user tag>"


def test_begin_and_end_tokens_are_added_where_the_file_asks() -> None:
    assert tokenizer(pre="smollm").encode("a").tokens == ["a"]
    assert tokenizer(pre="llama-bpe").encode("a").tokens == ["<|begin|>", "a"]
    assert tokenizer(pre="llama-bpe", add_bos_token=False).encode("a").tokens == ["a"]
    both = tokenizer(pre="smollm", add_bos_token=True, add_eos_token=True)
    assert both.encode("a").tokens == ["<|begin|>", "a", "<|end|>"]
    assert both.encode("a", add_special_tokens=False).tokens == ["a"]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "llama"}, UnsupportedCheckpoint, "tokenizer model 'llama'"),
        ({"pre": "tekken"}, UnsupportedCheckpoint, "pre-tokenizer 'tekken'"),
        ({"merges": ["a z"]}, BrokenCheckpoint, "'a z' isn't a merge"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, BrokenCheckpoint, "twice"),
        ({"tokens": None}, BrokenCheckpoint, r"ggml\.tokens"),
        ({"token_type": [1]}, BrokenCheckpoint, "token_type"),
        ({"eos_token_id": 10_000}, BrokenCheckpoint, "eos_token_id 10000"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_cannot_be_a_tokenizer_is_refused(changes: dict[str, object], error: type[Exception], message: str) -> None:
    metadata = BASE | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}

    def read() -> tuple[int, ...]:
        loaded = GGUFTokenizer(metadata, Path("some.gguf"))
        loaded.to_json()
        return loaded.eos_token_ids

    with pytest.raises(error, match=r"^some\.gguf: .*" + message):
        read()
