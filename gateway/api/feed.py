"""The generations behind one HTTP request: started together, read together, aborted together."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from gateway import generation
from gateway.admission.outcomes import LimitState
from gateway.api import errors, limits
from gateway.api.connection import Connection
from gateway.events import Event, Failed, Finished, GenerationRequest

MAX_WAITING_EVENTS = 256
"""Events read ahead of a client that reads slowly; past it the generation itself is left waiting."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event, and which of the request's prompts it belongs to."""

    prompt: int
    event: Event


class Feed:
    """Events of one or more generations in batches: everything that has arrived since the last look.

    Use as an asynchronous context: on leaving it, whatever hasn't come to its end is aborted. A client that hangs up aborts at once;
    the generations then end with `Failed`.
    """

    def __init__(self, connection: Connection, generations: Sequence[generation.Generation]) -> None:
        self._connection = connection
        self._generations = generations
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._waiting: list[Arrival] = []
        self._error: BaseException | None = None
        self._running = len(generations)
        self._ended: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(cls, connection: Connection, service: generation.Generations, requests: Sequence[GenerationRequest]) -> "Feed":
        """Start all generations, or none. Raises ApiError when one isn't let in."""
        connection.key_checked = True
        return cls(connection, await _start(service, requests))

    @property
    def size(self) -> int:
        """How many generations there are."""
        return len(self._generations)

    @property
    def limits(self) -> LimitState:
        """What the key has left after the last of them was let in."""
        return self._generations[-1].limits

    async def __aenter__(self) -> "Feed":
        self._watcher = asyncio.create_task(self._watch())
        for prompt, one in enumerate(self._generations):
            task = asyncio.create_task(self._pump(prompt, one))
            task.add_done_callback(self._pump_ended)
            self._tasks.append(task)
        return self

    async def __aexit__(self, *exception: object) -> None:
        if not self._connection.gone:
            self._watcher.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(self._watcher, *self._tasks, return_exceptions=True)
        await self._abort()

    async def _watch(self) -> None:
        await self._connection.disconnected()
        if self._connection.gone:
            await self._abort()

    async def _abort(self) -> None:
        for prompt, one in enumerate(self._generations):
            if prompt not in self._ended:
                await one.abort()

    async def _pump(self, prompt: int, one: generation.Generation) -> None:
        async for event in one.events():
            if isinstance(event, Finished | Failed):
                self._ended.add(prompt)
            self._waiting.append(Arrival(prompt, event))
            self._arrived.set()
            if len(self._waiting) >= MAX_WAITING_EVENTS:
                self._room.clear()
                await self._room.wait()
        if prompt not in self._ended:
            raise RuntimeError("a generation's events ended without Finished or Failed")

    def _pump_ended(self, task: asyncio.Task[None]) -> None:
        self._running -= 1
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
        self._arrived.set()

    async def batch(self) -> list[Arrival]:
        """Everything that has arrived, at least one event; empty once all generations have ended."""
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if not self._running:
                return []
            self._arrived.clear()
            await self._arrived.wait()
        batch, self._waiting = self._waiting, []
        self._room.set()
        return batch


async def _start(service: generation.Generations, requests: Sequence[GenerationRequest]) -> list[generation.Generation]:
    try:
        return await service.start_all(requests)
    except generation.AdmissionRefused as error:
        headers = () if error.refused.limits is None else limits.headers(error.refused.limits)
        raise errors.refused(error.refused, model=requests[0].model, headers=headers) from error
    except generation.Invalid as error:
        raise errors.ApiError(error.message, param=error.param, code="invalid_value") from error
