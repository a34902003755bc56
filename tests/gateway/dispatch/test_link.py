"""A gateway's link to one worker, against a scripted one."""

import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.dispatch.errors import LinkDown
from gateway.dispatch.link import Link, LinkTiming
from inference.protocol.frames import (
    Allow,
    Attach,
    Attached,
    Cancel,
    Challenge,
    ChoiceEnd,
    Draining,
    Finish,
    PromptLogprobs,
    Reject,
    Started,
    Submit,
    TokenOut,
    Tokens,
)
from inference.protocol.sampling import Sampling
from inference.protocol.usage import Counters, FinishReason
from tests.gateway.dispatch.scripted_worker import ScriptedWorker, load, scripted_tcp_worker, scripted_worker
from tests.gateway.running_gateway import until

SECRET = b"s" * 32


@dataclass
class Ears:
    """A receiver that writes down what it hears."""

    resumable: bool = False
    index: int = 0
    heard: list[object] = field(default_factory=list)
    fault: bool = False

    def next_index(self) -> Mapping[int, int]:
        return {0: self.index}

    def started(self, started: Started) -> None:
        self.heard.append(started)

    def prompt_scored(self, part: PromptLogprobs) -> None:
        self.heard.append(part)

    def token(self, token: TokenOut) -> None:
        if self.fault:
            raise ZeroDivisionError
        self.index += 1
        self.heard.append(token.token)

    def choice_ended(self, end: ChoiceEnd) -> None:
        self.heard.append(end)

    def told(self) -> None:
        self.heard.append("told")

    def attached(self, attached: Attached) -> None:
        self.heard.append(attached)

    def finished(self, finish: Finish) -> None:
        self.heard.append(finish)

    def rejected(self, reject: Reject) -> None:
        self.heard.append(reject)

    def lost(self, why: str) -> None:
        self.heard.append(("lost", why))

    def broke(self, error: Exception) -> None:
        self.heard.append(error)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lg-") as name:
        yield Path(name)


@pytest.fixture
async def worker(folder: Path) -> AsyncIterator[ScriptedWorker]:
    async with scripted_worker(folder) as serving:
        yield serving


@asynccontextmanager
async def linked(worker: ScriptedWorker, *, secret: bytes | None = None, **timing: float) -> AsyncIterator[Link]:
    link = Link(worker.registration, gateway_id="g1", secret=secret, greeted=lambda _: None, timing=LinkTiming(**timing))
    try:
        await until(lambda: link.up and worker.linked)
        yield link
    finally:
        await link.close()


def submit(request_id: str) -> Submit:
    return Submit(request_id=request_id, prompt=[1], sampling=Sampling(max_tokens=9), allowance=9, account="", share="")


def finish(request_id: str) -> Finish:
    return Finish(request_id=request_id, reason=FinishReason.LENGTH, counters=Counters())


def lost(ears: Ears) -> bool:
    return any(isinstance(heard, tuple) and heard[0] == "lost" for heard in ears.heard)


async def test_each_request_hears_what_is_its_own_and_once_a_frame_that_it_was_all(worker):
    async with linked(worker) as link:
        one, two = Ears(), Ears()
        link.submit(submit("r1"), one)
        link.submit(submit("r2"), two)
        worker.send(
            Tokens(
                started=[Started("r1", 0, 0.1)],
                tokens=[TokenOut("r1", 0, 0, 11), TokenOut("r2", 0, 0, 21), TokenOut("r9", 0, 0, 91), TokenOut("r1", 0, 1, 12)],
            ),
            Tokens(tokens=[TokenOut("r2", 0, 1, 22)], ends=[ChoiceEnd("r2", 0, FinishReason.STOP)]),
            finish("r2"),
        )
        await until(lambda: finish("r2") in two.heard)
        assert one.heard == [Started("r1", 0, 0.1), 11, 12, "told"]
        assert two.heard == [21, "told", 22, ChoiceEnd("r2", 0, FinishReason.STOP), "told", finish("r2")]
        assert link.pressure == 1


async def test_a_receivers_fault_ends_its_request_alone(worker):
    async with linked(worker) as link:
        bad, good = Ears(fault=True), Ears()
        link.submit(submit("r1"), bad)
        link.submit(submit("r2"), good)
        worker.send(Tokens(tokens=[TokenOut("r1", 0, 0, 1), TokenOut("r1", 0, 1, 1), TokenOut("r2", 0, 0, 2)]))
        await until(lambda: good.heard == [2, "told"])
        assert [type(heard) for heard in bad.heard] == [ZeroDivisionError]
        await until(lambda: Cancel(request_id="r1") in worker.told)


async def test_a_broken_link_is_lost_to_all_but_resumable_requests(worker):
    async with linked(worker) as link:
        plain, resumable = Ears(), Ears(resumable=True, index=3)
        link.submit(submit("r1"), plain)
        link.submit(submit("r2"), resumable)
        worker.hang_up()
        await until(lambda: lost(plain))
        await until(lambda: Attach(request_id="r2", next_index={0: 3}) in worker.told)
        # Until Attached, tokens of the request belong to whoever had it.
        worker.send(Tokens(tokens=[TokenOut("r2", 0, 0, 7)]))
        worker.send(Attached(request_id="r2", prompt_tokens=1, cached_tokens=0), Tokens(tokens=[TokenOut("r2", 0, 3, 8)]))
        await until(lambda: "told" in resumable.heard)
        assert resumable.heard == [Attached(request_id="r2", prompt_tokens=1, cached_tokens=0), 8, "told"]


async def test_a_restarted_worker_has_lost_its_requests(worker):
    async with linked(worker) as link:
        resumable = Ears(resumable=True)
        link.submit(submit("r1"), resumable)
        worker.epoch = "e2"
        worker.hang_up()
        await until(lambda: lost(resumable))
        await until(lambda: link.epoch == "e2")
        assert not any(isinstance(told, Attach) for told in worker.told)


async def test_a_worker_that_doesnt_come_back_has_lost_them_in_the_end(folder):
    ears = Ears(resumable=True)
    async with scripted_worker(folder) as worker:
        link = Link(
            worker.registration, gateway_id="g1", secret=None, greeted=lambda _: None, timing=LinkTiming(reattach_s=0.1, silence_s=20)
        )
        await until(lambda: link.up)
        link.submit(submit("r1"), ears)
    await until(lambda: lost(ears))
    with pytest.raises(LinkDown):
        link.submit(submit("r2"), Ears())
    await link.close()


async def test_closing_is_lost_to_all(worker):
    async with linked(worker) as link:
        plain, resumable = Ears(), Ears(resumable=True)
        link.submit(submit("r1"), plain)
        link.submit(submit("r2"), resumable)
    assert lost(plain)
    assert lost(resumable)


async def test_a_silent_worker_is_given_up(worker):
    async with linked(worker, silence_s=0.05) as link:
        ears = Ears()
        link.submit(submit("r1"), ears)

        def given_up() -> bool:
            link.check_alive()
            return lost(ears)

        await until(given_up)
        await until(lambda: worker.links == 2)


@pytest.mark.parametrize(
    "garbage", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02\xc1\xc1", b"\x00\x00\x00\x04\x93\xa4To"], ids=["endless", "no msgpack", "no frame"]
)
async def test_bytes_that_are_no_frame_break_the_link_and_it_is_made_again(worker, garbage):
    async with linked(worker):
        worker.send_raw(garbage)
        await until(lambda: worker.links == 2)


async def test_a_second_greeting_breaks_the_link(worker):
    async with linked(worker):
        worker.send(Challenge(nonce=b""))
        await until(lambda: worker.links == 2)


async def test_load_and_draining_are_known(worker):
    async with linked(worker) as link:
        worker.send(load(running=3, waiting=2))
        await until(lambda: link.load is not None)
        assert link.pressure == 5
        link.submit(submit("r1"), Ears())
        assert link.pressure == 6
        assert link.takes_requests
        worker.send(Draining())
        await until(lambda: not link.takes_requests)
        assert link.up


async def test_rejections_and_what_is_told_reach_their_end(worker):
    async with linked(worker) as link:
        ears = Ears()
        link.submit(submit("r1"), ears)
        link.tell(Allow(request_id="r1", allowance=12))
        await until(lambda: worker.told == [submit("r1"), Allow(request_id="r1", allowance=12)])
        reject = Reject(request_id="r1", code="queue_full", message="full")
        worker.send(reject)
        await until(lambda: ears.heard == [reject])
        assert link.pressure == 0


async def test_another_protocol_version_is_no_link(folder):
    async with scripted_worker(folder) as worker:
        worker.version = 99
        link = Link(worker.registration, gateway_id="g1", secret=None, greeted=lambda _: None, timing=LinkTiming())
        await until(lambda: worker.links >= 2)
        assert not link.up
        await link.close()


async def test_on_tcp_both_ends_prove_that_they_know_the_secret():
    async with scripted_tcp_worker(SECRET) as worker, linked(worker, secret=SECRET) as link:
        assert link.max_choices == 4


@pytest.mark.parametrize("secret", [None, b"x" * 32], ids=["none", "another"])
async def test_without_the_secret_there_is_no_link(secret, caplog):
    async with scripted_tcp_worker(SECRET) as worker:
        link = Link(worker.registration, gateway_id="g1", secret=secret, greeted=lambda _: None, timing=LinkTiming())
        await until(lambda: "no link to worker" in caplog.text)
        assert not link.up
        assert worker.links == 0
        await link.close()


async def test_a_worker_that_cannot_prove_itself_is_no_link(caplog):
    async with scripted_tcp_worker(SECRET) as worker:
        worker.secret = None  # it lets everybody in, and shows nothing
        link = Link(worker.registration, gateway_id="g1", secret=SECRET, greeted=lambda _: None, timing=LinkTiming())
        await until(lambda: "couldn't prove" in caplog.text)
        assert not link.up
        await link.close()
