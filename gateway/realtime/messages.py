"""What a client says on the socket, and its checks. Whatever isn't understood is refused by name, as on the REST API."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, json

from gateway.api.decoding import decode, invalid

MAX_ITEMS = 2048
MAX_METADATA = 16

ResponseId = Annotated[str, Meta(max_length=64)]
Short = Annotated[str, Meta(max_length=64)]
Metadata = dict[Short, Annotated[str, Meta(max_length=512)]]


class TextPart(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[None] | None = None
    logprobs: list[None] | None = None


class Item(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A message. An assistant's may be an output item as it was received, so that a conversation can be sent on."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    type: Literal["message"] = "message"
    id: str | None = None
    status: str | None = None
    phase: None = None


class Format(Struct, forbid_unknown_fields=True, frozen=True):
    type: Literal["text"]


class Text(Struct, forbid_unknown_fields=True, frozen=True):
    format: Format | None = None
    verbosity: None = None


class Create(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, tag_field="type", tag="response.create"):
    """Start a response. Fields of type None are known, and refused unless null."""

    model: str
    input: str | list[Item]
    instructions: str | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    metadata: Metadata | None = None
    text: Text | None = None
    store: bool | None = None
    """No response outlives its minute here, whatever this says."""
    stream: Literal[True] | None = None
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    tools: Annotated[list[None], Meta(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    service_tier: Literal["auto", "default"] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    include: Annotated[list[None], Meta(max_length=0)] | None = None

    conversation: None = None
    previous_response_id: None = None
    prompt: None = None
    reasoning: None = None
    context_management: None = None
    max_tool_calls: None = None
    top_logprobs: None = None
    stream_options: None = None

    def messages(self) -> list[dict[str, str]]:
        """The conversation as a chat template reads it. Raises ApiError naming the field."""
        plain = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        if isinstance(self.input, str):
            return [*plain, {"role": "user", "content": self.input}]
        if not 1 <= len(self.input) <= MAX_ITEMS:
            raise invalid("input", f"expected 1 to {MAX_ITEMS} messages, got {len(self.input)}.")
        for item in self.input:
            text = item.content if isinstance(item.content, str) else "".join(part.text for part in item.content)
            plain.append({"role": "system" if item.role == "developer" else item.role, "content": text})
        return plain


class CancelResponse(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, tag_field="type", tag="response.cancel"):
    response_id: ResponseId


class Resume(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, tag_field="type", tag="response.resume"):
    response_id: ResponseId
    starting_after: Annotated[int, Meta(ge=-1, le=2**53)] = -1
    """The sequence number of the last event that was received; -1 for all from the beginning."""


ClientMessage = Create | CancelResponse | Resume

_decoder = json.Decoder(ClientMessage)


def read(text: str) -> ClientMessage:
    """The message. Raises ApiError naming the field that is wrong."""
    message = decode(_decoder, text.encode(errors="surrogatepass"))
    if isinstance(message, Create) and message.metadata is not None and len(message.metadata) > MAX_METADATA:
        raise invalid("metadata", f"at most {MAX_METADATA} entries are allowed, got {len(message.metadata)}.")
    return message
