"""Token counts as OpenAI reports them."""

from msgspec import Struct

from inference.protocol.usage import Counters


class PromptTokensDetails(Struct, frozen=True):
    cached_tokens: int


class Usage(Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def usage_of(counters: list[Counters]) -> Usage:
    """The sum over a request's generations. Completion tokens are the billed ones: what was computed past a cut isn't the caller's."""
    prompt = sum(one.prompt_tokens for one in counters)
    completion = sum(one.billed_tokens for one in counters)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(one.cached_tokens for one in counters)),
    )
