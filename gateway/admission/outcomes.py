"""What admission asks and answers. Outcomes are values: a refusal is no exception."""

from dataclasses import dataclass
from typing import Literal

from inference.protocol.frames import Lease

RefusalCode = Literal[
    "invalid_api_key",  # unknown, revoked or expired: 401
    "suspended",  # tenant or project suspended: 403
    "model_not_allowed",  # 404, as for a model that doesn't exist
    "rate_limit_exceeded",  # requests or tokens per minute: 429
    "concurrency_limit_exceeded",  # in flight, or the rest of a budget is held by what is in flight: 429
    "insufficient_quota",  # tokens per day or month: 429
    "request_too_large",  # can never fit the limit, however long one waits: 400
    "unavailable",  # admission is closed (Valkey lost or rebuilding): 503
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who a valid key belongs to, and what of it the gateway and the engine need. Carries no secret."""

    key_id: str
    project_id: str
    tenant_id: str
    share: str
    weight: float
    tier: int
    cache_domain: bytes | None
    allowed_models: frozenset[str]
    """Empty: every model. Where the scopes agree on none it has one name that no model has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call that wants in. `prompt_tokens` is exact; `max_tokens` is the most that may be generated over all choices."""

    digest: str
    """SHA-256 of the presented key, in hex."""
    request_id: str
    model: str
    endpoint: str
    prompt_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState:
    """What the key's own scope has left, for the x-ratelimit-* headers. None where the scope sets no limit."""

    limit_requests: int | None
    remaining_requests: int | None
    reset_requests_s: float | None
    limit_tokens: int | None
    remaining_tokens: int | None
    reset_tokens_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    caller: Caller
    allowance: int
    """Tokens that may be generated before the hold has to be extended; at most max_tokens."""
    lease: Lease
    account: str
    """Opaque text for the submit frame; comes back in the usage event."""
    limits: LimitState


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    code: RefusalCode
    message: str
    """For the caller: which limit, at which scope, and what it is."""
    limit: str | None = None
    """requests_per_minute, tokens_per_minute, in_flight, tokens_per_day or tokens_per_month"""
    scope: Literal["key", "project", "tenant"] | None = None
    retry_after_s: float | None = None
    limits: LimitState | None = None


Admission = Granted | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """Answer to extending a hold."""

    allowance: int
    """The new cumulative allowance; unchanged if nothing is left."""
    ended_by: Literal["budget", "rate", "lost", "revoked"] | None
    """Why less than asked was given: a day's or month's budget is spent (end the request); a minute's rate is, or limits can't be checked
    now (try again later); Redis has lost the hold, or the key or what it belongs to may no longer call: the request can only end as an
    error."""
    retry_after_s: float | None = None
