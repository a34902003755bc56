"""One connection to a worker: bytes to frames, the greeting, and nothing of requests."""

import asyncio
import secrets
from collections.abc import Callable
from typing import cast

from msgspec import MsgspecError

from gateway.dispatch.errors import GreetingFailed
from inference.protocol import proof
from inference.protocol.frames import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    Challenge,
    Frame,
    FromWorker,
    Hello,
    Welcome,
    encode,
    gateway_decoder,
)

_GREETING_S = 10.0


class Connection(asyncio.Protocol):
    """Gives every frame after the greeting to `received`, and the reason for its end to `lost`, once."""

    def __init__(
        self, *, gateway_id: str, secret: bytes | None, received: Callable[[FromWorker], None], lost: Callable[[str], None]
    ) -> None:
        self._gateway_id = gateway_id
        self._secret = secret
        self._received = received
        self._lost = lost
        self._nonce = secrets.token_bytes(32)
        self._buffer = bytearray()
        self._why = "the worker closed the link"
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._welcome: asyncio.Future[Welcome] = self._loop.create_future()
        self.ended = asyncio.Event()
        self.heard_at = self._loop.time()
        """When the last bytes came, by the loop's clock."""

    @classmethod
    async def open(
        cls,
        address: str,
        *,
        gateway_id: str,
        secret: bytes | None,
        received: Callable[[FromWorker], None],
        lost: Callable[[str], None],
    ) -> "tuple[Connection, Welcome]":
        """Connect to `unix:/path` or `tcp:host:port` and exchange greetings. Raises OSError, TimeoutError, GreetingFailed."""
        loop = asyncio.get_running_loop()
        kind, _, rest = address.partition(":")
        if kind == "tcp" and secret is None:
            raise GreetingFailed("a worker on TCP needs LOCKGATE_WORKER_SECRET_FILE, the secret it shares with its gateways")

        def protocol() -> Connection:
            return cls(gateway_id=gateway_id, secret=secret if kind == "tcp" else None, received=received, lost=lost)

        async with asyncio.timeout(_GREETING_S):
            match kind:
                case "unix":
                    _, connection = await loop.create_unix_connection(protocol, rest)
                case "tcp":
                    host, _, port = rest.rpartition(":")
                    _, connection = await loop.create_connection(protocol, host.strip("[]"), int(port))
                case _:
                    raise GreetingFailed(f"an address of an unknown kind: {address}")
            try:
                welcome = await connection._welcome
            except BaseException:
                connection.abort("the greeting failed")
                raise
        return connection, welcome

    def send(self, frame: Frame) -> None:
        self._transport.write(encode(frame))

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def abort(self, why: str) -> None:
        """Close at once; `lost` hears why."""
        if not self._transport.is_closing():
            self._why = why
        self._transport.abort()

    # --- asyncio.Protocol ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        why = self._why if exc is None else f"{self._why} ({exc})"
        greeted = self._welcome.done() and not self._welcome.cancelled() and self._welcome.exception() is None
        if not self._welcome.done():
            self._welcome.set_exception(GreetingFailed(why))
        self.ended.set()
        if greeted:
            self._lost(why)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= 4 and not self._transport.is_closing():
            length = int.from_bytes(buffer[start : start + 4], "big")
            if length > MAX_FRAME_BYTES:
                self.abort(f"the worker sent a frame of {length} bytes")
                break
            end = start + 4 + length
            if len(buffer) < end:
                break
            with memoryview(buffer) as view, view[start + 4 : end] as body:
                frame = self._decode(body)
            start = end
            if frame is not None:
                self._accept(frame)
        del buffer[:start]

    def _decode(self, body: memoryview) -> FromWorker | None:
        try:
            return gateway_decoder.decode(body)
        except (MsgspecError, UnicodeDecodeError) as error:
            self.abort(f"the worker sent a frame that can't be read: {error}")
            return None

    def _accept(self, frame: FromWorker) -> None:
        if self._welcome.done():
            self._received(frame)
        elif isinstance(frame, Challenge):
            shown = b"" if self._secret is None else proof.gateway_proof(self._secret, frame.nonce, self._gateway_id)
            self.send(Hello(version=PROTOCOL_VERSION, gateway_id=self._gateway_id, proof=shown, nonce=self._nonce))
        elif isinstance(frame, Welcome):
            self._greet(frame)
        else:
            self._refuse(f"{type(frame).__name__} before Welcome")

    def _greet(self, welcome: Welcome) -> None:
        if welcome.version != PROTOCOL_VERSION:
            self._refuse(f"protocol version {welcome.version}, this gateway speaks {PROTOCOL_VERSION}")
        elif self._secret is not None and not proof.matches(
            welcome.proof, proof.worker_proof(self._secret, self._nonce, welcome.worker_id)
        ):
            self._refuse("the worker couldn't prove that it knows the shared secret")
        else:
            self._welcome.set_result(welcome)

    def _refuse(self, why: str) -> None:
        self._welcome.set_exception(GreetingFailed(why))
        self._transport.abort()
