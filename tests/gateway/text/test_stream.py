from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.events import Delta, TokenLogprob
from gateway.text import TextStream, Tokenizer
from tests.gateway.text.cards import byte_tokenizer_json, card

BYTES = Tokenizer(card(byte_tokenizer_json()))
MANY = st.lists(st.sampled_from([*b"stopENDht e", *range(256, BYTES.vocab_size), *"é☺".encode()]), max_size=25)
STOPS = st.lists(st.sampled_from(["stop", "sto", "op", "END", "é", "tops", "e t", "�", "s"]), max_size=3)


def run(
    tokens: Sequence[int], stop: Sequence[str] = (), *, takes: Sequence[bool] = (), include_stop: bool = False, min_tokens: int = 0
) -> tuple[list[Delta], TextStream]:
    stream = TextStream(BYTES, stop=stop, include_stop=include_stop, min_tokens=min_tokens)
    deltas: list[Delta | None] = []
    for place, token in enumerate(tokens):
        stream.push(token, logprob=-float(place), top=[(token, -float(place))])
        if stream.cut is not None:
            break
        if place < len(takes) and takes[place]:
            deltas.append(stream.take())
    deltas.append(stream.finish())
    return [delta for delta in deltas if delta is not None], stream


def joined(deltas: list[Delta]) -> tuple[str, list[int], list[TokenLogprob]]:
    return (
        "".join(delta.text for delta in deltas),
        [token for delta in deltas for token in delta.tokens],
        [logprob for delta in deltas for logprob in delta.logprobs],
    )


def text_by_definition(tokens: Sequence[int], stop: Sequence[str], include_stop: bool) -> tuple[str, int | None]:
    """The text, and how many tokens it took to complete a stop string."""
    whole = BYTES.decode(tokens)
    ends = [(at + len(s), at) for s in stop for at in range(len(whole)) if whole.startswith(s, at)]
    if not ends:
        return whole, None
    end, start = min(ends)
    needed = next((n for n in range(1, len(tokens) + 1) if len(certain(tokens[:n])) >= end), len(tokens))
    return whole[: end if include_stop else start], needed


def certain(tokens: Sequence[int]) -> str:
    detokenizer = BYTES.detokenizer()
    return "".join(detokenizer.push(token) for token in tokens)


@settings(max_examples=500, deadline=None)
@given(MANY, STOPS, st.lists(st.booleans(), max_size=25), st.booleans())
def test_stream_is_the_whole_for_every_splitting(tokens: list[int], stop: list[str], takes: list[bool], include_stop: bool) -> None:
    streamed, stream = run(tokens, stop, takes=takes, include_stop=include_stop)
    whole, at_once = run(tokens, stop, include_stop=include_stop)
    assert joined(streamed) == joined(whole)
    assert stream.cut == at_once.cut
    text, needed = text_by_definition(tokens, stop, include_stop)
    assert joined(streamed)[0] == text
    assert (None if stream.cut is None else stream.cut.tokens) == needed


@settings(max_examples=300, deadline=None)
@given(MANY, STOPS)
def test_log_probabilities_stand_for_the_tokens_of_the_text(tokens: list[int], stop: list[str]) -> None:
    deltas, stream = run(tokens, stop)
    text, kept, logprobs = joined(deltas)
    assert [logprob.token for logprob in logprobs] == kept == tokens[: len(kept)]
    if stream.cut is None:
        assert kept == tokens
    elif kept:
        assert len(certain(tokens[: len(kept) - 1])) < len(text), "the last token kept begins before the cut"
        assert len(certain(tokens[: len(kept)])) >= len(text), "the first one dropped begins at or behind it"


@settings(max_examples=300, deadline=None)
@given(MANY, STOPS)
def test_nothing_taken_is_part_of_a_stop_string(tokens: list[int], stop: list[str]) -> None:
    deltas, stream = run(tokens, stop, takes=[True] * len(tokens))
    if stream.cut is None:
        assert "".join(delta.text for delta in deltas) == BYTES.decode(tokens)
    assert not any(s in joined(deltas)[0] for s in stop)


def test_stop_inside_a_token_cuts_there_and_counts_the_token() -> None:
    (word,) = BYTES.encode_now("th")
    deltas, stream = run([*b"a", word, *b"b"], ["h"])
    assert joined(deltas)[:2] == ("at", [*b"a", word])
    assert stream.cut is not None
    assert stream.cut.tokens == 2


def test_prefix_of_a_stop_string_is_held_back_and_flushed_at_the_end() -> None:
    deltas, _ = run(b"aEN", ["END"], takes=[True] * 3)
    assert [(delta.text, delta.tokens, delta.next_index) for delta in deltas] == [("a", (97,), 1), ("EN", (69, 78), 3)]


def test_stop_string_is_kept_when_asked_for() -> None:
    deltas, _ = run(b"aENDb", ["END"], include_stop=True)
    assert joined(deltas)[:2] == ("aEND", list(b"aEND"))


def test_stop_strings_wait_for_min_tokens() -> None:
    deltas, stream = run(b"sssXs", ["s"], min_tokens=3)
    assert joined(deltas)[0] == "sssX"
    assert stream.cut is not None
    assert stream.cut.tokens == 5


def test_tokens_after_a_cut_are_ignored() -> None:
    stream = TextStream(BYTES, stop=["b"])
    for token in b"abc":
        stream.push(token)
    assert stream.next_index == 2
    assert stream.finish() == Delta(choice=0, text="a", tokens=(97,), next_index=2)
    assert stream.finish() is None


def test_replacement_character_that_only_the_end_makes_certain_can_be_a_stop_string() -> None:
    deltas, stream = run([97, 0xE2], ["�"])
    assert joined(deltas)[:2] == ("a", [97])
    assert stream.cut is not None
    assert stream.cut.tokens == 2


def test_log_probabilities_carry_bytes_and_alternatives() -> None:
    stream = TextStream(BYTES)
    stream.push(0xE2, -0.5, [(0xE2, -0.5), (256, -1.0)])
    delta = stream.finish()
    assert delta is not None
    (logprob,) = delta.logprobs
    assert logprob == TokenLogprob(
        token=0xE2, text="�", raw=b"\xe2", logprob=-0.5, top=((0xE2, "�", b"\xe2", -0.5), (256, "<|end|>", b"<|end|>", -1.0))
    )


@pytest.mark.parametrize("stop", [[], ["x"]])
def test_token_without_text_leaves_with_the_text_behind_it(stop: list[str]) -> None:
    deltas, _ = run([256, 97, 256], stop, takes=[True] * 3)
    assert [(delta.text, delta.tokens) for delta in deltas] == [("a", (256, 97)), ("", (256,))]
