"""POST /v1/chat/completions"""

import time
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway import generation
from gateway.api import answers, parameters
from gateway.api.connection import Connection
from gateway.api.decoding import decode, invalid
from gateway.api.endpoint import fingerprint, read_body, served
from gateway.api.errors import ApiError
from gateway.api.feed import Feed
from gateway.api.logprobs import ChatLogprobs, chat_logprobs
from gateway.api.messages import Message, plain_messages
from gateway.api.parameters import AskedLimit, GenerationBody
from gateway.api.usage import Usage
from gateway.events import FinishCause, GenerationRequest, StopReason, TokenLogprob
from gateway.text import PromptRefused
from inference.protocol.frames import ModelCard

ENDPOINT = "chat.completions"


class ChatBody(GenerationBody, frozen=True, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tool_choice: Literal["none"] | None = None
    modalities: list[Literal["text"]] | None = None

    tools: None = None
    functions: None = None
    function_call: None = None
    parallel_tool_calls: None = None
    audio: None = None
    prediction: None = None
    reasoning_effort: None = None
    verbosity: None = None
    web_search_options: None = None


class AnswerMessage(Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str
    refusal: None = None


class AnswerChoice(Struct, frozen=True, kw_only=True):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishCause | None
    stop_reason: str | int | UnsetType = UNSET


class Answer(Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: Usage
    system_fingerprint: str


_decoder = msgspec.json.Decoder(ChatBody)
_encoder = msgspec.json.Encoder()
_json = _encoder.encode


class ChatShape:
    """How chat completions are written. What all chunks of a stream share is encoded once."""

    def __init__(self, connection: Connection, card: ModelCard, body: ChatBody, *, top_logprobs: int | None) -> None:
        self._id = f"chatcmpl-{connection.internal_id}"
        self._created = int(time.time())
        self._card = card
        self._choices = body.choices
        self._top_logprobs = top_logprobs
        self._head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"system_fingerprint":%b,"choices":[' % (
            _json(self._id),
            self._created,
            _json(card.name),
            _json(fingerprint(card)),
        )
        self._tail = b'}],"usage":null}\n\n' if body.wants_usage else b"}]}\n\n"

    def opening(self) -> bytes:
        return b"".join(
            b'%b{"index":%d,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null%b'
            % (self._head, index, self._tail)
            for index in range(self._choices)
        )

    def prompt_scored(self, prompt: int, tokens: Sequence[TokenLogprob | None]) -> bytes:
        return b""  # chat has no place for them, and never asks

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        return None if self._top_logprobs is None else chat_logprobs(tokens, self._top_logprobs)

    def delta(self, index: int, text: str, logprobs: Sequence[TokenLogprob]) -> bytes:
        return b'%b{"index":%d,"delta":{"content":%b},"logprobs":%b,"finish_reason":null%b' % (
            self._head,
            index,
            _json(text),
            b"null" if self._top_logprobs is None else _json(self._logprobs(logprobs)),
            self._tail,
        )

    def finish(self, index: int, cause: FinishCause, stop_reason: StopReason) -> bytes:
        reason = b"" if stop_reason is None else b',"stop_reason":' + _json(stop_reason)
        return b'%b{"index":%d,"delta":{},"logprobs":null,"finish_reason":"%b"%b%b' % (
            self._head,
            index,
            cause.encode(),
            reason,
            self._tail,
        )

    def usage(self, usage: Usage) -> bytes:
        return b'%b],"usage":%b}\n\n' % (self._head, _json(usage))

    def whole(self, choices: Sequence[answers.Choice], usage: Usage) -> bytes:
        return _json(
            Answer(
                id=self._id,
                created=self._created,
                model=self._card.name,
                choices=[
                    AnswerChoice(
                        index=index,
                        message=AnswerMessage(content="".join(choice.text)),
                        logprobs=self._logprobs(choice.logprobs),
                        finish_reason=choice.cause,
                        stop_reason=UNSET if choice.stop_reason is None else choice.stop_reason,
                    )
                    for index, choice in enumerate(choices)
                ],
                usage=usage,
                system_fingerprint=fingerprint(self._card),
            )
        )


def _asked_limit(body: ChatBody) -> AskedLimit:
    if body.max_completion_tokens is None:
        return AskedLimit(tokens=body.max_tokens, param="max_tokens", prompt_param="messages")
    if body.max_tokens is not None and body.max_tokens != body.max_completion_tokens:
        raise invalid("max_tokens", "it differs from max_completion_tokens; send one of them.")
    return AskedLimit(tokens=body.max_completion_tokens, param="max_completion_tokens", prompt_param="messages")


def _top_logprobs(body: ChatBody) -> int | None:
    """Alternatives to report for each token; None for no log-probabilities at all."""
    if not body.logprobs:
        if body.top_logprobs is not None:
            raise invalid("top_logprobs", "it is only allowed when 'logprobs' is true.")
        return None
    return parameters.logprob_count("top_logprobs", body.top_logprobs or 0)


async def chat_completions(connection: Connection, service: generation.Generations) -> None:
    """Answer one call."""
    body = decode(_decoder, await read_body(connection, service))
    card = served(service, body.model)
    parameters.check_general(body)
    stop = parameters.stop_strings(body)
    top_logprobs = _top_logprobs(body)
    messages = plain_messages(body.messages)
    asked = _asked_limit(body)
    try:
        prompt = await service.tokenizer(card.name).encode_chat(messages)
    except PromptRefused as error:
        raise ApiError(str(error), param="messages", code=error.code) from error
    max_tokens = parameters.token_limit(card, len(prompt), asked)
    request = GenerationRequest(
        digest=connection.digest(),
        request_id=connection.internal_id,
        endpoint=ENDPOINT,
        model=card.name,
        prompt=prompt,
        sampling=parameters.sampling(body, card, max_tokens=max_tokens, max_choices=service.max_choices(card.name), logprobs=top_logprobs),
        stop=stop,
        include_stop=bool(body.include_stop_str_in_output),
    )
    shape = ChatShape(connection, card, body, top_logprobs=top_logprobs)
    async with await Feed.start(connection, service, [request]) as feed:
        if body.stream:
            await answers.stream(connection, feed, shape, per_prompt=body.choices, include_usage=body.wants_usage)
        else:
            await answers.whole(connection, feed, shape, count=body.choices, per_prompt=body.choices)
