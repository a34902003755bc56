"""What a caller is told when something is wrong: OpenAI's error object, the right status, and when to come back."""

import math
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from gateway.admission.outcomes import RefusalCode, Refused
from gateway.events import Failed, FailureCode

Header = tuple[bytes, bytes]

INVALID_REQUEST = "invalid_request_error"
_encoder = msgspec.json.Encoder()


class ErrorObject(Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Struct, frozen=True):
    error: ErrorObject


class ApiError(Exception):
    """A request ends with this status and error object."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        headers: Sequence[Header] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.object = ErrorObject(message=message, type=kind, param=param, code=code)
        self.headers: list[Header] = [*headers]
        if retry_after_s is not None:
            self.headers.append((b"retry-after", str(whole_seconds(retry_after_s)).encode()))

    def body(self) -> bytes:
        """The error object as JSON."""
        return _encoder.encode(ErrorBody(self.object))


def whole_seconds(seconds: float) -> int:
    """Rounded up, at least 1: whoever waits so long is not too early."""
    return max(1, math.ceil(seconds))


NEVER_RETRY: Header = (b"x-should-retry", b"false")
"""Read by OpenAI's clients, which would otherwise try 429 and 5xx again at once."""


def model_not_found(model: str) -> ApiError:
    """One answer for a model that doesn't exist and for one that the key may not use."""
    return ApiError(
        f"The model `{model[:200]}` does not exist or you do not have access to it.", status=404, param="model", code="model_not_found"
    )


def unavailable(message: str, retry_after_s: float | None = None) -> ApiError:
    return ApiError(message, status=503, kind="server_error", code="unavailable", retry_after_s=retry_after_s or 1.0)


def context_length_exceeded(message: str, param: str) -> ApiError:
    return ApiError(message, param=param, code="context_length_exceeded")


_REFUSALS: dict[RefusalCode, tuple[int, str]] = {
    "invalid_api_key": (401, INVALID_REQUEST),
    "suspended": (403, "permission_error"),
    "model_not_allowed": (404, INVALID_REQUEST),
    "rate_limit_exceeded": (429, "rate_limit_error"),
    "concurrency_limit_exceeded": (429, "rate_limit_error"),
    "insufficient_quota": (429, "insufficient_quota"),
    "request_too_large": (400, INVALID_REQUEST),
    "unavailable": (503, "server_error"),
}


def refused(refusal: Refused, *, model: str = "", headers: Sequence[Header] = ()) -> ApiError:
    """Admission's refusal as an error. A 429 or 503 always says when to come back."""
    if refusal.code == "model_not_allowed":
        return model_not_found(model)
    status, kind = _REFUSALS[refusal.code]
    retry_after_s = refusal.retry_after_s
    if retry_after_s is None and status in (429, 503):
        retry_after_s = 1.0
    extra = [NEVER_RETRY] if refusal.code == "insufficient_quota" else []
    if status == 401:
        extra.append((b"www-authenticate", b"Bearer"))
    return ApiError(
        refusal.message,
        status=status,
        kind=kind,
        code=refusal.code,
        retry_after_s=retry_after_s if status in (429, 503) else None,
        headers=[*headers, *extra],
    )


_FAILURES: dict[FailureCode, tuple[int, str]] = {
    "engine_error": (500, "server_error"),
    "worker_lost": (503, "server_error"),
    "timeout": (503, "server_error"),
    "cancelled": (500, "server_error"),
    "slow_reader": (500, "server_error"),
    "revoked": (401, INVALID_REQUEST),
    "hold_lost": (503, "server_error"),
}


def failed(failure: Failed) -> ApiError:
    """A generation's failure as an error."""
    status, kind = _FAILURES[failure.code]
    # What an operator or the caller's own slowness ended must not come back by itself.
    headers = [NEVER_RETRY] if failure.code in ("cancelled", "slow_reader") else []
    return ApiError(
        failure.message, status=status, kind=kind, code=failure.code, retry_after_s=1.0 if status == 503 else None, headers=headers
    )


def internal_error(request_id: str) -> ApiError:
    """Says nothing but where to look: the log line with the same id."""
    return ApiError(
        f"The server had an error while processing your request. Its id is {request_id}.",
        status=500,
        kind="server_error",
        code="internal_error",
    )
