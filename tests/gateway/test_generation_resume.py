"""A resumable generation is taken over: by the same process or another, by its owner only, without a gap and without a duplicate."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.events import ChoiceFinished, Delta, Event, Failed
from gateway.generation import AdmissionRefused, Generation, Generations, Patience, ResponseNotFound
from tests.gateway.running_gateway import answer, collect, failed, finished, gateway, request, text_of, tokens_of, until
from tests.gateway.scripted_admissions import ScriptedAdmissions, digest_of
from tests.inference.worker_process import WorkerProcess, expected, running_worker

pytestmark = pytest.mark.asyncio(loop_scope="module")

ACME = digest_of("acme")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerProcess]:
    home = tmp_path_factory.mktemp("worker")
    async with running_worker(redis_url, home, model="synthetic:rate=200") as process:
        yield process


@pytest.fixture
def admissions() -> ScriptedAdmissions:
    return ScriptedAdmissions()


@pytest_asyncio.fixture(loop_scope="module")
async def first(redis_url: str, worker: WorkerProcess, admissions: ScriptedAdmissions) -> AsyncIterator[Generations]:
    async with gateway(redis_url, admissions) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def second(redis_url: str, worker: WorkerProcess, admissions: ScriptedAdmissions) -> AsyncIterator[Generations]:
    async with gateway(redis_url, admissions) as opened:
        yield opened


async def read(running: Generation, tokens: int) -> list[Event]:
    """So many tokens or a few more."""
    events: list[Event] = []
    async for event in running.events():
        events.append(event)
        if len(tokens_of(events)) >= tokens:
            break
    return events


def next_index(events: list[Event]) -> dict[int, int]:
    return {event.choice: event.next_index for event in events if isinstance(event, Delta)}


async def test_another_process_goes_on_where_the_reader_was(first, second, admissions, worker):
    running = await first.start(request(max_tokens=120, resumable=True), note=b"whose it is")
    before = await read(running, 30)
    taken = await second.attach(running.request_id, digest=ACME, next_index=next_index(before))
    assert taken.note == b"whose it is"
    after = await collect(taken)
    assert tokens_of(before) + tokens_of(after) == expected(worker, count=120)
    assert text_of(before) + text_of(after) == answer("hello", 120)
    assert after[-2] == ChoiceFinished(choice=0, cause="length")
    assert finished(after).counters.billed_tokens == 120
    assert running.request_id in admissions.settled


async def test_whoever_had_it_before_is_told_and_lets_go(first, second):
    running = await first.start(request(max_tokens=700, resumable=True))
    reader = asyncio.create_task(collect(running))
    taken = await second.attach(running.request_id, digest=ACME)
    assert isinstance((await reader)[-1], Failed)
    assert running.superseded
    assert first.running == 0
    await taken.abort()
    failed(await collect(taken))


async def test_the_same_process_takes_it_over_from_its_own_earlier_connection(first):
    running = await first.start(request(max_tokens=100, resumable=True))
    before = await read(running, 10)
    running.detach()
    taken = await first.attach(running.request_id, digest=ACME, next_index=next_index(before))
    assert running.superseded
    assert text_of(before) + text_of(await collect(taken)) == answer("hello", 100)
    assert first.running == 0


async def test_the_deltas_are_the_same_ones_every_time(first, second):
    running = await first.start(request(max_tokens=50, resumable=True, stop=(answer("hello", 40)[-3:],)))
    once = await collect(running)
    again = await collect(await second.attach(running.request_id, digest=ACME))
    assert [event for event in once if isinstance(event, Delta)] == [event for event in again if isinstance(event, Delta)]
    assert once[-2:] == again[-2:]


async def test_without_a_reader_it_goes_on_extends_and_is_settled(first, second, admissions):
    admissions.tranche = 4
    running = await first.start(request(max_tokens=150, resumable=True))
    running.detach()
    await until(lambda: running.request_id in admissions.settled)
    assert text_of(await collect(await second.attach(running.request_id, digest=ACME))) == answer("hello", 150)


async def test_a_closed_process_leaves_it_with_the_worker(redis_url, worker, admissions, second):
    admissions.tranche = 500
    async with gateway(redis_url, admissions) as closing:
        running = await closing.start(request(max_tokens=150, resumable=True))
        before = await read(running, 10)
    after = await collect(await second.attach(running.request_id, digest=ACME, next_index=next_index(before)))
    assert text_of(before) + text_of(after) == answer("hello", 150)


async def test_the_new_reader_extends_the_hold_as_the_old_one_did(redis_url, worker, admissions, second):
    admissions.tranche = 8
    async with gateway(redis_url, admissions) as closing:
        running = await closing.start(request(max_tokens=150, resumable=True))
        await read(running, 2)
    assert text_of(await collect(await second.attach(running.request_id, digest=ACME))) == answer("hello", 150)


async def test_a_broken_link_is_mended_and_the_stream_goes_on(first):
    running = await first.start(request(max_tokens=200, resumable=True))
    before = await read(running, 20)
    link = running.link
    link._connection.abort("the test broke it")
    after = await collect(running)
    assert text_of(before) + text_of(after) == answer("hello", 200)
    finished(after)


async def test_a_broken_link_ends_what_cannot_be_resumed(first):
    """G32: a dropped connection is no finish."""
    running = await first.start(request(max_tokens=400))
    await read(running, 20)
    running.link._connection.abort("the test broke it")
    events = await collect(running)
    assert failed(events).code == "worker_lost"
    assert not any(isinstance(event, ChoiceFinished) for event in events)
    await until(first.models)


async def test_a_rival_finds_nothing_and_changes_nothing(first, second):
    running = await first.start(request(max_tokens=100, resumable=True))
    for digest, error in ((digest_of("rival"), ResponseNotFound), (digest_of("stranger"), AdmissionRefused)):
        with pytest.raises(error) as refusal:
            await second.attach(running.request_id, digest=digest)
        assert running.request_id not in str(refusal.value)
    with pytest.raises(ResponseNotFound) as unknown:
        await second.attach("resp_unknown", digest=ACME)
    with pytest.raises(ResponseNotFound, match=str(unknown.value)):
        await second.attach(running.request_id, digest=digest_of("rival"))
    assert text_of(await collect(running)) == answer("hello", 100)


async def test_what_isnt_resumable_cannot_be_attached_to(first, second):
    running = await first.start(request(max_tokens=100))
    with pytest.raises(ResponseNotFound):
        await second.attach(running.request_id, digest=ACME)
    finished(await collect(running))


async def test_a_reader_that_never_comes_back_is_waited_for_only_so_long(redis_url, worker, admissions):
    admissions.tranche = 4_000
    async with gateway(redis_url, admissions, patience=Patience(orphan_grace_s=0.2)) as generations:
        running = await generations.start(request(max_tokens=4_000, resumable=True))
        running.detach()
        await until(running.done.is_set)
        counters, _ = admissions.settled[running.request_id]
        assert 0 < counters.billed_tokens < 4_000


async def test_a_stop_tells_everything_that_was_generated(first, second):
    running = await first.start(request(max_tokens=600, resumable=True))
    before = await read(running, 10)
    running.stop()
    events = before + await collect(running)
    counters = failed(events).counters
    assert failed(events).code == "cancelled"
    assert len(tokens_of(events)) == counters.billed_tokens < 600
    again = await collect(await second.attach(running.request_id, digest=ACME))
    assert tokens_of(again) == tokens_of(events)
    assert failed(again).code == "cancelled"


async def test_of_many_who_attach_at_once_one_has_it_and_the_others_are_told(first):
    running = await first.start(request(max_tokens=200, resumable=True))
    taken = await asyncio.gather(*(first.attach(running.request_id, digest=ACME) for _ in range(8)))
    ends = [await collect(one) for one in (running, *taken)]
    assert [one.superseded for one in (running, *taken)].count(False) == 1
    for one, events in zip((running, *taken), ends, strict=True):
        if one.superseded:
            assert isinstance(events[-1], Failed)
        else:
            assert text_of(events) == answer("hello", 200)
