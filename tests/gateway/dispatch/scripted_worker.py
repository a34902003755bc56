"""A worker's end of links, scripted: it greets, remembers what it is told, and sends what a test wants."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from inference.protocol import proof
from inference.protocol.frames import (
    PROTOCOL_VERSION,
    Challenge,
    Frame,
    FromGateway,
    Hello,
    Load,
    ModelCard,
    Welcome,
    encode,
    worker_decoder,
)
from inference.protocol.registry import Registration

CARD = ModelCard(
    name="scripted",
    architecture="none",
    parameters=0,
    precision="fp32",
    vocab_size=256,
    context_length=128,
    max_prompt_tokens=127,
    bos_token=None,
    eos_token=None,
    eos_token_ids=(),
    chat_template=None,
    tokenizer_json="{}",
    fingerprint="f",
    created=0,
)


def load(**known: int) -> Load:
    return Load(
        **{
            **dict.fromkeys(
                (
                    "running",
                    "waiting",
                    "blocks_total",
                    "blocks_free",
                    "blocks_cached",
                    "steps",
                    "preemptions",
                    "tokens_computed",
                    "tokens_cached",
                    "tokens_generated",
                    "requests_failed",
                ),
                0,
            ),
            "draining": False,
            "step_ms_mean": 0.0,
            **known,
        }
    )


class ScriptedWorker:
    """Serves one Unix or TCP address."""

    def __init__(self, address: str, *, secret: bytes | None = None) -> None:
        self.registration = Registration(worker_id="w1", epoch="e1", address=address, model="scripted", started_at_ms=0, pid=1)
        self.secret = secret
        self.version = PROTOCOL_VERSION
        self.epoch = "e1"
        self.told: list[FromGateway] = []
        self.links = 0
        self._writer: asyncio.StreamWriter | None = None

    def send(self, *frames: Frame) -> None:
        assert self._writer is not None
        self._writer.write(b"".join(map(encode, frames)))

    def send_raw(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)

    def hang_up(self) -> None:
        assert self._writer is not None
        self._writer.close()
        self._writer = None

    @property
    def linked(self) -> bool:
        return self._writer is not None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            nonce = secrets.token_bytes(32)
            writer.write(encode(Challenge(nonce=nonce)))
            hello = await self._read(reader)
            assert isinstance(hello, Hello)
            shown = b""
            if self.secret is not None:
                shown = proof.worker_proof(self.secret, hello.nonce, "w1")
                if not proof.matches(hello.proof, proof.gateway_proof(self.secret, nonce, hello.gateway_id)):
                    return
            writer.write(encode(Welcome(version=self.version, worker_id="w1", epoch=self.epoch, card=CARD, max_choices=4, proof=shown)))
            self._writer = writer
            self.links += 1
            while True:
                self.told.append(await self._read(reader))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            if self._writer is writer:
                self._writer = None
            writer.close()

    @staticmethod
    async def _read(reader: asyncio.StreamReader) -> FromGateway:
        length = int.from_bytes(await reader.readexactly(4), "big")
        return worker_decoder.decode(await reader.readexactly(length))


@asynccontextmanager
async def scripted_worker(folder: Path) -> AsyncIterator[ScriptedWorker]:
    """On a Unix socket."""
    path = folder / "w1.sock"
    worker = ScriptedWorker(f"unix:{path}")
    server = await asyncio.start_unix_server(worker.serve, path)
    try:
        yield worker
    finally:
        await _stop(server, worker)


@asynccontextmanager
async def scripted_tcp_worker(secret: bytes) -> AsyncIterator[ScriptedWorker]:
    """On a TCP port, behind a secret."""
    worker = ScriptedWorker("", secret=secret)
    server = await asyncio.start_server(worker.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    worker.registration = Registration(
        worker_id="w1", epoch="e1", address=f"tcp:127.0.0.1:{port}", model="scripted", started_at_ms=0, pid=1
    )
    try:
        yield worker
    finally:
        await _stop(server, worker)


async def _stop(server: asyncio.Server, worker: ScriptedWorker) -> None:
    server.close()
    if worker.linked:
        worker.hang_up()
    await server.wait_closed()
