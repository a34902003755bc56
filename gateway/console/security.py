"""Nothing on a page comes from elsewhere, and nothing in its text is run."""

from collections.abc import Awaitable, Callable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "font-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
PERMISSIONS = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"

Respond = Callable[[HttpRequest], HttpResponseBase] | Callable[[HttpRequest], Awaitable[HttpResponseBase]]


class ContentSecurityPolicy:
    """Middleware, for sync and async servers alike."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Respond) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        response = self.get_response(request)
        return _protected(response) if isinstance(response, HttpResponseBase) else self._awaited(response)

    async def _awaited(self, response: Awaitable[HttpResponseBase]) -> HttpResponseBase:
        return _protected(await response)


def _protected(response: HttpResponseBase) -> HttpResponseBase:
    response.headers.setdefault("Content-Security-Policy", POLICY)
    response.headers.setdefault("Permissions-Policy", PERMISSIONS)
    return response
