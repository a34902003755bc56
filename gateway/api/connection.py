"""One HTTP request: its headers, its body within a limit, its answer, and whether the client is still there."""

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from gateway.api.errors import ApiError, Header
from gateway.api.presented_key import presented_digest

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_BODY_BYTES = 4 * 1024 * 1024
BODY_TIMEOUT_S = 60.0
"""For the whole body to arrive."""

_SANE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
JSON = b"application/json"


class ClientGone(Exception):
    """The client hung up before its request was whole. Nobody is left to be answered."""


class Connection:
    """Wraps one ASGI HTTP scope."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._receive = receive
        self._send = send
        self.internal_id = secrets.token_hex(16)
        """Unique, whatever a caller sends."""
        claimed = self.header(b"x-request-id")
        self.request_id = claimed if claimed is not None and _SANE_ID.fullmatch(claimed) else f"req_{self.internal_id}"
        """What the answer's x-request-id says: the caller's own if it is sane."""
        self.started = False
        """Whether the answer's first bytes are out."""
        self.streaming = False
        """Whether they were those of server-sent events."""
        self.finished = False
        self.key_checked = False
        """Whether admission has had its say about the caller's key."""
        self.key_digest: str | None = None
        """SHA-256 of the presented key, in hex, once it has been read."""
        self.gone = False
        """Whether the client hung up before its answer was whole."""

    def header(self, name: bytes) -> str | None:
        """The first header of that (lower-case) name."""
        for key, value in self.scope["headers"]:
            if key == name:
                return bytes(value).decode("latin-1")
        return None

    def digest(self) -> str:
        """SHA-256 of the presented key, in hex. Raises ApiError (401) if none is presented as it should be."""
        self.key_digest = presented_digest(self.scope["headers"], self.scope.get("query_string", b""))
        return self.key_digest

    async def body(self) -> bytes:
        """The whole body. Raises ApiError (413, 408), ClientGone."""
        length = self.header(b"content-length")
        if length is not None and length.isdecimal() and int(length[:20]) > MAX_BODY_BYTES:
            raise too_large()
        first = await self._next(BODY_TIMEOUT_S)
        if not first.get("more_body"):
            body = first.get("body", b"")
            if len(body) > MAX_BODY_BYTES:
                raise too_large()
            return bytes(body)
        return await self._rest(first)

    async def _rest(self, first: Message) -> bytes:
        parts, size = [first.get("body", b"")], len(first.get("body", b""))
        deadline = asyncio.get_running_loop().time() + BODY_TIMEOUT_S
        more = True
        while more:
            message = await self._next(deadline - asyncio.get_running_loop().time())
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > MAX_BODY_BYTES:
                raise too_large()
            more = message.get("more_body", False)
        return b"".join(parts)

    async def _next(self, timeout_s: float) -> Message:
        try:
            async with asyncio.timeout(timeout_s):
                message = await self._receive()
        except TimeoutError as error:
            raise ApiError("The request's body took too long to arrive.", status=408, code="request_timeout") from error
        if message["type"] == "http.disconnect":
            self.gone = True
            raise ClientGone
        return message

    async def disconnected(self) -> None:
        """Return when the client has hung up. Never returns because the answer is whole."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                if not self.finished:
                    self.gone = True
                return

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        """Send status and headers."""
        self.started = True
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*headers, (b"x-request-id", self.request_id.encode())]}
        )

    async def send(self, body: bytes, *, last: bool = False) -> None:
        """Send a part of the body; waits while the client reads slower than we write."""
        self.finished = self.finished or last
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})

    async def respond(self, status: int, body: bytes, headers: Sequence[Header] = (), *, content_type: bytes = JSON) -> None:
        """Send a whole answer."""
        await self.start(status, [(b"content-type", content_type), (b"content-length", str(len(body)).encode()), *headers])
        await self.send(body, last=True)


def too_large() -> ApiError:
    """413."""
    return ApiError(f"The request's body is larger than {MAX_BODY_BYTES} bytes.", status=413, code="request_too_large")
