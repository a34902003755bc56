"""One worker process over its Unix socket: streams, cancels, resumes, and what a bad gateway can't do to the others."""

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec import json, msgpack
from redis.asyncio import Redis

from inference.protocol.frames import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    Allow,
    Attach,
    Attached,
    Cancel,
    Challenge,
    Finish,
    Hello,
    Pause,
    Reject,
    Tokens,
    encode,
)
from inference.protocol.registry import USAGE_STREAM, WORKERS_KEY, Registration, worker_key
from inference.protocol.usage import FinishReason, UsageEvent
from tests.inference.worker_process import GatewayEnd, WorkerProcess, connect, eventually, expected, linked, running_worker, submit

pytestmark = pytest.mark.asyncio(loop_scope="module")

STEPS_A_SECOND = 400


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as redis:
        await redis.flushall()
        yield redis


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(client: Redis, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerProcess]:
    home = tmp_path_factory.mktemp("worker")
    model = f"synthetic:rate={STEPS_A_SECOND}"
    async with running_worker(redis_url, home, model=model, orphan_grace_s=0.5, retention_s=30) as worker:
        yield worker


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(worker: WorkerProcess) -> AsyncIterator[GatewayEnd]:
    async with linked(worker) as end:
        yield end


async def usage_of(client: Redis, request_id: str) -> UsageEvent:
    """The request's event, once it is in the stream."""

    async def found() -> UsageEvent | None:
        events = [msgpack.decode(entry[b"event"], type=UsageEvent) for _, entry in await client.xrange(USAGE_STREAM)]
        return next((event for event in events if event.request_id == request_id), None)

    return await eventually(found)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """The worker closes this connection, whatever it sends before."""
    async with asyncio.timeout(20):
        try:
            while await reader.read(65536):
                pass
        except ConnectionResetError:
            return True
    return True


async def test_stream_has_every_token_and_the_ledger_gets_what_the_finish_says(
    worker: WorkerProcess, gateway: GatewayEnd, client: Redis
) -> None:
    gateway.send(submit("streams", max_tokens=40))
    tokens, finish = await gateway.collect("streams")
    assert tokens == {0: expected(worker, count=40)}
    assert finish.reason is FinishReason.LENGTH
    assert (finish.counters.prompt_tokens, finish.counters.generated_tokens, finish.counters.billed_tokens) == (5, 40, 40)
    event = await usage_of(client, "streams")
    assert (event.worker, event.epoch, event.account) == (worker.worker_id, gateway.welcome.epoch, "acme")
    assert event.counters == finish.counters


async def test_every_choice_is_streamed(worker: WorkerProcess, gateway: GatewayEnd) -> None:
    gateway.send(submit("choices", max_tokens=10, n=3))
    tokens, finish = await gateway.collect("choices")
    assert tokens == dict.fromkeys(range(3), expected(worker, count=10))
    assert finish.counters.generated_tokens == 30


async def test_worker_is_registered_with_its_address_and_load(worker: WorkerProcess, client: Redis) -> None:
    await eventually(lambda: client.sismember(WORKERS_KEY, worker.worker_id))  # other tests may just have flushed the server
    entry = await client.hgetall(worker_key(worker.worker_id))
    registration = json.decode(entry[b"registration"], type=Registration)
    assert (registration.worker_id, registration.address) == (worker.worker_id, worker.address)
    assert registration.pid == worker.proc.pid
    assert b"blocks_total" in entry[b"load"] or entry[b"load"].startswith(b"[")
    assert 0 < await client.pttl(worker_key(worker.worker_id)) <= 6000


async def test_unix_socket_is_its_users_own(worker: WorkerProcess) -> None:
    assert Path(worker.address.removeprefix("unix:")).stat().st_mode & 0o777 == 0o600


async def test_generation_waits_at_its_allowance_and_goes_on_when_allowed(worker: WorkerProcess, gateway: GatewayEnd) -> None:
    few = submit("allowed", max_tokens=12)
    gateway.send(type(few)(**{name: getattr(few, name) for name in few.__struct_fields__} | {"allowance": 5}))
    got = await gateway.tokens(5, "allowed")
    await gateway.load_until(lambda load: load.tokens_generated >= 5)
    assert got == expected(worker, count=5)
    gateway.send(Allow(request_id="allowed", allowance=12))
    got += await gateway.tokens(7, "allowed")
    assert got == expected(worker, count=12)


async def test_paused_request_goes_on_where_it_was(worker: WorkerProcess, gateway: GatewayEnd) -> None:
    gateway.send(submit("paused", max_tokens=60))
    got = await gateway.tokens(3, "paused")
    gateway.send(Pause(request_id="paused", paused=True), Pause(request_id="paused", paused=False))
    got += await gateway.tokens(60 - len(got), "paused")
    assert got == expected(worker, count=60)


async def test_cancel_ends_the_request_bills_what_was_delivered_and_frees_its_blocks(gateway: GatewayEnd, client: Redis) -> None:
    gateway.send(submit("cancelled", max_tokens=4000))
    await gateway.tokens(5, "cancelled")
    gateway.send(Cancel(request_id="cancelled", delivered={0: 3}))
    finish = await gateway.until(Finish, request_id="cancelled")
    assert isinstance(finish, Finish)
    assert finish.reason is FinishReason.CANCELLED
    assert finish.counters.billed_tokens == 3
    assert finish.counters.generated_tokens == 3 + finish.counters.wasted_tokens
    load = await gateway.load_until(lambda load: not load.running)
    assert load.blocks_free + load.blocks_cached == load.blocks_total
    assert (await usage_of(client, "cancelled")).counters == finish.counters


async def test_what_the_engine_refuses_is_rejected_and_disturbs_nobody(worker: WorkerProcess, gateway: GatewayEnd, client: Redis) -> None:
    gateway.send(submit("neighbour", max_tokens=50))
    bad = submit("bad")
    bad.prompt.append(10_000)
    gateway.send(bad)
    rejection = await gateway.until(Reject)
    assert isinstance(rejection, Reject)
    assert (rejection.request_id, rejection.code) == ("bad", "invalid")
    gateway.send(submit("neighbour"))
    rejection = await gateway.until(Reject)
    assert isinstance(rejection, Reject)
    assert (rejection.request_id, rejection.code) == ("neighbour", "duplicate")
    assert (await gateway.until(Finish, request_id="neighbour")).counters.generated_tokens == 50  # type: ignore[union-attr]
    gateway.send(submit("bad"))  # its id is free again
    assert (await gateway.collect("bad"))[0] == {0: expected(worker, count=8)}


async def test_too_long_an_identity_is_rejected(gateway: GatewayEnd) -> None:
    gateway.send(submit("r" * 2000))
    rejection = await gateway.until(Reject)
    assert isinstance(rejection, Reject)
    assert (rejection.code, rejection.param) == ("invalid", "request_id")


# --- broken links -------------------------------------------------------------------------------------------------------------


async def test_broken_link_cancels_its_request_and_frees_its_blocks(worker: WorkerProcess, gateway: GatewayEnd, client: Redis) -> None:
    async with linked(worker, gateway_id="g2") as other:
        other.send(submit("dropped", max_tokens=4000))
        delivered = await other.tokens(5, "dropped")
    event = await usage_of(client, "dropped")
    assert event.reason is FinishReason.CANCELLED
    assert len(delivered) <= event.counters.billed_tokens < 4000
    load = await gateway.load_until(lambda load: not load.running)
    assert load.blocks_free + load.blocks_cached == load.blocks_total


async def test_resumable_request_goes_on_and_is_attached_to_without_gap_or_duplicate(worker: WorkerProcess, gateway: GatewayEnd) -> None:
    async with linked(worker, gateway_id="g2") as other:
        other.send(submit("resumed", max_tokens=100, resumable=True))
        delivered = await other.tokens(5, "resumed")
    gateway.send(Attach(request_id="resumed", next_index={0: len(delivered)}))
    attached = await gateway.until(Attached)
    assert attached == Attached(request_id="resumed", prompt_tokens=5, cached_tokens=attached.cached_tokens)  # type: ignore[union-attr]
    delivered += await gateway.tokens(100 - len(delivered), "resumed")
    assert delivered == expected(worker, count=100)
    await gateway.until(Finish, request_id="resumed")


async def test_attach_takes_the_stream_over_from_a_living_link(worker: WorkerProcess, gateway: GatewayEnd) -> None:
    async with linked(worker, gateway_id="g2") as other:
        other.send(submit("moved", max_tokens=100, resumable=True))
        await other.tokens(5, "moved")
        gateway.send(Attach(request_id="moved", next_index={}))
        tokens, finish = await gateway.collect("moved")
        assert tokens == {0: expected(worker, count=100)}
        assert finish.reason is FinishReason.LENGTH
        other.send(submit("after", max_tokens=3))
        seen = []
        while not isinstance(frame := await other.until(Tokens, Finish), Finish):
            seen.append(frame)
        assert frame.request_id == "after"  # the moved request's end went to its new link alone


async def test_ended_request_can_be_read_again_whole(worker: WorkerProcess, gateway: GatewayEnd) -> None:
    gateway.send(submit("ended", max_tokens=20, resumable=True))
    first = await gateway.collect("ended")
    gateway.send(Attach(request_id="ended", next_index={0: 0}))
    assert await gateway.collect("ended") == first
    gateway.send(Attach(request_id="ended", next_index={0: 20}))
    assert await gateway.collect("ended") == ({}, first[1])


async def test_orphan_is_cancelled_after_its_grace(worker: WorkerProcess, client: Redis) -> None:
    async with linked(worker, gateway_id="g2") as other:
        other.send(submit("orphan", max_tokens=8000, resumable=True))
        await other.tokens(5, "orphan")
    event = await usage_of(client, "orphan")
    assert event.reason is FinishReason.CANCELLED
    assert event.counters.generated_tokens < 8000


@pytest.mark.parametrize("request_id", ["never-heard-of", "not-resumable"])
async def test_attach_to_what_is_not_there_is_rejected(gateway: GatewayEnd, request_id: str) -> None:
    gateway.send(submit("not-resumable", max_tokens=200))
    gateway.send(Attach(request_id=request_id, next_index={}))
    rejection = await gateway.until(Reject)
    assert isinstance(rejection, Reject)
    assert (rejection.request_id, rejection.code) == (request_id, "not_found")
    gateway.send(Cancel(request_id="not-resumable"))
    await gateway.until(Finish, request_id="not-resumable")


# --- bad gateways -------------------------------------------------------------------------------------------------------------


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


HELLO = encode(Hello(version=PROTOCOL_VERSION, gateway_id="bad"))


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(encode(Hello(version=PROTOCOL_VERSION + 1, gateway_id="bad")), id="wrong version"),
        pytest.param(encode(submit("unasked")), id="submit before hello"),
        pytest.param(HELLO + HELLO, id="second hello"),
        pytest.param(HELLO + framed(b"\xc1\xff\xff"), id="garbage"),
        pytest.param(HELLO + encode(Challenge(nonce=b"x")), id="a worker's frame"),
        pytest.param(HELLO + framed(msgpack.encode(["Cancel", 5, "x", 1])), id="wrong types"),
        pytest.param(HELLO + struct.pack(">I", MAX_FRAME_BYTES + 1), id="oversized"),
        pytest.param(struct.pack(">I", 1_000_000), id="oversized before hello"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
    ],
)
async def test_bad_gateway_loses_its_link_and_no_other_is_disturbed(worker: WorkerProcess, gateway: GatewayEnd, sent: bytes) -> None:
    gateway.send(submit("undisturbed", max_tokens=30))
    reader, writer = await connect(worker.address)
    try:
        writer.write(sent)
        assert await is_closed(reader)
    finally:
        writer.close()
    tokens, _ = await gateway.collect("undisturbed")
    assert tokens == {0: expected(worker, count=30)}


async def test_frames_may_arrive_in_pieces(worker: WorkerProcess) -> None:
    reader, writer = await connect(worker.address)
    end = GatewayEnd(reader, writer)
    for byte in HELLO + encode(submit("pieces")):
        writer.write(bytes([byte]))
        await writer.drain()
    assert (await end.collect("pieces"))[0] == {0: expected(worker, count=8)}
    await end.close()
