"""The engine's thread obeys, delivers on the event loop, wakes for deadlines, and says so when the engine breaks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from inference.config import EngineConfig
from inference.engine import Engine
from inference.models.synthetic import Script, SyntheticModel
from inference.protocol.frames import Finish, Pause
from inference.protocol.usage import FinishReason
from inference.serving.engine_thread import Command, EngineThread, StepResult
from tests.inference.worker_process import submit


class Received:
    """What the event loop gets."""

    def __init__(self) -> None:
        self.results: asyncio.Queue[StepResult] = asyncio.Queue()
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def finish(self) -> Finish:
        async with asyncio.timeout(20):
            while True:
                result = await self.results.get()
                if result.output is not None and result.output.finished:
                    return result.output.finished[0]


@asynccontextmanager
async def running(engine: Engine, *commands: Command) -> AsyncIterator[tuple[EngineThread, Received]]:
    """The thread, these commands before its first step."""
    received = Received()
    thread = EngineThread(engine, loop=asyncio.get_running_loop())
    for command in commands:
        thread.put(command)
    thread.start(deliver=received.results.put_nowait, failed=received.failed.set_result)
    try:
        yield thread, received
    finally:
        thread.stop()


@pytest.fixture
def engine() -> Engine:
    return Engine(SyntheticModel(Script()), EngineConfig(blocks=64, queue_timeout_s=0.1, max_sequences=1))


async def test_totals_of_every_step_come_with_its_tokens(engine: Engine) -> None:
    async with running(engine) as (thread, received):
        thread.put(submit("r1", max_tokens=5))
        generated = []
        while not (result := await received.results.get()).output.finished:  # type: ignore[union-attr]
            generated.append(result.counters["r1"].generated_tokens)
        assert generated == [1, 2, 3, 4]
        assert "r1" not in result.counters
        assert thread.load.tokens_generated == 5


async def test_refused_submit_comes_back_and_the_next_one_runs(engine: Engine) -> None:
    async with running(engine) as (thread, received):
        bad = submit("bad")
        bad.prompt.append(100_000)
        thread.put(bad)
        ((request_id, rejection),) = (await received.results.get()).refused
        assert (request_id, rejection.code) == ("bad", "invalid")
        thread.put(submit("good"))
        assert (await received.finish()).reason is FinishReason.LENGTH


async def test_it_wakes_for_a_deadline_with_nothing_to_compute(engine: Engine) -> None:
    async with running(engine, submit("r1"), Pause(request_id="r1", paused=True)) as (_, received):
        assert (await received.finish()).reason is FinishReason.TIMEOUT


async def test_broken_engine_is_reported_on_the_loop(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("no more")

    monkeypatch.setattr(engine, "step", broken)
    async with running(engine) as (thread, received):
        thread.put(submit("r1"))
        async with asyncio.timeout(20):
            assert str(await received.failed) == "no more"


async def test_engine_waits_for_a_loop_that_is_behind(engine: Engine) -> None:
    async with running(engine) as (thread, received):
        thread.put(submit("r1", max_tokens=500))
        first = await received.results.get()
        del first
        assert received.results.qsize() <= 4  # more can't have been given without this loop having its turn
        assert (await received.finish()).counters.generated_tokens == 500


async def test_output_that_nobody_can_deal_with_is_reported_and_the_thread_still_stops(engine: Engine) -> None:
    def undeliverable(result: StepResult) -> None:
        raise RuntimeError("no such stream")

    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    thread = EngineThread(engine, loop=asyncio.get_running_loop())
    thread.put(submit("r1", max_tokens=1))
    thread.start(deliver=undeliverable, failed=failed.set_result)
    async with asyncio.timeout(20):
        assert str(await failed) == "no such stream"
    thread.stop()
