"""One request's life over a real worker process: what is said, what is settled, and when."""

import asyncio
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway import generation
from gateway.admission.outcomes import Refused
from gateway.dispatch.link import LinkTiming
from gateway.events import ChoiceFinished, Delta, Started
from gateway.generation import Patience
from inference.protocol.usage import FinishReason
from tests.gateway.running_gateway import collect, failed, finished, gateway, request, text_of, tokens_of, until
from tests.gateway.scripted_admissions import ScriptedAdmissions, digest_of
from tests.inference.worker_process import expected, running_worker

SAID = "the quick brown fox jumps over the lazy dog. "


def said(prompt: str, count: int) -> str:
    """The synthetic model's answer."""
    start = len(prompt)
    return "".join(SAID[position % len(SAID)] for position in range(start, start + count))


async def test_a_request_streams_what_the_worker_says_and_is_settled_before_its_end_is_told(redis: Redis, redis_url: str, tmp_path: Path):
    admissions = ScriptedAdmissions()
    async with running_worker(redis_url, tmp_path) as worker, gateway(redis_url, admissions) as generations:
        assert [card.name for card in generations.models()] == ["synthetic"]
        assert generations.card("nobody") is None
        asked = request(max_tokens=8)
        running = await generations.start(asked)
        admissions.settling = asyncio.Event()
        events = []
        reader = asyncio.create_task(_read_into(events, running))
        await until(lambda: text_of(events) == said("hello", 8))
        assert not any(isinstance(event, ChoiceFinished) for event in events)
        admissions.settling.set()
        await reader
        assert events[0] == Started(prompt_tokens=5, cached_tokens=0)
        assert tokens_of(events) == expected(worker, count=8)
        assert events[-2] == ChoiceFinished(choice=0, cause="length")
        counters = finished(events).counters
        assert (counters.prompt_tokens, counters.generated_tokens, counters.billed_tokens, counters.wasted_tokens) == (5, 8, 8, 0)
        assert admissions.settled[asked.request_id] == (counters, FinishReason.LENGTH)
        assert generations.running == 0


async def _read_into(events: list, running: generation.Generation) -> None:
    async for event in running.events():
        events.append(event)
