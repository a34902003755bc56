import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.text import Tokenizer
from gateway.text.detokenizer import MAX_PENDING_BYTES
from tests.gateway.text.cards import byte_tokenizer_json, card, sentencepiece_tokenizer_json

BYTES = Tokenizer(card(byte_tokenizer_json()))
PIECES = Tokenizer(card(sentencepiece_tokenizer_json()))
LIBRARY = tokenizers.Tokenizer.from_str(byte_tokenizer_json())

byte_tokens = st.lists(st.integers(0, BYTES.vocab_size - 1), max_size=40)
text_tokens = st.text(alphabet=st.sampled_from("aé☺�🌍 "), max_size=15).map(lambda text: list(text.encode()))


def streamed(tokenizer: Tokenizer, tokens: list[int], prompt: list[int] | None = None) -> list[str]:
    detokenizer = tokenizer.detokenizer(prompt or [])
    return [detokenizer.push(token) for token in tokens] + [detokenizer.finish()]


@settings(max_examples=300, deadline=None)
@given(byte_tokens | text_tokens)
def test_pieces_joined_are_the_whole_and_the_librarys_text(tokens: list[int]) -> None:
    assert "".join(streamed(BYTES, tokens)) == BYTES.decode(tokens) == LIBRARY.decode(tokens, skip_special_tokens=True)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, PIECES.vocab_size - 1), max_size=30))
def test_sentencepiece_stream_is_the_whole(tokens: list[int]) -> None:
    assert "".join(streamed(PIECES, tokens)) == PIECES.decode(tokens)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.sampled_from("ab é☺🌍"), max_size=20))
def test_sentencepiece_text_of_generated_tokens_is_the_text(text: str) -> None:
    tokens = PIECES.encode_now("a" + text)
    assert PIECES.decode(tokens) == " a" + text


@settings(max_examples=200, deadline=None)
@given(text_tokens, byte_tokens | text_tokens, st.integers(0, 60))
def test_only_new_text_is_emitted_whatever_the_prompts_end(prompt: list[int], tokens: list[int], cut: int) -> None:
    prompt = prompt[: max(len(prompt) - cut % (len(prompt) + 1), 0)]
    known = (
        BYTES.decode(prompt).removesuffix("�") if bytes(prompt).decode(errors="ignore").encode() != bytes(prompt) else BYTES.decode(prompt)
    )
    if any(BYTES.text_bytes(token) for token in tokens):
        assert known + "".join(streamed(BYTES, tokens, prompt)) == BYTES.decode(prompt + tokens)
    else:
        assert "".join(streamed(BYTES, tokens, prompt)) == ""


@settings(max_examples=200, deadline=None)
@given(byte_tokens)
def test_at_most_three_bytes_are_held_back(tokens: list[int]) -> None:
    detokenizer = BYTES.detokenizer()
    emitted = ""
    for place, token in enumerate(tokens):
        emitted += detokenizer.push(token)
        held = BYTES.decode(tokens[: place + 1])[len(emitted) :]
        assert len(held) <= 1
        assert len(detokenizer._decoder.getstate()[0]) <= MAX_PENDING_BYTES


def test_a_models_own_replacement_character_is_emitted_at_once() -> None:
    detokenizer = BYTES.detokenizer()
    assert [detokenizer.push(byte) for byte in "�x".encode()] == ["", "", "�", "x"]


def test_prompt_that_ends_in_mid_character_gives_the_character_to_the_new_text() -> None:
    head, tail = list("ab☺".encode()[:-1]), list("☺".encode()[-1:])
    assert streamed(BYTES, [*tail, *b"!"], head) == ["☺", "!", ""]


def test_control_token_between_the_halves_of_a_character_changes_nothing() -> None:
    assert streamed(BYTES, list("é".encode()[1:]), [*"é".encode()[:1], 256]) == ["é", ""]


@pytest.mark.parametrize("token", [256, 257])
def test_control_tokens_have_no_text(token: int) -> None:
    assert BYTES.text_bytes(token) == b""
    assert BYTES.token_text(token) in ("<|end|>", "<|start|>")
