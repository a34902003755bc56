"""The x-ratelimit-* headers."""

from gateway.admission.outcomes import LimitState
from gateway.api.errors import Header


def headers(state: LimitState) -> list[Header]:
    """What the key's own scope has left; no header where it sets no limit."""
    named = (
        (b"requests", state.limit_requests, state.remaining_requests, state.reset_requests_s),
        (b"tokens", state.limit_tokens, state.remaining_tokens, state.reset_tokens_s),
    )
    lines: list[Header] = []
    for name, limit, remaining, reset_s in named:
        if limit is not None:
            lines.append((b"x-ratelimit-limit-" + name, b"%d" % limit))
        if remaining is not None:
            lines.append((b"x-ratelimit-remaining-" + name, b"%d" % max(remaining, 0)))
        if reset_s is not None:
            lines.append((b"x-ratelimit-reset-" + name, duration(reset_s).encode()))
    return lines


def duration(seconds: float) -> str:
    """As OpenAI writes durations: 0s, 12ms, 1.5s, 6m0s, 1h0m3s."""
    milliseconds = max(0, round(seconds * 1000))
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    in_seconds = f"{rest / 1000:g}s"
    if not minutes:
        return in_seconds
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{in_seconds}" if hours else f"{minutes}m{in_seconds}"
