"""Chat messages, checked and made plain for the template."""

from typing import Literal

from msgspec import Raw, Struct

from gateway.api.decoding import invalid
from gateway.api.errors import ApiError

MAX_MESSAGES = 2048


class ContentPart(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One part of a message's content. Parts of other kinds than text are known, to be refused by their type."""

    type: str
    text: str | None = None
    image_url: Raw = Raw()
    input_audio: Raw = Raw()
    file: Raw = Raw()
    refusal: Raw = Raw()


class Message(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A message as callers send it. Fields of type None are accepted only as null: clients echo answers back with them."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    tool_calls: None = None
    annotations: list[None] | None = None


def _text(content: str | list[ContentPart] | None, path: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        raise ApiError(f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter")
    if not content:
        raise invalid(path, "expected at least one part.")
    texts = []
    for place, part in enumerate(content):
        if part.type != "text":
            raise invalid(f"{path}[{place}].type", f"this model reads text only, got {part.type[:100]!r}.")
        if part.text is None:
            raise ApiError(
                f"Missing required parameter: '{path}[{place}].text'.", param=f"{path}[{place}].text", code="missing_required_parameter"
            )
        texts.append(part.text)
    return "".join(texts)


def plain_messages(messages: list[Message]) -> list[dict[str, str]]:
    """The messages as a chat template reads them: text parts joined, `developer` said as `system`. Raises ApiError naming the field."""
    if not messages:
        raise invalid("messages", "expected at least one message.")
    if len(messages) > MAX_MESSAGES:
        raise invalid("messages", f"at most {MAX_MESSAGES} messages are allowed, got {len(messages)}.")
    plain = []
    for place, message in enumerate(messages):
        text = _text(message.content, f"messages[{place}].content")
        one = {"role": "system" if message.role == "developer" else message.role, "content": text}
        if message.name is not None:
            one["name"] = message.name
        if message.tool_call_id is not None:
            if message.role != "tool":
                raise invalid(f"messages[{place}].tool_call_id", "only a message of the role 'tool' has one.")
            one["tool_call_id"] = message.tool_call_id
        plain.append(one)
    return plain
