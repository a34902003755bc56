"""One gateway's connection: greeting, framing, and an outbound buffer with a bound."""

import asyncio
import logging
import secrets
from dataclasses import dataclass
from typing import Protocol, cast

from msgspec import MsgspecError
from msgspec.structs import replace

from inference.protocol import proof
from inference.protocol.frames import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    Allow,
    Attach,
    Cancel,
    Challenge,
    FromGateway,
    Hello,
    Pause,
    Submit,
    Welcome,
    encode,
    worker_decoder,
)

log = logging.getLogger(__name__)

Request = Submit | Allow | Cancel | Pause | Attach

_MAX_GREETING_BYTES = 4096
_GREETING_S = 10.0
_HIGH_WATER_BYTES = 64 * 1024


class Handler(Protocol):
    """Who acts on what arrives."""

    def linked(self, link: "Link") -> None: ...
    def received(self, link: "Link", frame: Request) -> None: ...
    def unlinked(self, link: "Link") -> None: ...


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What holds for every link of a worker."""

    welcome: Welcome
    secret: bytes | None
    """Needed on TCP. None: the socket's file mode is the protection."""
    outbound_bytes: int
    """What may wait for a gateway that doesn't read."""
    stall_s: float
    """A gateway that leaves data unread for this long loses its link."""


class Link(asyncio.Protocol):
    """Server side of a connection. Never blocks: what a gateway doesn't read is bounded, then refused."""

    def __init__(self, terms: Terms, handler: Handler) -> None:
        self._terms = terms
        self._handler = handler
        self._nonce = secrets.token_bytes(32)
        self._buffer = bytearray()
        self._greeting: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport
        self.open = False
        """The gateway has proved itself, and the connection stands."""
        self.gateway_id = "(not greeted)"
        self.request_ids: set[str] = set()
        """Requests whose frames go here. Kept by the handler."""

    # --- out -------------------------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> bool:
        """Queue frames that may be refused (tokens, load). False: the gateway doesn't read, nothing was queued."""
        if not self.open:
            return True  # nobody is there to miss it
        waiting = self._transport.get_write_buffer_size()
        if waiting and waiting + len(data) > self._terms.outbound_bytes:
            return False
        self._transport.write(data)
        return True

    def send_vital(self, data: bytes) -> None:
        """Queue frames that must not be lost; a gateway that can't even take these loses its link."""
        if not self.open:
            return
        if self._transport.get_write_buffer_size() > 2 * self._terms.outbound_bytes:
            self.abort("reads nothing")
            return
        self._transport.write(data)

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self.open else 0

    def close(self) -> None:
        """Close once what is queued has been sent."""
        self._transport.close()

    def abort(self, why: str) -> None:
        """Close at once."""
        log.warning("link to %s closed: %s", self.gateway_id, why)
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    # --- asyncio.Protocol ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=min(_HIGH_WATER_BYTES, self._terms.outbound_bytes // 2))
        self._transport.write(encode(Challenge(nonce=self._nonce)))
        self._greeting = asyncio.get_running_loop().call_later(_GREETING_S, self.abort, "no greeting")

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._greeting, self._stalled):
            if timer is not None:
                timer.cancel()
        if self.open:
            self.open = False
            self._handler.unlinked(self)

    def pause_writing(self) -> None:
        self._stalled = asyncio.get_running_loop().call_later(
            self._terms.stall_s, self.abort, f"read too little for {self._terms.stall_s:g} s"
        )

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= 4 and not self._transport.is_closing():
            length = int.from_bytes(buffer[start : start + 4], "big")
            if length > (MAX_FRAME_BYTES if self.open else _MAX_GREETING_BYTES):
                self.abort(f"a frame of {length} bytes")
                break
            end = start + 4 + length
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:
                frame = self._decode(view[start + 4 : end])
            start = end
            if frame is not None:
                self._accept(frame)
        del buffer[:start]

    def _decode(self, body: memoryview) -> FromGateway | None:
        try:
            with body:
                return worker_decoder.decode(body)
        except (MsgspecError, UnicodeDecodeError) as error:
            self.abort(f"a frame that can't be read: {error}")
            return None

    def _accept(self, frame: FromGateway) -> None:
        if isinstance(frame, Hello):
            self._greet(frame)
        elif self.open:
            self._handler.received(self, frame)
        else:
            self.abort(f"{type(frame).__name__} before Hello")

    def _greet(self, hello: Hello) -> None:
        secret = self._terms.secret
        if self.open:
            self.abort("a second Hello")
            return
        if secret is not None and not proof.matches(hello.proof, proof.gateway_proof(secret, self._nonce, hello.gateway_id)):
            self.abort("wrong proof")
            return
        if hello.version != PROTOCOL_VERSION:
            self.abort(f"protocol version {hello.version}, this worker speaks {PROTOCOL_VERSION}")
            return
        assert self._greeting is not None, "set as the connection was made"
        self._greeting.cancel()
        self.gateway_id = hello.gateway_id
        self.open = True
        self._transport.write(self._welcome(hello.nonce, secret))
        self._handler.linked(self)

    def _welcome(self, nonce: bytes, secret: bytes | None) -> bytes:
        welcome = self._terms.welcome
        if secret is None:
            return encode(welcome)
        return encode(replace(welcome, proof=proof.worker_proof(secret, nonce, welcome.worker_id)))
