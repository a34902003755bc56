"""A real worker process on the synthetic model, and a gateway's end of its socket."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from inference.models.synthetic import Script
from inference.protocol.frames import (
    PROTOCOL_VERSION,
    Challenge,
    Finish,
    Frame,
    FromWorker,
    Hello,
    Lease,
    Load,
    Submit,
    Tokens,
    Welcome,
    encode,
    gateway_decoder,
)
from inference.protocol.proof import gateway_proof
from inference.protocol.sampling import Sampling

T = TypeVar("T")

START_S = 60.0
"""Importing torch on a busy machine takes its time."""


async def eventually(check: Callable[[], Awaitable[T]], *, within_s: float = 30.0) -> T:
    """The first true answer. Looks at the clock itself: a timeout around a Redis call can be lost in `wait_for` (Python 3.11)."""
    deadline = time.monotonic() + within_s
    while not (answer := await check()):
        assert time.monotonic() < deadline, f"still not so after {within_s:g} s"
        await asyncio.sleep(0)
    return answer


class NotReady(Exception):
    """The worker ended before it was ready; the message is what it said."""


@dataclass
class WorkerProcess:
    """A worker that said `ready`."""

    address: str
    worker_id: str
    proc: asyncio.subprocess.Process
    home: Path
    model: str
    lines: list[str] = field(default_factory=list)
    """What it printed, stderr included."""

    @property
    def script(self) -> Script:
        return Script.parse(self.model)

    async def kill(self) -> None:
        """kill -9."""
        self.proc.kill()
        await self.proc.wait()

    async def terminate(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; returns its exit status."""
        self.proc.send_signal(number)
        return await self.proc.wait()


@asynccontextmanager
async def running_worker(
    redis_url: str, tmp_path: Path, *, worker_id: str = "w1", model: str = "synthetic", **flags: object
) -> AsyncIterator[WorkerProcess]:
    """Start a worker and wait until it is ready; flags by their names (`drain_s=1`, `max_sequences=4`). It is killed at the end.

    Without `socket` or `listen` it serves a Unix socket of its own. Two workers on the same tmp_path share its journal folder.
    """
    folder = Path(tempfile.mkdtemp(prefix="lg-"))  # pytest's own are too long for a Unix socket's path
    if not {"socket", "listen"} & flags.keys():
        flags["socket"] = folder / f"{worker_id}.sock"
    flags = {"blocks": 512, "threads": 1, "precision": "fp32"} | flags
    arguments = ["--redis-url", redis_url, "--home", str(tmp_path), "--worker-id", worker_id, "--model", model]
    for name, value in flags.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    reader, writer = os.pipe()
    proc = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "inference.worker",
        *arguments,
        "--ready-fd",
        str(writer),
        pass_fds=(writer,),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    os.close(writer)
    worker = WorkerProcess(address="", worker_id=worker_id, proc=proc, home=tmp_path, model=model)
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    output = asyncio.create_task(_collect(proc, worker.lines, listening))
    try:
        async with asyncio.timeout(START_S):
            said = await _read_pipe(reader)
        if said != b"ready\n":
            await output
            raise NotReady("\n".join(worker.lines))
        worker.address = await listening
        yield worker
    except Exception as error:
        error.add_note("the worker said:\n" + "\n".join(worker.lines))
        raise
    finally:
        if proc.returncode is None:
            proc.kill()
        await proc.wait()
        await output
        shutil.rmtree(folder)


async def refused_start(redis_url: str, tmp_path: Path, **flags: object) -> list[str]:
    """Start a worker that must not come up; returns what it said."""
    try:
        async with running_worker(redis_url, tmp_path, **flags):  # type: ignore[arg-type]
            pass
    except NotReady as error:
        return str(error).splitlines()
    raise AssertionError("it came up")


async def _read_pipe(descriptor: int) -> bytes:
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(descriptor, "rb")
    )
    try:
        return await stream.readline()
    finally:
        transport.close()


async def _collect(proc: asyncio.subprocess.Process, lines: list[str], listening: "asyncio.Future[str]") -> None:
    assert proc.stdout is not None
    async for raw in proc.stdout:
        line = raw.decode().rstrip()
        lines.append(line)
        if line.startswith("listening on "):
            listening.set_result(line.removeprefix("listening on "))


class GatewayEnd:
    """What a gateway holds of a link: sends frames, reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.welcome: Welcome
        self.nonce = os.urandom(32)

    def send(self, *frames: Frame) -> None:
        self.writer.write(b"".join(map(encode, frames)))

    async def read(self) -> FromWorker:
        """The next frame. Raises asyncio.IncompleteReadError when the worker has closed."""
        length = int.from_bytes(await self.reader.readexactly(4), "big")
        return gateway_decoder.decode(await self.reader.readexactly(length))

    async def until(self, *kinds: type[Frame], request_id: str | None = None) -> FromWorker:
        """The next frame of one of these kinds, for this request if one is named; skips all others."""
        async with asyncio.timeout(30):
            while True:
                frame = await self.read()
                if isinstance(frame, kinds) and request_id in (None, getattr(frame, "request_id", None)):
                    return frame

    async def collect(self, request_id: str = "r1") -> tuple[dict[int, list[int]], Finish]:
        """Everything up to the request's end: tokens of each choice, their indices checked to have no gap, and the Finish."""
        tokens: dict[int, list[int]] = {}
        while True:
            frame = await self.until(Tokens, Finish)
            if isinstance(frame, Finish):
                if frame.request_id == request_id:
                    return tokens, frame
                continue
            assert isinstance(frame, Tokens)
            for token in frame.tokens:
                if token.request_id == request_id:
                    told = tokens.setdefault(token.choice, [])
                    assert token.index == len(told), f"index {token.index} after {len(told)} tokens"
                    told.append(token.token)

    async def tokens(self, count: int, request_id: str = "r1") -> list[int]:
        """The first `count` tokens or more of choice 0, as they come."""
        got: list[int] = []
        while len(got) < count:
            frame = await self.until(Tokens)
            assert isinstance(frame, Tokens)
            got += [token.token for token in frame.tokens if token.request_id == request_id and token.choice == 0]
        return got

    async def load(self) -> Load:
        """The worker's next heartbeat."""
        frame = await self.until(Load)
        assert isinstance(frame, Load)
        return frame

    async def load_until(self, wanted: Callable[[Load], bool]) -> Load:
        """The first heartbeat of which this is true."""
        async with asyncio.timeout(30):
            while not wanted(load := await self.load()):
                pass
            return load

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A bare connection to `unix:/path` or `tcp:host:port`."""
    kind, _, rest = address.partition(":")
    if kind == "unix":
        return await asyncio.open_unix_connection(rest)
    host, _, port = rest.rpartition(":")
    return await asyncio.open_connection(host, int(port))


@asynccontextmanager
async def linked(worker: WorkerProcess, *, gateway_id: str = "g1", secret: bytes | None = None) -> AsyncIterator[GatewayEnd]:
    """A greeted link to the worker."""
    end = GatewayEnd(*await connect(worker.address))
    try:
        challenge = await end.read()
        assert isinstance(challenge, Challenge)
        proof = b"" if secret is None else gateway_proof(secret, challenge.nonce, gateway_id)
        end.send(Hello(version=PROTOCOL_VERSION, gateway_id=gateway_id, proof=proof, nonce=end.nonce))
        welcome = await end.read()
        assert isinstance(welcome, Welcome)
        end.welcome = welcome
        yield end
    finally:
        await end.close()


def submit(
    request_id: str = "r1", *, prompt: str = "hello", max_tokens: int = 8, lease: Lease | None = None, resumable: bool = False, n: int = 1
) -> Submit:
    """An ordinary request whose allowance is no bound."""
    return Submit(
        request_id=request_id,
        prompt=list(prompt.encode()),
        sampling=Sampling(max_tokens=max_tokens, temperature=0.0 if n == 1 else 1.0, n=n, ignore_eos=True),
        allowance=max_tokens * n,
        account="acme",
        share="acme",
        cache_domain=b"acme",
        lease=lease,
        resumable=resumable,
    )


def expected(worker: WorkerProcess, prompt: str = "hello", *, count: int) -> list[int]:
    """What the synthetic model says after this prompt."""
    start = len(prompt.encode())
    return [worker.script.token_at(position) for position in range(start, start + count)]
