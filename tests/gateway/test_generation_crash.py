"""Workers that die, stop and come back."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.events import ChoiceFinished, Delta, Event
from gateway.generation import ResponseNotFound, Unavailable
from tests.gateway.running_gateway import answer, collect, failed, finished, gateway, request, text_of, until
from tests.gateway.scripted_admissions import ScriptedAdmissions, digest_of
from tests.inference.worker_process import running_worker


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """pytest's own are too long for a Unix socket's path."""
    with tempfile.TemporaryDirectory(prefix="lg-") as folder:
        yield Path(folder)


async def test_a_killed_worker_ends_its_streams_as_lost_and_its_successor_serves(
    redis: Redis, redis_url: str, tmp_path: Path, short_folder: Path
):
    """G31: partial usage is told, no finish is made up, nothing is settled in the worker's place."""
    admissions = ScriptedAdmissions(tranche=4_000)
    socket = short_folder / "w1.sock"
    async with (
        running_worker(redis_url, tmp_path, model="synthetic:rate=100", socket=socket) as worker,
        gateway(redis_url, admissions) as generations,
    ):
        plain, resumable = (
            await generations.start(request(max_tokens=4_000)),
            await generations.start(request(max_tokens=4_000, resumable=True)),
        )
        seen: list[Event] = []
        async for event in plain.events():
            seen.append(event)
            if len(text_of(seen)) >= 5:
                break
        await worker.kill()
        events = seen + await collect(plain)
        failure = failed(events)
        assert failure.code == "worker_lost"
        assert failure.counters.generated_tokens == len(text_of(events)) >= 5
        assert failure.counters.prompt_tokens == 5
        assert not any(isinstance(event, ChoiceFinished) for event in events)
        assert admissions.settled == {}
        assert admissions.released == []
        with pytest.raises(Unavailable):
            await generations.start(request())
        async with running_worker(redis_url, tmp_path, model="synthetic:rate=100", socket=socket):
            lost = await collect(resumable, timeout_s=30)
            assert failed(lost).code == "worker_lost"
            with pytest.raises(ResponseNotFound):
                await generations.attach(resumable.request_id, digest=digest_of("acme"))
            await until(generations.models)
            assert text_of(await collect(await generations.start(request(max_tokens=5)))) == answer("hello", 5)


async def test_a_worker_told_to_stop_finishes_what_runs_and_takes_nothing_new(redis: Redis, redis_url: str, tmp_path: Path):
    admissions = ScriptedAdmissions(tranche=4_000)
    async with running_worker(redis_url, tmp_path, model="synthetic:rate=100") as worker, gateway(redis_url, admissions) as generations:
        running = await generations.start(request(max_tokens=100))
        ending = asyncio.create_task(worker.terminate())
        await until(lambda: next(iter(generations.links)).draining)
        with pytest.raises(Unavailable):
            await generations.start(request())
        assert not admissions.held.keys() - {running.request_id}
        assert text_of(await collect(running)) == answer("hello", 100)
        await ending
        await until(lambda: not list(generations.links))


async def test_requests_go_to_the_worker_that_is_left(redis: Redis, redis_url: str, tmp_path: Path):
    admissions = ScriptedAdmissions()
    async with (
        running_worker(redis_url, tmp_path, worker_id="w1") as one,
        running_worker(redis_url, tmp_path, worker_id="w2"),
        gateway(redis_url, admissions, workers=2) as generations,
    ):
        await until(lambda: all(generations._catalogue.of(link) for link in generations.links))
        used = set()
        for number in range(4):
            batch = [await generations.start(request(prompt=f"{number}" * 70, max_tokens=3)) for _ in range(4)]
            used |= {running.link.worker_id for running in batch}
            for running in batch:
                finished(await collect(running))
        assert used == {"w1", "w2"}
        await one.kill()
        await until(lambda: sum(link.up for link in generations.links) == 1)
        for _ in range(3):
            running = await generations.start(request(max_tokens=3))
            assert running.link.worker_id == "w2"
            assert any(isinstance(event, Delta) for event in await collect(running))
