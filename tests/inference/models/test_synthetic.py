"""The synthetic model says its text, byte by byte, through a tokenizer and a template that clients can use."""

import jinja2
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from inference.batch import Batch
from inference.errors import ConfigError
from inference.models.synthetic import CHAT_TEMPLATE, TURN_END, TURN_START, VOCAB_SIZE, Script, SyntheticModel, tokenizer_json

TOKENIZER = Tokenizer.from_str(tokenizer_json())


@given(text=st.text())
def test_tokens_are_bytes(text: str) -> None:
    ids = TOKENIZER.encode(text).ids
    if not any(special in text for special in ("<|im_", "<|endoftext|>")):
        assert ids == list(text.encode())
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_turns_of_the_template_are_single_tokens() -> None:
    text = jinja2.Template(CHAT_TEMPLATE).render(messages=[{"role": "user", "content": "hi"}], add_generation_prompt=True)
    ids = TOKENIZER.encode(text).ids
    assert ids == [TURN_START, *b"user\nhi", TURN_END, ord("\n"), TURN_START, *b"assistant\n"]
    assert TOKENIZER.get_vocab_size() == VOCAB_SIZE


def test_logits_are_certain_of_what_follows_each_wanted_position() -> None:
    model = SyntheticModel(Script.parse("synthetic:text=abc,eos=5,context=16"))
    positions = torch.tensor([0, 1, 2, 3, 4, 15])
    batch = Batch(
        tokens=torch.zeros(6, dtype=torch.int64),
        positions=positions,
        slots=positions,
        query_starts=torch.tensor([0, 6], dtype=torch.int32),
        context_lengths=torch.tensor([6], dtype=torch.int32),
        block_tables=torch.zeros((1, 1), dtype=torch.int32),
        logit_rows=torch.tensor([1, 3, 4, 5]),
    )
    logits = model.forward(batch, ())
    assert logits.shape == (4, VOCAB_SIZE)
    assert logits.argmax(1).tolist() == [ord("c"), ord("b"), TURN_END, ord("b")]
    assert (logits.softmax(1).amax(1) > 0.999).all()


def test_parts_of_its_name_have_defaults() -> None:
    assert Script.parse("synthetic") == Script()
    assert Script.parse("synthetic:name=parrot,rate=2.5,context=64,eos=9,text=hi there ") == Script(
        name="parrot", rate=2.5, context=64, eos=9, text="hi there "
    )


@pytest.mark.parametrize("name", ["speed=9", "rate=fast", "rate=-1", "context=1", "text=", "eos=-3", "rate"])
def test_wrong_part_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"MODEL=synthetic:{name}"):
        Script.parse(f"synthetic:{name}")
