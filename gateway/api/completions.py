"""POST /v1/completions"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway import generation
from gateway.api import answers, parameters
from gateway.api.connection import Connection
from gateway.api.decoding import decode, invalid, unsupported
from gateway.api.endpoint import fingerprint, read_body, served
from gateway.api.errors import ApiError
from gateway.api.feed import Feed
from gateway.api.logprobs import CompletionLogprobs, CompletionScribe, join
from gateway.api.parameters import AskedLimit, GenerationBody
from gateway.api.usage import Usage
from gateway.events import FinishCause, GenerationRequest, StopReason, TokenLogprob
from gateway.text import PromptRefused, Tokenizer
from inference.protocol.frames import ModelCard

ENDPOINT = "completions"
MAX_PROMPTS = 128
DEFAULT_MAX_TOKENS = 16
"""OpenAI's own for this endpoint."""


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    prompt: str | list[str | int | list[int]]
    """A text, texts, token ids, or lists of token ids; `_prompts` refuses mixtures."""
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    suffix: None = None


class AnswerChoice(Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishCause | None
    stop_reason: str | int | UnsetType = UNSET


class Answer(Struct, frozen=True, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: Usage
    system_fingerprint: str


_decoder = msgspec.json.Decoder(CompletionBody)
_encoder = msgspec.json.Encoder()
_json = _encoder.encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    tokens: list[int]
    text: str | None
    """As the caller wrote it; None for token ids."""


class CompletionShape:
    """How plain completions are written. What all chunks of a stream share is encoded once."""

    def __init__(
        self, connection: Connection, card: ModelCard, tokenizer: Tokenizer, body: CompletionBody, prompts: Sequence[Prompt]
    ) -> None:
        self._id = f"cmpl-{connection.internal_id}"
        self._created = int(time.time())
        self._card = card
        self._tokenizer = tokenizer
        self._per_prompt = body.choices
        self._prompts = prompts
        self._alternatives = body.logprobs
        self._echo = [self._prompt_text(prompt) if body.echo else "" for prompt in prompts]
        self._echo_scored = bool(body.echo) and body.logprobs is not None
        self._scribes: dict[int, CompletionScribe] = {}
        self._prompt_logprobs: dict[int, CompletionLogprobs] = {}
        self._head = b'data: {"id":%b,"object":"text_completion","created":%d,"model":%b,"system_fingerprint":%b,"choices":[' % (
            _json(self._id),
            self._created,
            _json(card.name),
            _json(fingerprint(card)),
        )
        self._tail = b'}],"usage":null}\n\n' if body.wants_usage else b"}]}\n\n"

    def _prompt_text(self, prompt: Prompt) -> str:
        # A character that the prompt leaves open comes with the new text.
        text = self._tokenizer.detokenizer()
        return prompt.text if prompt.text is not None else "".join(map(text.push, prompt.tokens))

    def _scribe(self, index: int) -> CompletionScribe:
        if index not in self._scribes:
            prompt = index // self._per_prompt
            self._scribes[index] = CompletionScribe(
                self._tokenizer, self._alternatives or 0, self._prompts[prompt].tokens, offset=len(self._echo[prompt])
            )
        return self._scribes[index]

    def _chunk(self, index: int, text: str, logprobs: CompletionLogprobs | None) -> bytes:
        return b'%b{"index":%d,"text":%b,"logprobs":%b,"finish_reason":null%b' % (
            self._head,
            index,
            _json(text),
            b"null" if logprobs is None else _json(logprobs),
            self._tail,
        )

    def opening(self) -> bytes:
        if self._echo_scored:
            return b""  # the prompt's text comes with its log-probabilities
        return b"".join(
            self._chunk(prompt * self._per_prompt + choice, echo, None)
            for prompt, echo in enumerate(self._echo)
            for choice in range(self._per_prompt)
            if echo
        )

    def prompt_scored(self, prompt: int, tokens: Sequence[TokenLogprob | None]) -> bytes:
        scribe = CompletionScribe(self._tokenizer, self._alternatives or 0, ())
        logprobs = scribe.write_prompt(self._prompts[prompt].tokens, tokens)
        self._prompt_logprobs[prompt] = logprobs
        first = prompt * self._per_prompt
        return b"".join(self._chunk(first + choice, self._echo[prompt], logprobs) for choice in range(self._per_prompt))

    def delta(self, index: int, text: str, logprobs: Sequence[TokenLogprob]) -> bytes:
        return self._chunk(index, text, None if self._alternatives is None else self._scribe(index).write(logprobs))

    def finish(self, index: int, cause: FinishCause, stop_reason: StopReason) -> bytes:
        reason = b"" if stop_reason is None else b',"stop_reason":' + _json(stop_reason)
        return b'%b{"index":%d,"text":"","logprobs":null,"finish_reason":"%b"%b%b' % (self._head, index, cause.encode(), reason, self._tail)

    def usage(self, usage: Usage) -> bytes:
        return b'%b],"usage":%b}\n\n' % (self._head, _json(usage))

    def _whole_logprobs(self, index: int, choice: answers.Choice) -> CompletionLogprobs | None:
        if self._alternatives is None:
            return None
        written = self._scribe(index).write(choice.logprobs)
        of_prompt = self._prompt_logprobs.get(index // self._per_prompt)
        return written if of_prompt is None else join([of_prompt, written])

    def whole(self, choices: Sequence[answers.Choice], usage: Usage) -> bytes:
        return _json(
            Answer(
                id=self._id,
                created=self._created,
                model=self._card.name,
                choices=[
                    AnswerChoice(
                        index=index,
                        text=self._echo[index // self._per_prompt] + "".join(choice.text),
                        logprobs=self._whole_logprobs(index, choice),
                        finish_reason=choice.cause,
                        stop_reason=UNSET if choice.stop_reason is None else choice.stop_reason,
                    )
                    for index, choice in enumerate(choices)
                ],
                usage=usage,
                system_fingerprint=fingerprint(self._card),
            )
        )


async def _prompts(body: CompletionBody, card: ModelCard, tokenizer: Tokenizer) -> list[Prompt]:
    """The prompts, tokenised and checked."""
    given = body.prompt
    if isinstance(given, str):
        return [await _text_prompt(given, "prompt", tokenizer)]
    if not given:
        raise invalid("prompt", "expected a text, texts, token ids or lists of token ids; got an empty list.")
    kinds = {type(part) for part in given}
    if len(kinds) > 1:
        raise invalid("prompt", "expected all texts, all token ids or all lists of token ids, got a mixture.")
    if kinds == {int}:
        return [_token_prompt([part for part in given if isinstance(part, int)], "prompt", card)]
    if len(given) > MAX_PROMPTS:
        raise invalid("prompt", f"at most {MAX_PROMPTS} prompts are allowed, got {len(given)}.")
    prompts = []
    for place, part in enumerate(given):
        name = f"prompt[{place}]"
        prompts.append(_token_prompt(part, name, card) if isinstance(part, list) else await _text_prompt(str(part), name, tokenizer))
    return prompts


async def _text_prompt(text: str, name: str, tokenizer: Tokenizer) -> Prompt:
    try:
        tokens = await tokenizer.encode(text)
    except PromptRefused as error:
        raise ApiError(str(error), param=name, code=error.code) from error
    if not tokens:
        raise invalid(name, "expected at least one token.")
    return Prompt(tokens=tokens, text=text)


def _token_prompt(tokens: list[int], name: str, card: ModelCard) -> Prompt:
    if not tokens:
        raise invalid(name, "expected at least one token.")
    parameters.check_token_ids(tokens, name, card)
    return Prompt(tokens=tokens, text=None)


def _check(body: CompletionBody) -> None:
    parameters.check_general(body)
    parameters.logprob_count("logprobs", body.logprobs)
    if body.best_of is not None and body.best_of != body.choices:
        raise unsupported("best_of")


async def completions(connection: Connection, service: generation.Generations) -> None:
    """Answer one call."""
    body = decode(_decoder, await read_body(connection, service))
    card = served(service, body.model)
    _check(body)
    stop = parameters.stop_strings(body)
    tokenizer = service.tokenizer(card.name)
    prompts = await _prompts(body, card, tokenizer)
    echo_scored = bool(body.echo) and body.logprobs is not None
    requests = []
    for place, prompt in enumerate(prompts):
        name = "prompt" if len(prompts) == 1 else f"prompt[{place}]"
        max_tokens = parameters.token_limit(
            card,
            len(prompt.tokens),
            AskedLimit(tokens=body.max_tokens, param="max_tokens", prompt_param=name, default=DEFAULT_MAX_TOKENS),
        )
        requests.append(
            GenerationRequest(
                digest=connection.digest(),
                request_id=connection.internal_id if len(prompts) == 1 else f"{connection.internal_id}-{place}",
                endpoint=ENDPOINT,
                model=card.name,
                prompt=prompt.tokens,
                sampling=parameters.sampling(
                    body,
                    card,
                    max_tokens=max_tokens,
                    max_choices=service.max_choices(card.name),
                    logprobs=body.logprobs,
                    prompt_logprobs=body.logprobs if echo_scored else None,
                ),
                stop=stop,
                include_stop=bool(body.include_stop_str_in_output),
                echo=echo_scored,
            )
        )
    shape = CompletionShape(connection, card, tokenizer, body, prompts)
    async with await Feed.start(connection, service, requests) as feed:
        if body.stream:
            await answers.stream(connection, feed, shape, per_prompt=body.choices, include_usage=body.wants_usage)
        else:
            await answers.whole(connection, feed, shape, count=body.choices * len(prompts), per_prompt=body.choices)
