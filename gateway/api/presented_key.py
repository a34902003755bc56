"""How a caller presents its API key, over HTTP and WebSocket alike."""

import hashlib
from collections.abc import Iterable
from urllib.parse import parse_qsl

from gateway.api.errors import ApiError

_KEY_FIELDS = frozenset({"api_key", "api-key", "apikey", "key", "access_token", "token", "authorization"})


def presented_digest(headers: Iterable[tuple[bytes, bytes]], query: bytes) -> str:
    """SHA-256 of the presented key, in hex. Raises ApiError (401) if none is presented as it should be."""
    authorization = next((bytes(value).decode("latin-1") for name, value in headers if name == b"authorization"), None)
    if authorization is None:
        raise _no_key(query)
    scheme, _, key = authorization.partition(" ")
    key = key.strip()
    if scheme.lower() != "bearer" or not key:
        raise unauthenticated("The Authorization header has to be: Bearer YOUR_API_KEY.")
    return hashlib.sha256(key.encode("latin-1")).hexdigest()


def holds_key(query: bytes) -> bool:
    """Whether a query string has a field that a key would be sent in."""
    return any(name.lower() in _KEY_FIELDS for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True))


def exposed() -> ApiError:
    """The answer to a key in a query string, valid or not."""
    return unauthenticated(
        "An API key is never read from the query string, where it ends up in logs. Send it as a header: Authorization: Bearer "
        "YOUR_API_KEY. Consider this key exposed and replace it."
    )


def unauthenticated(message: str) -> ApiError:
    """401, with the scheme that is asked for."""
    return ApiError(message, status=401, code="invalid_api_key", headers=[(b"www-authenticate", b"Bearer")])


def _no_key(query: bytes) -> ApiError:
    if holds_key(query):
        return exposed()
    return unauthenticated("You didn't provide an API key. Send it as a header: Authorization: Bearer YOUR_API_KEY.")
