"""Between links and engine: claims, journals, routes, keeps and ends streams. Everything here runs on the event loop, nothing waits."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from inference.engine import RequestRejected, StepOutput
from inference.journal import IdentityTooLong, Journal, JournalFull
from inference.leases import Claim, Leases
from inference.protocol.frames import (
    Allow,
    Attach,
    Cancel,
    Draining,
    Finish,
    Load,
    Pause,
    Reject,
    Submit,
    Tokens,
    encode,
)
from inference.protocol.usage import FinishReason
from inference.serving.engine_thread import Command, EngineThread, StepResult
from inference.serving.link import Link, Request
from inference.serving.stream import Stream
from inference.usage import UsageOutbox

log = logging.getLogger(__name__)

SLOW_READER = "slow reader: the gateway left too much unread"
SHUT_DOWN = "the worker shut down"

_RETRY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Grace:
    """How long what nobody listens to is kept."""

    orphan_s: float = 60.0
    """A resumable request whose link broke goes on for this long."""
    retention_s: float = 60.0
    """An ended resumable request can be attached to for this long."""


class Service:
    """Handles what links say and what the engine gives."""

    def __init__(self, *, engine: EngineThread, journal: Journal, leases: Leases, outbox: UsageOutbox, grace: Grace) -> None:
        self._engine = engine
        self._journal = journal
        self._leases = leases
        self._outbox = outbox
        self._grace = grace
        self._links: set[Link] = set()
        self._streams: dict[str, Stream] = {}
        self._unfinished = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._deserted = asyncio.Event()
        self._claims: set[asyncio.Task[None]] = set()
        self.draining = False

    # --- from links ------------------------------------------------------------------------------------------------------------

    def linked(self, link: Link) -> None:
        self._links.add(link)
        self._deserted.clear()
        link.send(encode(self.load))
        if self.draining:
            link.send_vital(encode(Draining()))

    def received(self, link: Link, frame: Request) -> None:
        match frame:
            case Submit():
                self._submit(link, frame)
            case Attach():
                self._attach(link, frame)
            case Allow() | Cancel() | Pause():
                self._command(frame)

    def unlinked(self, link: Link) -> None:
        """Cancel what can't be resumed; let the rest go on for a while."""
        self._links.discard(link)
        if not self._links:
            self._deserted.set()
        for request_id in list(link.request_ids):
            stream = self._streams[request_id]
            stream.point_to(None)
            if stream.resumable:
                stream.timer = asyncio.get_running_loop().call_later(self._grace.orphan_s, self._end_orphan, stream)
            else:
                self._command(Cancel(request_id=request_id))

    def _submit(self, link: Link, submit: Submit) -> None:
        request_id = submit.request_id
        if self.draining:
            link.send_vital(encode(Reject(request_id=request_id, code="draining", message="this worker takes no new requests")))
        elif request_id in self._streams:
            link.send_vital(encode(Reject(request_id=request_id, code="duplicate", message="a request of this id is known here already")))
        else:
            stream = Stream.of(submit, link)
            self._streams[request_id] = stream
            link.request_ids.add(request_id)
            self._unfinished += 1
            self._idle.clear()
            if submit.lease is None:
                self._admit(stream, submit)
            else:
                task = asyncio.create_task(self._claim(stream, submit))
                self._claims.add(task)
                task.add_done_callback(self._claims.discard)

    async def _claim(self, stream: Stream, submit: Submit) -> None:
        assert submit.lease is not None
        match await self._leases.claim(submit.request_id, submit.lease):
            case Claim.HELD:
                self._admit(stream, submit)
            case Claim.EXPIRED:
                self._reject(stream, "hold_expired", "the hold on the caller's limits is no longer there")
            case Claim.UNREACHABLE:
                self._reject(stream, "unavailable", "the worker can't reach Redis to claim the request", retry_after_s=_RETRY_S)

    def _admit(self, stream: Stream, submit: Submit) -> None:
        """From here on what the request computes is settled through the journal."""
        try:
            stream.slot = self._journal.open(submit.request_id, submit.account)
        except IdentityTooLong as error:
            self._reject(stream, "invalid", str(error), param="request_id")
        except JournalFull as error:
            self._reject(stream, "queue_full", str(error), retry_after_s=_RETRY_S)
        else:
            self._engine.put(submit)
            for command in stream.deferred:
                self._engine.put(command)
            stream.deferred.clear()

    def _command(self, command: Command) -> None:
        stream = self._streams.get(command.request_id)
        if stream is None or stream.finish is not None:
            return  # it ended while the command was on its way
        if stream.running:
            self._engine.put(command)
        else:
            stream.deferred.append(command)

    def _attach(self, link: Link, attach: Attach) -> None:
        stream = self._streams.get(attach.request_id)
        if stream is None or not stream.resumable:
            link.send_vital(encode(Reject(request_id=attach.request_id, code="not_found", message="no resumable request of this id")))
            return
        if stream.finish is None:
            stream.stop_timer()
            stream.point_to(link)
        link.send_vital(b"".join(map(encode, stream.replay(attach.next_index))))

    # --- from the engine -------------------------------------------------------------------------------------------------------

    def stepped(self, result: StepResult) -> None:
        """Journal first, then send: one Tokens frame for each link, then the ends."""
        for request_id, rejection in result.refused:
            self._refuse(self._streams[request_id], rejection)
        if result.output is None:
            return
        for request_id, counters in result.counters.items():
            stream = self._streams[request_id]
            assert stream.slot is not None, "only a running request is in a step"
            self._journal.record(stream.slot, counters)
        ended = [(self._streams[finished.request_id], self._finish(finished)) for finished in result.output.finished]
        overflowed = self._send_tokens(result.output)
        for stream, finish in ended:
            if stream.link is not None:
                lost = stream.link in overflowed
                stream.link.send_vital(encode(replace(finish, reason=FinishReason.ERROR, error=SLOW_READER) if lost else finish))
            self._retire(stream)

    def _finish(self, finished: Finish) -> Finish:
        """Into the journal with it, before anybody hears of it."""
        stream = self._streams[finished.request_id]
        assert stream.slot is not None, "it ran"
        reason = FinishReason.ERROR if stream.error else finished.reason
        event = self._journal.finish(stream.slot, finished.counters, reason=reason, occurred_at_ms=time.time_ns() // 1_000_000)
        self._outbox.publish(event)
        self._leases.release(stream.request_id)
        stream.finish = replace(finished, reason=reason, error=stream.error or finished.error)
        stream.slot = None
        self._one_less()
        return stream.finish

    def _send_tokens(self, output: StepOutput) -> set[Link]:
        """One frame for each link. Returns the links that couldn't take theirs."""
        frames: defaultdict[Link, Tokens] = defaultdict(Tokens)
        for started in output.started:
            stream = self._streams[started.request_id]
            stream.started = started
            if (link := self._listener(stream)) is not None:
                frames[link].started.append(started)
        for logprobs in output.prompt_logprobs:
            stream = self._streams[logprobs.request_id]
            if stream.resumable:
                stream.prompt_logprobs.append(logprobs)
            if (link := self._listener(stream)) is not None:
                frames[link].prompt_logprobs.append(logprobs)
        for token in output.tokens:
            stream = self._streams[token.request_id]
            if stream.resumable:
                stream.keep(token)
            if (link := self._listener(stream)) is not None:
                frames[link].tokens.append(token)
        for end in output.ends:
            stream = self._streams[end.request_id]
            stream.ends[end.choice] = end
            if (link := self._listener(stream)) is not None:
                frames[link].ends.append(end)
        overflowed = {link for link, frame in frames.items() if not link.send(encode(frame))}
        for link in overflowed:
            self._overflow(link)
        return overflowed

    @staticmethod
    def _listener(stream: Stream) -> Link | None:
        """Where the stream's tokens go: nowhere once some of them could not be sent."""
        return None if stream.error else stream.link

    def _overflow(self, link: Link) -> None:
        """End all of the link's requests: a stream with a gap in it is worth nothing."""
        log.warning("link to %s doesn't read; %d requests end", link.gateway_id, len(link.request_ids))
        for request_id in link.request_ids:
            stream = self._streams[request_id]
            if stream.finish is None:
                self._abandon(stream, SLOW_READER)

    # --- ends ------------------------------------------------------------------------------------------------------------------

    def _refuse(self, stream: Stream, rejection: RequestRejected) -> None:
        assert stream.slot is not None, "it was admitted"
        self._journal.discard(stream.slot)
        stream.slot = None
        self._reject(stream, rejection.code, rejection.message, param=rejection.param, retry_after_s=rejection.retry_after_s)

    def _reject(self, stream: Stream, code: str, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        self._leases.release(stream.request_id)
        if stream.link is not None:
            rejection = Reject(request_id=stream.request_id, code=code, message=message, param=param, retry_after_s=retry_after_s)
            stream.link.send_vital(encode(rejection))
        self._forget(stream)
        self._one_less()

    def _abandon(self, stream: Stream, why: str) -> None:
        """End it by the worker's own decision, as an error that says why."""
        if stream.error is None:
            stream.error = why
            self._command(Cancel(request_id=stream.request_id, reason=FinishReason.ERROR))

    def _end_orphan(self, stream: Stream) -> None:
        stream.timer = None
        self._command(Cancel(request_id=stream.request_id))

    def _retire(self, stream: Stream) -> None:
        """Ended: keep it for a late Attach if it is of that kind."""
        stream.stop_timer()
        stream.point_to(None)
        if stream.resumable:
            stream.timer = asyncio.get_running_loop().call_later(self._grace.retention_s, self._forget, stream)
        else:
            self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        stream.stop_timer()
        stream.point_to(None)
        del self._streams[stream.request_id]

    def _one_less(self) -> None:
        self._unfinished -= 1
        if not self._unfinished:
            self._idle.set()

    # --- load and drain --------------------------------------------------------------------------------------------------------

    @property
    def load(self) -> Load:
        return replace(self._engine.load, draining=self.draining)

    def tell_load(self) -> None:
        """Send the load to every gateway that reads."""
        frame = encode(self.load)
        for link in self._links:
            link.send(frame)

    async def drain(self, *, timeout_s: float, at_once: asyncio.Event) -> None:
        """Refuse what is new, let what runs come to its end; past the time, or when asked again, end the rest as errors that say so."""
        self.draining = True
        for link in self._links:
            link.send_vital(encode(Draining()))
        if self._unfinished:
            await _first_of(self._idle, at_once, timeout_s=timeout_s)
        for stream in list(self._streams.values()):
            if stream.finish is None:
                self._abandon(stream, SHUT_DOWN)
        await self._idle.wait()

    async def close_links(self, *, timeout_s: float) -> None:
        """Let the gateways read what is queued for them, then close. Who doesn't read it in time loses it."""
        for link in self._links:
            link.close()
        if self._links:
            await _first_of(self._deserted, timeout_s=timeout_s)
        for link in self._links:
            link.abort("unread as the worker shut down")


async def _first_of(*events: asyncio.Event, timeout_s: float) -> None:
    waits: Iterable[asyncio.Task[object]] = [asyncio.create_task(event.wait()) for event in events]
    _, pending = await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
