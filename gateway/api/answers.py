"""From events to an answer, streamed or whole. What it looks like is the endpoint's `Shape`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.api import errors, limits
from gateway.api.connection import Connection
from gateway.api.errors import ApiError
from gateway.api.feed import Arrival, Feed
from gateway.api.sse import DONE, EventStream
from gateway.api.usage import Usage, usage_of
from gateway.events import ChoiceFinished, Delta, Failed, FinishCause, Finished, PromptScored, Started, StopReason, TokenLogprob
from inference.protocol.usage import Counters


@dataclass(slots=True)
class Choice:
    """One choice of a whole answer."""

    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    cause: FinishCause | None = None
    stop_reason: StopReason = None


class Shape(Protocol):
    """How an endpoint writes its answers. Every method but `whole` gives server-sent events, ready to be sent."""

    def opening(self) -> bytes:
        """What a stream begins with."""
        ...

    def prompt_scored(self, prompt: int, tokens: Sequence[TokenLogprob | None]) -> bytes:
        """A prompt's log-probabilities have come."""
        ...

    def delta(self, index: int, text: str, logprobs: Sequence[TokenLogprob]) -> bytes: ...

    def finish(self, index: int, cause: FinishCause, stop_reason: StopReason) -> bytes: ...

    def usage(self, usage: Usage) -> bytes: ...

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The body of an answer that isn't streamed."""
        ...


class _Batch:
    """One look's worth of events as one piece of stream: deltas of a choice joined into one chunk."""

    def __init__(self, shape: Shape, per_prompt: int) -> None:
        self._shape = shape
        self._per_prompt = per_prompt
        self._open: dict[int, tuple[list[str], list[TokenLogprob]]] = {}
        self.out: list[bytes] = []
        self.finished: list[Counters] = []
        self.failed: Failed | None = None

    def read(self, arrival: Arrival) -> None:
        event, first = arrival.event, arrival.prompt * self._per_prompt
        match event:
            case Delta():
                text, logprobs = self._open.setdefault(first + event.choice, ([], []))
                text.append(event.text)
                logprobs.extend(event.logprobs)
            case ChoiceFinished():
                index = first + event.choice
                self._flush(index)
                self.out.append(self._shape.finish(index, event.cause, event.stop_reason))
            case PromptScored():
                self.out.append(self._shape.prompt_scored(arrival.prompt, event.tokens))
            case Finished():
                self.finished.append(event.counters)
            case Failed():
                self.failed = event
            case Started():
                pass

    def _flush(self, index: int) -> None:
        text, logprobs = self._open.pop(index, ([], []))
        if logprobs or any(text):
            self.out.append(self._shape.delta(index, "".join(text), logprobs))

    def bytes(self) -> bytes:
        """All that is to be sent."""
        for index in list(self._open):
            self._flush(index)
        return b"".join(self.out)


async def stream(connection: Connection, feed: Feed, shape: Shape, *, per_prompt: int, include_usage: bool) -> None:
    """Answer with server-sent events. A failure before the first byte raises ApiError; after it, it is the stream's last event."""
    counters: list[Counters] = []
    pending = shape.opening()
    async with EventStream(connection, limits.headers(feed.limits)) as out:
        while arrivals := await feed.batch():
            batch = _Batch(shape, per_prompt)
            for arrival in arrivals:
                batch.read(arrival)
            counters += batch.finished
            if connection.gone:
                return
            if batch.failed is not None:
                if not connection.started:
                    raise errors.failed(batch.failed)
                await out.close(batch.bytes() + error_event(errors.failed(batch.failed)))
                return
            pending += batch.bytes()
            if len(counters) == feed.size:
                await out.close(pending + (shape.usage(usage_of(counters)) if include_usage else b"") + DONE)
                return
            await out.write(pending)
            pending = b""


def error_event(error: ApiError) -> bytes:
    """An error where a status can't be sent any more: the stream's end."""
    return b"data: " + error.body() + b"\n\n" + DONE


async def whole(connection: Connection, feed: Feed, shape: Shape, *, count: int, per_prompt: int) -> None:
    """Answer with one body when everything has been generated. A failure raises ApiError."""
    choices = [Choice() for _ in range(count)]
    counters: list[Counters] = []
    while arrivals := await feed.batch():
        for arrival in arrivals:
            match arrival.event:
                case Delta() as delta:
                    choice = choices[arrival.prompt * per_prompt + delta.choice]
                    choice.text.append(delta.text)
                    choice.logprobs.extend(delta.logprobs)
                case ChoiceFinished() as end:
                    choice = choices[arrival.prompt * per_prompt + end.choice]
                    choice.cause, choice.stop_reason = end.cause, end.stop_reason
                case PromptScored() as scored:
                    shape.prompt_scored(arrival.prompt, scored.tokens)
                case Finished() as finished:
                    counters.append(finished.counters)
                case Failed() as failure:
                    if connection.gone:
                        return
                    raise errors.failed(failure)
                case Started():
                    pass
    if not connection.gone:
        await connection.respond(200, shape.whole(choices, usage_of(counters)), limits.headers(feed.limits))
