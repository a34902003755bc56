"""Starts, ends and outages of a worker: kill -9, SIGTERM, a Redis that is away, gateways that don't read, strangers on TCP."""

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from msgspec import msgpack
from redis.asyncio import Redis

from inference.protocol.frames import PROTOCOL_VERSION, Challenge, Draining, Finish, Hello, Lease, Reject, Tokens
from inference.protocol.proof import worker_proof
from inference.protocol.registry import USAGE_STREAM, WORKERS_KEY, committed_key, worker_key
from inference.protocol.usage import FinishReason, UsageEvent
from tests.inference.worker_process import (
    GatewayEnd,
    WorkerProcess,
    connect,
    eventually,
    expected,
    linked,
    refused_start,
    running_worker,
    submit,
)


async def events(redis: Redis, count: int) -> dict[str, UsageEvent]:
    """The usage events by request, once there are so many requests."""

    async def enough() -> dict[str, UsageEvent] | None:
        found = [msgpack.decode(entry[b"event"], type=UsageEvent) for _, entry in await redis.xrange(USAGE_STREAM)]
        by_request = {event.request_id: event for event in found}
        return by_request if len(by_request) >= count else None

    return await eventually(enough)


async def repeated(redis: Redis, count: int) -> bool:
    return bool(await redis.xlen(USAGE_STREAM) >= count)


async def gone(path: Path) -> bool:
    return not path.exists()


async def said(worker: WorkerProcess, words: str) -> bool:
    return any(words in line for line in worker.lines)


async def held(redis: Redis, request_id: str, *, ttl_ms: int = 60_000) -> Lease:
    """A hold as admission leaves it."""
    lease = Lease(hold_key=f"hold:{request_id}", expiry_keys=("in-flight",), member=request_id, ttl_ms=ttl_ms)
    await redis.hset(lease.hold_key, "state", "held")
    await redis.zadd("in-flight", {request_id: 1})
    return lease


# --- the journal --------------------------------------------------------------------------------------------------------------


async def test_killed_worker_is_settled_at_restart_with_every_token_that_was_delivered(
    redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    async with running_worker(redis_url, tmp_path, model="synthetic:rate=300") as worker, linked(worker) as gateway:
        names = [f"r{n}" for n in range(8)]
        gateway.send(*(submit(name, max_tokens=4000) for name in names), submit("done", max_tokens=3))
        await gateway.until(Finish, request_id="done")
        await gateway.tokens(20, "r0")
        await worker.kill()
        delivered = dict.fromkeys(names, 0)
        try:
            while True:
                frame = await gateway.read()
                for token in frame.tokens if isinstance(frame, Tokens) else ():
                    delivered[token.request_id] = token.index + 1
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass  # everything that had left it has been read
        epoch = gateway.welcome.epoch
    assert (tmp_path / "journal" / f"{epoch}.journal").exists()
    async with running_worker(redis_url, tmp_path, model="synthetic:rate=300", usage_retry_s=0.2) as worker:
        settled = await events(redis, 9)
        assert settled["done"].reason is FinishReason.LENGTH
        for name in names:
            assert settled[name].reason is FinishReason.CRASH
            assert (settled[name].epoch, settled[name].account) == (epoch, "acme")
            assert max(1, delivered[name]) <= settled[name].counters.generated_tokens <= delivered[name] + 50
        # Until the ledger confirms them they come again; then the dead worker's journal goes.
        await eventually(lambda: repeated(redis, 20))
        await redis.sadd(committed_key(epoch), *(str(event.sequence) for event in settled.values()))
        await eventually(lambda: gone(tmp_path / "journal" / f"{epoch}.journal"))
        assert await worker.terminate() == 0
    assert not list((tmp_path / "journal").iterdir())


async def test_neighbour_settles_a_worker_that_never_comes_back(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    async with running_worker(redis_url, tmp_path, worker_id="w2"):
        async with running_worker(redis_url, tmp_path, worker_id="w1", model="synthetic:rate=100") as worker, linked(worker) as gateway:
            gateway.send(submit("r1", max_tokens=4000))
            await gateway.tokens(3)
            await worker.kill()
        event = (await events(redis, 1))["r1"]
        assert (event.worker, event.reason) == ("w1", FinishReason.CRASH)
        assert event.counters.generated_tokens >= 3


# --- draining -----------------------------------------------------------------------------------------------------------------


async def test_drain_lets_what_runs_end_and_takes_nothing_new(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    async with running_worker(redis_url, tmp_path, model="synthetic:rate=100") as worker, linked(worker) as gateway:
        gateway.send(submit("running", max_tokens=60))
        got = await gateway.tokens(3, "running")
        worker.proc.send_signal(signal.SIGTERM)
        await gateway.until(Draining)
        gateway.send(submit("late"))
        late, tokens, finish = None, got, None
        while late is None or finish is None:
            frame = await gateway.read()
            match frame:
                case Reject():
                    late = frame
                case Tokens():
                    tokens += [token.token for token in frame.tokens]
                case Finish():
                    finish = frame
        assert (late.request_id, late.code) == ("late", "draining")
        assert finish.reason is FinishReason.LENGTH
        assert tokens == expected(worker, count=60)
        assert await worker.proc.wait() == 0
        assert await events(redis, 1)
        assert not await redis.exists(worker_key("w1"))
        assert not await redis.sismember(WORKERS_KEY, "w1")
        assert not Path(worker.address.removeprefix("unix:")).exists()


@pytest.mark.parametrize("signals", [1, 2], ids=["time is up", "second signal"])
async def test_what_does_not_end_in_time_ends_as_an_error_that_says_so(redis: Redis, redis_url: str, tmp_path: Path, signals: int) -> None:
    drain_s = 0.2 if signals == 1 else 600
    async with running_worker(redis_url, tmp_path, model="synthetic:rate=100", drain_s=drain_s) as worker, linked(worker) as gateway:
        gateway.send(submit("long", max_tokens=4000))
        await gateway.tokens(3, "long")
        worker.proc.send_signal(signal.SIGINT)
        await gateway.until(Draining)
        if signals == 2:
            worker.proc.send_signal(signal.SIGINT)
        finish = await gateway.until(Finish)
        assert isinstance(finish, Finish)
        assert finish.reason is FinishReason.ERROR
        assert "shut down" in (finish.error or "")
        assert await worker.proc.wait() == 0
    event = (await events(redis, 1))["long"]
    assert event.counters == finish.counters
    assert event.counters.generated_tokens >= 3


# --- holds and outages --------------------------------------------------------------------------------------------------------


async def test_request_runs_only_on_a_hold_that_is_still_there(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    async with running_worker(redis_url, tmp_path) as worker, linked(worker) as gateway:
        lease = await held(redis, "r1")
        gateway.send(submit("r1", lease=lease))
        assert (await gateway.collect("r1"))[0] == {0: expected(worker, count=8)}
        assert await redis.hget("hold:r1", "state") == b"claimed"
        assert await redis.zscore("in-flight", "r1") > 1
        gateway.send(submit("r1", lease=lease))  # the same hold again, late
        rejection = await gateway.until(Reject)
        assert isinstance(rejection, Reject)
        assert rejection.code == "hold_expired"
        assert list(await events(redis, 1)) == ["r1"]
        assert await redis.xlen(USAGE_STREAM) == 1


@asynccontextmanager
async def outage(redis_url: str) -> AsyncIterator["Proxy"]:
    """A way to Redis that can be cut."""
    proxy = Proxy(redis_url)
    await proxy.mend()
    try:
        yield proxy
    finally:
        await proxy.cut()


class Proxy:
    def __init__(self, redis_url: str) -> None:
        self._target = urlsplit(redis_url)
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()
        self._port = 0

    @property
    def url(self) -> str:
        login, at, _ = self._target.netloc.rpartition("@")
        return self._target._replace(netloc=f"{login}{at}127.0.0.1:{self._port}").geturl()

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)
        self._pipes.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
        for source, target in ((reader, back), (there, writer)):
            self._pipes.add(asyncio.create_task(self._pipe(source, target)))

    @staticmethod
    async def _pipe(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                target.write(data)
        finally:
            target.close()


async def test_running_requests_outlive_an_outage_of_redis_and_are_settled_after_it(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    async with outage(redis_url) as way, running_worker(way.url, tmp_path, model="synthetic:rate=200") as worker, linked(worker) as gateway:
        gateway.send(submit("r1", lease=await held(redis, "r1"), max_tokens=120))
        got = await gateway.tokens(3, "r1")
        await way.cut()
        gateway.send(submit("r2", lease=await held(redis, "r2")))
        finish = rejection = None
        while finish is None or rejection is None:
            match await gateway.until(Tokens, Finish, Reject):
                case Tokens() as frame:
                    got += [token.token for token in frame.tokens]
                case Finish() as finish:
                    pass
                case Reject() as rejection:
                    pass
        assert got == expected(worker, count=120)
        assert (rejection.request_id, rejection.code) == ("r2", "unavailable")
        assert rejection.retry_after_s
        assert await redis.xlen(USAGE_STREAM) == 0
        await way.mend()
        assert (await events(redis, 1))["r1"].counters == finish.counters
        gateway.send(submit("r3", lease=await held(redis, "r3")))
        assert (await gateway.collect("r3"))[0] == {0: expected(worker, count=8)}


# --- gateways that don't read -------------------------------------------------------------------------------------------------


async def test_gateway_that_does_not_read_gets_an_error_and_the_others_go_on(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    async with (
        running_worker(redis_url, tmp_path, outbound_bytes=20_000, blocks=8192) as worker,
        linked(worker, gateway_id="slow") as slow,
        linked(worker, gateway_id="other") as other,
    ):
        names = [f"r{n}" for n in range(16)]
        slow.send(*(submit(name, max_tokens=7000) for name in names))
        await events(redis, len(names))  # they have ended, none of their frames read
        other.send(submit("other", max_tokens=200))
        assert (await other.collect("other"))[0] == {0: expected(worker, count=200)}
        finishes: dict[str, Finish] = {}
        last = dict.fromkeys(names, -1)
        while len(finishes) < len(names):
            frame = await slow.until(Tokens, Finish)
            if isinstance(frame, Finish):
                finishes[frame.request_id] = frame
                continue
            assert isinstance(frame, Tokens)
            for token in frame.tokens:
                assert token.index == last[token.request_id] + 1, "what does arrive has no gap"
                last[token.request_id] = token.index
        assert {finish.reason for finish in finishes.values()} == {FinishReason.ERROR}
        assert all("slow reader" in (finish.error or "") for finish in finishes.values())
        slow.send(submit("again"))  # it reads again, so it is served again
        assert (await slow.collect("again"))[0] == {0: expected(worker, count=8)}


async def test_gateway_that_never_reads_loses_its_link(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    async with running_worker(redis_url, tmp_path, outbound_bytes=20_000, stall_s=0.5, blocks=8192) as worker, linked(worker) as slow:
        slow.send(*(submit(f"r{n}", max_tokens=7000) for n in range(16)))
        await eventually(lambda: said(worker, "read too little"))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await slow.until(Draining)  # everything that had reached the socket, and then its end


# --- starting -----------------------------------------------------------------------------------------------------------------

SECRET = b"0123456789abcdef0123456789abcdef"


async def test_tcp_needs_the_shared_secret_on_both_sides(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    secret_file = tmp_path / "secret"
    secret_file.write_bytes(SECRET + b"\n")
    async with running_worker(redis_url, tmp_path, listen="127.0.0.1:0", secret_file=secret_file) as worker:
        assert worker.address.startswith("tcp:127.0.0.1:")
        async with linked(worker, secret=SECRET) as gateway:
            assert gateway.welcome.proof == worker_proof(SECRET, gateway.nonce, "w1")
            gateway.send(submit())
            assert (await gateway.collect())[0] == {0: expected(worker, count=8)}
        for proof in (b"", b"x" * 32):
            end = GatewayEnd(*await connect(worker.address))
            assert isinstance(await end.read(), Challenge)
            end.send(Hello(version=PROTOCOL_VERSION, gateway_id="g1", proof=proof), submit("stranger"))
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await end.read()
            await end.close()
    assert list(await events(redis, 1)) == ["r1"]


@pytest.fixture
def socket() -> Iterator[Path]:
    """A path short enough for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="lg-") as folder:
        yield Path(folder) / "w1.sock"


async def test_socket_of_a_living_worker_is_not_taken_and_that_of_a_dead_one_is(
    redis: Redis, redis_url: str, tmp_path: Path, socket: Path
) -> None:
    async with running_worker(redis_url, tmp_path, socket=socket) as worker:
        assert "another process serves" in (await refused_start(redis_url, tmp_path, socket=socket))[-1]
        await worker.kill()
    assert socket.exists()
    async with running_worker(redis_url, tmp_path, socket=socket) as worker, linked(worker) as gateway:
        gateway.send(submit())
        assert (await gateway.collect())[0] == {0: expected(worker, count=8)}


async def test_worker_that_cannot_start_says_why_in_its_last_line(redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    last = (await refused_start(redis_url, tmp_path / "file"))[-1]
    assert str(tmp_path / "file") in last
