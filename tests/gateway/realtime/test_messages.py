"""What a client may say, and what it is told when it says anything else."""

import pytest
from msgspec import json

from gateway.api.errors import ApiError
from gateway.realtime.messages import CancelResponse, Create, Resume, read


def create(**fields: object) -> str:
    return json.encode({"type": "response.create", "model": "m", "input": "hi", **fields}).decode()


def test_a_string_is_one_users_message():
    message = read(create(instructions="Be brief."))
    assert isinstance(message, Create)
    assert message.messages() == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]


def test_messages_of_all_kinds_are_made_plain():
    message = read(
        create(
            input=[
                {"role": "developer", "content": "Rhyme."},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
                {
                    "type": "message",
                    "id": "msg_1",
                    "status": "completed",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []}],
                },
            ]
        )
    )
    assert isinstance(message, Create)
    assert message.messages() == [
        {"role": "system", "content": "Rhyme."},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "c"},
    ]


def test_fields_that_ask_for_nothing_are_accepted():
    read(create(tools=[], include=[], stream=True, store=False, truncation="disabled", text={"format": {"type": "text"}}, reasoning=None))


def test_cancel_and_resume():
    assert read('{"type": "response.cancel", "response_id": "r"}') == CancelResponse(response_id="r")
    assert read('{"type": "response.resume", "response_id": "r", "starting_after": 4}') == Resume(response_id="r", starting_after=4)


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("", None),
        ("{", None),
        ("[]", None),
        ("7", None),
        ('"\\ud800"', None),
        ("\ud800", None),
        ("[" * 5000, None),
        ("{}", "type"),
        ('{"type": "response.explode"}', "type"),
        ('{"type": "response.cancel"}', "response_id"),
        ('{"type": "response.cancel", "response_id": 7}', "response_id"),
        ('{"type": "response.resume", "response_id": "r", "starting_after": "x"}', "starting_after"),
        ('{"type": "response.resume", "response_id": "r", "starting_after": -2}', "starting_after"),
        ('{"type": "response.create", "model": "m"}', "input"),
        ('{"type": "response.create", "input": "m"}', "model"),
        (create(input=7), "input"),
        (create(input=[{"role": "tool", "content": "x"}]), "input[0].role"),
        (create(input=[{"role": "user", "content": [{"type": "input_image", "text": "x"}]}]), "input[0].content[0].type"),
        (create(temperature=2.5), "temperature"),
        (create(temperature="hot"), "temperature"),
        (create(top_p=0), "top_p"),
        (create(max_output_tokens=0), "max_output_tokens"),
        (create(max_output_tokens=1.5), "max_output_tokens"),
        (create(metadata={"a": 7}), "metadata"),
        (create(metadata={str(n): "x" for n in range(17)}), "metadata"),
        (create(tools=[{"type": "function"}]), "tools"),
        (create(previous_response_id="r"), "previous_response_id"),
        (create(background=True), "background"),
        (create(stream=False), "stream"),
        (create(cache_domain="x"), "cache_domain"),
        (create(text={"format": {"type": "json_object"}}), "text.format.type"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(text: str, param: str | None):
    with pytest.raises(ApiError) as refusal:
        read(text)
    assert refusal.value.status == 400
    told = refusal.value.object.param
    assert told is None if param is None else (told or "").startswith(param)


def test_a_conversation_needs_a_message():
    message = read(create(input=[]))
    assert isinstance(message, Create)
    with pytest.raises(ApiError, match="input"):
        message.messages()
