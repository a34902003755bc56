"""What chat and plain completions have in common: the fields of a body, and their checks."""

from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from gateway.api.decoding import invalid, unsupported
from gateway.api.errors import context_length_exceeded
from gateway.text.stop import MAX_STOP_LENGTH
from inference.protocol.frames import ModelCard
from inference.protocol.sampling import Sampling

MAX_STOPS = 4
MAX_LOGIT_BIASES = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGPROBS = 20
MAX_CHOICES = 128
_SEEDS = range(-(2**63), 2**63)


class StreamOptions(Struct, forbid_unknown_fields=True, frozen=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class ResponseFormat(Struct, forbid_unknown_fields=True, frozen=True):
    type: Literal["text"]


class GenerationBody(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Fields of both endpoints. `None` as a type: known, and refused with its reason unless null."""

    model: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None

    # OpenAI keeps these for itself: they change no answer.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default"] | None = None

    prompt_cache_retention: None = None
    chat_template: None = None
    chat_template_kwargs: None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def choices(self) -> int:
        return 1 if self.n is None else self.n


def _within(name: str, value: float | None, default: float, low: float, high: float) -> float:
    if value is None:
        return default
    if not low <= value <= high:
        raise invalid(name, f"expected a number from {low:g} to {high:g}, got {value:g}.")
    return value


def _whole(name: str, value: int | None, default: int, low: int, high: int) -> int:
    if value is None:
        return default
    if not low <= value <= high:
        raise invalid(name, f"expected a whole number from {low} to {high}, got {_short(value)}.")
    return value


def _short(value: int) -> str:
    return str(value) if abs(value) < 10**20 else "a number far out of range"


def check_general(body: GenerationBody) -> None:
    """Fields that can be judged without a model. Raises ApiError."""
    if body.stream_options is not None:
        if not body.stream:
            raise invalid("stream_options", "it is only allowed when 'stream' is true.")
        if body.stream_options.continuous_usage_stats:
            raise unsupported("stream_options.continuous_usage_stats")
        if body.stream_options.include_obfuscation:
            raise unsupported("stream_options.include_obfuscation")
    if body.store:
        raise invalid("store", "completions aren't stored here; leave it out or set it to false.")
    if body.skip_special_tokens is False:
        raise invalid("skip_special_tokens", "control tokens are never part of the text.")


def stop_strings(body: GenerationBody) -> tuple[str, ...]:
    """The stop strings, checked."""
    stop = body.stop
    if stop is None:
        return ()
    listed = isinstance(stop, list)
    stops = tuple(stop) if isinstance(stop, list) else (stop,)
    if len(stops) > MAX_STOPS:
        raise invalid("stop", f"at most {MAX_STOPS} stop strings are allowed, got {len(stops)}.")
    for place, text in enumerate(stops):
        name = f"stop[{place}]" if listed else "stop"
        if not text:
            raise invalid(name, "a stop string can't be empty.")
        if len(text) > MAX_STOP_LENGTH:
            raise invalid(name, f"a stop string has at most {MAX_STOP_LENGTH} characters, got {len(text)}.")
    return stops


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedLimit:
    """The output tokens that a body asks for, and the names of the fields for messages."""

    tokens: int | None
    param: str
    prompt_param: str
    default: int | None = None
    """What not asking means; None: all that fits."""


def token_limit(card: ModelCard, prompt_tokens: int, asked: AskedLimit) -> int:
    """How many tokens each choice may have. Raises ApiError with the figures."""
    fits = card.max_prompt_tokens + 1
    if prompt_tokens > card.max_prompt_tokens:
        raise context_length_exceeded(
            f"This model's maximum context length is {fits} tokens. Your prompt has {prompt_tokens} tokens, and an answer needs room.",
            asked.prompt_param,
        )
    room = fits - prompt_tokens
    if asked.tokens is None:
        return room if asked.default is None else min(asked.default, room)
    if asked.tokens < 1:
        raise invalid(asked.param, f"expected a whole number of at least 1, got {_short(asked.tokens)}.")
    if asked.tokens > room:
        raise context_length_exceeded(
            f"This model's maximum context length is {fits} tokens. You requested {_short(prompt_tokens + asked.tokens)} tokens "
            f"({prompt_tokens} in the prompt, {_short(asked.tokens)} for the completion).",
            asked.param,
        )
    return asked.tokens


def check_token_ids(tokens: list[int], name: str, card: ModelCard) -> None:
    """All ids within the model's vocabulary."""
    if tokens and not (min(tokens) >= 0 and max(tokens) < card.vocab_size):
        place = next(place for place, token in enumerate(tokens) if not 0 <= token < card.vocab_size)
        raise invalid(f"{name}[{place}]", f"expected a token id from 0 to {card.vocab_size - 1}, got {_short(tokens[place])}.")


def _logit_bias(body: GenerationBody, card: ModelCard) -> dict[int, float]:
    biases = body.logit_bias
    if not biases:
        return {}
    if len(biases) > MAX_LOGIT_BIASES:
        raise invalid("logit_bias", f"at most {MAX_LOGIT_BIASES} tokens can be biased, got {len(biases)}.")
    for token, bias in biases.items():
        if not 0 <= token < card.vocab_size:
            raise invalid("logit_bias", f"expected token ids from 0 to {card.vocab_size - 1}, got {_short(token)}.")
        if not -100 <= bias <= 100:
            raise invalid("logit_bias", f"expected numbers from -100 to 100, got {bias:g} for token {token}.")
    return biases


def choice_count(body: GenerationBody, max_choices: int) -> int:
    """`n`, checked against what the worker takes."""
    return _whole("n", body.n, 1, 1, min(max_choices, MAX_CHOICES))


def sampling(
    body: GenerationBody,
    card: ModelCard,
    *,
    max_tokens: int,
    max_choices: int,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> Sampling:
    """The engine's sampling parameters. Raises ApiError naming the field that is out of range."""
    top_p = _within("top_p", body.top_p, 1.0, 0.0, 1.0)
    # -1 is another way to say "all tokens"; top_p 0 leaves the most likely token alone, which is what top_k 1 says.
    top_k = 1 if top_p == 0 else max(_whole("top_k", body.top_k, 0, -1, card.vocab_size), 0)
    min_tokens = _whole("min_tokens", body.min_tokens, 0, 0, max_tokens)
    stop_token_ids = body.stop_token_ids or []
    if len(stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise invalid("stop_token_ids", f"at most {MAX_STOP_TOKEN_IDS} are allowed, got {len(stop_token_ids)}.")
    check_token_ids(stop_token_ids, "stop_token_ids", card)
    if body.seed is not None and body.seed not in _SEEDS:
        raise invalid("seed", "expected a whole number of 64 bits.")
    return Sampling(
        max_tokens=max_tokens,
        temperature=_within("temperature", body.temperature, 1.0, 0.0, 2.0),
        top_k=top_k,
        top_p=top_p if top_p > 0 else 1.0,
        min_p=_within("min_p", body.min_p, 0.0, 0.0, 1.0),
        seed=None if body.seed is None else body.seed % 2**63,
        presence_penalty=_within("presence_penalty", body.presence_penalty, 0.0, -2.0, 2.0),
        frequency_penalty=_within("frequency_penalty", body.frequency_penalty, 0.0, -2.0, 2.0),
        repetition_penalty=_within("repetition_penalty", body.repetition_penalty, 1.0, 0.01, 10.0),
        logit_bias=_logit_bias(body, card),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        min_tokens=min_tokens,
        ignore_eos=bool(body.ignore_eos),
        stop_token_ids=tuple(stop_token_ids),
        n=choice_count(body, max_choices),
    )


def logprob_count(name: str, value: int | None) -> int | None:
    """How many alternatives to report, checked."""
    return None if value is None else _whole(name, value, 0, 0, MAX_LOGPROBS)
