"""What is checked of a submit before anything changes: all that could hurt the engine or other requests."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

import numpy as np

from inference.config import EngineConfig
from inference.errors import RequestRejected
from inference.protocol.frames import Submit
from inference.protocol.sampling import Sampling
from inference.request import Tokens


def _invalid(param: str, message: str) -> RequestRejected:
    return RequestRejected("invalid", message, param=param)


def check_prompt(prompt: list[int], vocab: int) -> Tokens:
    """The prompt as an array. Raises RequestRejected."""
    if not prompt:
        raise _invalid("prompt", "the prompt has no tokens")
    try:
        tokens = np.array(prompt, dtype=np.int64)
    except (OverflowError, TypeError, ValueError):
        raise _invalid("prompt", f"prompt token ids must be integers from 0 to {vocab - 1}") from None
    outside = np.flatnonzero((tokens < 0) | (tokens >= vocab))
    if len(outside):
        at = int(outside[0])
        raise _invalid("prompt", f"prompt token {prompt[at]} at position {at} is outside the vocabulary of {vocab}")
    return tokens.astype(np.int32)


def check_submit(submit: Submit, config: EngineConfig, vocab: int) -> None:
    """Ranges of everything but the prompt. Raises RequestRejected with the field named."""
    sampling = submit.sampling
    if not isfinite(submit.weight) or submit.weight <= 0:
        raise _invalid("weight", f"weight must be above 0, not {submit.weight}")
    if submit.tier < 0:
        raise _invalid("tier", f"tier must not be negative, not {submit.tier}")
    if submit.allowance < 0:
        raise _invalid("allowance", f"allowance must not be negative, not {submit.allowance}")
    if not isfinite(submit.cache_ttl_s) or submit.cache_ttl_s < 0:
        raise _invalid("cache_ttl_s", f"cache_ttl_s must not be negative, not {submit.cache_ttl_s}")
    if not 1 <= sampling.n <= config.max_choices:
        raise _invalid("n", f"n must lie between 1 and {config.max_choices}, not {sampling.n}")
    if sampling.max_tokens < 1:
        raise _invalid("max_tokens", f"max_tokens must be at least 1, not {sampling.max_tokens}")
    if not 0 <= sampling.min_tokens <= sampling.max_tokens:
        raise _invalid("min_tokens", f"min_tokens must lie between 0 and max_tokens ({sampling.max_tokens}), not {sampling.min_tokens}")
    _check_numbers(sampling)
    for param, asked in (("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)):
        most = min(config.max_logprobs, vocab)
        if asked is not None and not 0 <= asked <= most:
            raise _invalid(param, f"{param} must lie between 0 and {most}, not {asked}")
    _check_ids("logit_bias", sampling.logit_bias, vocab)
    _check_ids("stop_token_ids", sampling.stop_token_ids, vocab)


def _check_numbers(sampling: Sampling) -> None:
    """Written so that what isn't a number is refused too."""
    if not 0 <= sampling.temperature < float("inf"):
        raise _invalid("temperature", f"temperature must not be negative, not {sampling.temperature}")
    if sampling.top_k < 0:
        raise _invalid("top_k", f"top_k must not be negative, not {sampling.top_k}")
    if not 0 < sampling.top_p <= 1:
        raise _invalid("top_p", f"top_p must lie above 0 and be at most 1, not {sampling.top_p}")
    if not 0 <= sampling.min_p <= 1:
        raise _invalid("min_p", f"min_p must lie between 0 and 1, not {sampling.min_p}")
    if not 0 < sampling.repetition_penalty < float("inf"):
        raise _invalid("repetition_penalty", f"repetition_penalty must be above 0, not {sampling.repetition_penalty}")
    for param in ("presence_penalty", "frequency_penalty"):
        if not isfinite(getattr(sampling, param)):
            raise _invalid(param, f"{param} must be a number, not {getattr(sampling, param)}")
    for token, bias in sampling.logit_bias.items():
        if not isfinite(bias):
            raise _invalid("logit_bias", f"the bias of token {token} must be a number, not {bias}")


def _check_ids(param: str, ids: Iterable[int], vocab: int) -> None:
    for token in ids:
        if not 0 <= token < vocab:
            raise _invalid(param, f"token id {token} is outside the vocabulary of {vocab}")


def check_fits(prompt: int, max_tokens: int, *, context_length: int, blocks: int, block_size: int) -> int:
    """The length at which a choice ends. Raises RequestRejected for what can never fit, saying by how much to shorten it."""
    if prompt >= context_length:
        over = prompt - context_length + 1
        raise RequestRejected(
            "cannot_fit",
            f"the prompt has {prompt} tokens, the model's context {context_length}, of which one must be left: shorten by {over} tokens",
            param="prompt",
        )
    limit = min(prompt + max_tokens, context_length)
    needs, holds = -(-(limit - 1) // block_size), blocks * block_size  # the last token is never computed
    if needs <= blocks:
        return limit
    over = limit - 1 - holds
    raise RequestRejected(
        "cannot_fit",
        f"{prompt} prompt tokens and up to {limit - prompt} generated ones need {needs} cache blocks of {block_size} tokens, "
        f"the worker has {blocks}: shorten by {over} tokens",
        param="prompt" if prompt > holds else "max_tokens",
    )
