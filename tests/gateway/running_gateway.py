"""A gateway's generations over a real worker process."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from gateway.dispatch.link import LinkTiming
from gateway.events import Delta, Event, Failed, Finished, GenerationRequest
from gateway.generation import Generation, Generations, Patience
from gateway.generation.admissions import Admissions
from inference.protocol.sampling import Sampling
from tests.gateway.scripted_admissions import digest_of

MODEL = "synthetic"
SAID = "the quick brown fox jumps over the lazy dog. "

_numbers = itertools.count(1)


def answer(prompt: str, count: int) -> str:
    """What the synthetic model says after this prompt."""
    return "".join(SAID[position % len(SAID)] for position in range(len(prompt), len(prompt) + count))


async def until(true: Callable[[], object], *, timeout_s: float = 20.0) -> None:
    """Wait for a condition that something else on the loop or in another process brings about."""
    async with asyncio.timeout(timeout_s):
        while not true():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def gateway(
    redis_url: str, admissions: Admissions, *, patience: Patience | None = None, timing: LinkTiming | None = None, workers: int = 1
) -> AsyncIterator[Generations]:
    """A gateway process's generations, opened, with its workers linked."""
    async with Redis.from_url(redis_url) as redis:
        generations = Generations(redis, admissions, patience=patience, timing=timing)
        await generations.open()
        try:
            await until(lambda: sum(link.up for link in generations.links) >= workers and generations.models())
            yield generations
        finally:
            await generations.close()


def request(
    *,
    prompt: str = "hello",
    max_tokens: int = 8,
    stop: tuple[str, ...] = (),
    key: str = "acme",
    resumable: bool = False,
    n: int = 1,
    request_id: str | None = None,
    **sampling: object,
) -> GenerationRequest:
    chosen = {"temperature": 0.0, "ignore_eos": True} | sampling
    return GenerationRequest(
        digest=digest_of(key),
        request_id=request_id or f"req{next(_numbers)}",
        endpoint="completions",
        model=MODEL,
        prompt=list(prompt.encode()),
        sampling=Sampling(max_tokens=max_tokens, n=n, **chosen),  # type: ignore[arg-type]
        stop=stop,
        resumable=resumable,
    )


async def collect(generation: Generation, *, timeout_s: float = 20.0) -> list[Event]:
    async with asyncio.timeout(timeout_s):
        return [event async for event in generation.events()]


def text_of(events: list[Event], choice: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta) and event.choice == choice)


def tokens_of(events: list[Event], choice: int = 0) -> list[int]:
    return [token for event in events if isinstance(event, Delta) and event.choice == choice for token in event.tokens]


def finished(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished), events[-1]
    return events[-1]


def failed(events: list[Event]) -> Failed:
    assert isinstance(events[-1], Failed), events[-1]
    return events[-1]
