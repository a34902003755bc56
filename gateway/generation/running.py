"""One request from its submission to its settlement. What its worker says becomes events; what they call for is sent back."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from redis.exceptions import RedisError

from gateway.admission.outcomes import LimitState
from gateway.dispatch.link import Link
from gateway.events import Delta, Event, Failed, FailureCode, Finished, GenerationRequest, PromptScored, TokenLogprob
from gateway.events import Started as StartedEvent
from gateway.generation.admissions import Admissions
from gateway.generation.allowance import Allowance
from gateway.generation.catalogue import ServedModel
from gateway.generation.choice import Choice
from gateway.generation.hold import Ending, Hold
from gateway.generation.responses import Responses
from gateway.generation.timings import Timings
from gateway.text import TextStream, token_logprob
from inference.protocol.frames import Allow, Attached, Cancel, ChoiceEnd, Finish, Pause, PromptLogprobs, Reject, Started, TokenOut
from inference.protocol.usage import Counters, FinishReason

log = logging.getLogger(__name__)

_MESSAGES: dict[FailureCode, str] = {
    "engine_error": "The engine failed on this request.",
    "worker_lost": "The engine process that ran this request is gone. What it had generated is lost; send the request again.",
    "timeout": "The request waited for too long.",
    "cancelled": "The request was cancelled.",
    "slow_reader": "The client read too slowly.",
    "revoked": "The key that this request came with has been revoked or suspended.",
    "hold_lost": "The gateway had to rebuild its limits and this request's part in them is lost. Send the request again.",
}


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a generation waits for others."""

    accept_s: float = 5.0
    """For the worker's first word; past it the request counts as accepted and waits in the worker's queue."""
    unread_events: int = 1024
    """So many unread events pause the generation at the worker."""
    slow_reader_s: float = 60.0
    """A generation paused for so long has no reader worth waiting for."""
    cancel_s: float = 10.0
    """For the worker's last word after a cancel."""
    orphan_grace_s: float = 60.0
    """A resumable generation goes on for so long without a reader."""


class Generation:
    """One running request. `events` has one reader; the generation itself goes on at the worker's pace and is settled whoever reads."""

    def __init__(
        self,
        request: GenerationRequest,
        *,
        model: ServedModel,
        link: Link,
        allowance: Allowance,
        admissions: Admissions,
        patience: Patience,
        ended: "Callable[[Generation], None]",
        limits: LimitState,
        responses: Responses | None = None,
        prompt_tokens: int | None = None,
        note: bytes = b"",
        counted: bool = True,
    ) -> None:
        self.request = request
        self.limits = limits
        self.note = note
        """What was given to `start`, opaque here."""
        self.link = link
        self.resumable = request.resumable
        self.quiet_since = time.monotonic()
        self.superseded = False
        """Somebody else has attached to it: nothing of it comes here any more."""
        self.done = asyncio.Event()
        """Settled or lost; nothing more will happen."""
        self._model = model
        self._hold = Hold(
            request.request_id,
            allowance,
            admissions,
            responses=responses,
            granted=self._granted,
            spent=self._spent,
            ended=self._hold_ended,
            broke=self._hold_broke,
        )
        self._admissions = admissions
        self._patience = patience
        self._on_end = ended
        self._responses = responses
        self._timings = Timings(model.card.name, request.endpoint, counted=counted)
        self._generated = 0
        sampling = request.sampling
        ending = set(sampling.stop_token_ids) if sampling.ignore_eos else {*sampling.stop_token_ids, *model.card.eos_token_ids}
        self._choices = [Choice(index, self._text(index), ending=ending) for index in range(sampling.n)]
        self._counters = Counters(prompt_tokens=len(request.prompt) if prompt_tokens is None else prompt_tokens)
        self._prompt_scores: list[TokenLogprob | None] = []
        self._announced = False
        self._touched: set[int] = set()
        self._events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._muted = False
        """Nobody reads deltas: after abort or detach."""
        self._from: Mapping[int, int] = {}
        """Deltas up to these indices are known to the reader."""
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._ending_as: FailureCode | None = None
        """Why the gateway itself cancelled it."""
        self._ending_message: str | None = None
        self._settling: asyncio.Task[None] | None = None
        self._accepted: asyncio.Future[Reject | None] = asyncio.get_running_loop().create_future()
        """The worker's first word."""

    def _text(self, index: int) -> TextStream:
        request = self.request
        return TextStream(
            self._model.tokenizer,
            choice=index,
            prompt=request.prompt,
            stop=request.stop,
            include_stop=request.include_stop,
            min_tokens=request.sampling.min_tokens,
        )

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def allowance(self) -> int:
        """Tokens that may be generated so far."""
        return self._hold.allowance

    @property
    def unread(self) -> int:
        """Events that wait for the reader."""
        return len(self._events)

    @property
    def over(self) -> bool:
        """Its worker has said its last word, or is gone."""
        return self._settling is not None or self.done.is_set()

    # --- its reader ------------------------------------------------------------------------------------------------------------

    async def events(self) -> AsyncIterator[Event]:
        """Everything it says, in order; the last event is Finished or Failed."""
        while True:
            while self._events:
                event = self._events.popleft()
                if self._paused and len(self._events) <= self._patience.unread_events // 4:
                    self._unpause()
                yield event
                if isinstance(event, Finished | Failed):
                    return
            self._wake.clear()
            await self._wake.wait()

    async def abort(self) -> None:
        """End it now: its reader is gone. What was computed is billed. Idempotent; does nothing to one that has ended."""
        self.cancel("cancelled")

    def cancel(self, code: FailureCode, message: str | None = None) -> None:
        """End it now, as a failure of this kind. Deltas that weren't read are dropped."""
        if not self.over and self._ending_as is None:
            self._mute()
            self.stop(code, message)

    def stop(self, code: FailureCode = "cancelled", message: str | None = None) -> None:
        """End it, as a failure of this kind, once everything that was generated is told."""
        if self.over or self._ending_as is not None:
            return
        self._ending_as = code
        self._ending_message = message
        self._hold.stop()
        self.link.tell(Cancel(request_id=self.request_id))
        self._after(self._patience.cancel_s, self._give_up)

    def detach(self) -> None:
        """Its reader has left but may come back, here or elsewhere: go on without one for a while."""
        assert self.resumable
        if not self.over and self._ending_as is None:
            self._mute()
            self._after(self._patience.orphan_grace_s, self.cancel, "cancelled")

    def supersede(self) -> None:
        """Its stream goes elsewhere from now on."""
        if self.over:
            return
        self.superseded = True
        self._accept(None)
        self.link.forget(self.request_id, self)
        self._conclude(Failed(code="cancelled", message="The response is being read by another connection now.", counters=self._counters))

    # --- before it runs --------------------------------------------------------------------------------------------------------

    async def first_word(self) -> Reject | None:
        """Wait until the worker has refused it (the refusal) or shown that it hasn't, for a bounded time (None)."""
        done, _ = await asyncio.wait((self._accepted,), timeout=self._patience.accept_s)
        if done:
            return self._accepted.result()
        self._accept(None)
        return None

    def withdraw(self) -> None:
        """It was never sent."""
        if not self.done.is_set():
            self._accept(None)
            self._close()

    def skip(self, next_index: Mapping[int, int]) -> None:
        """Leave out deltas up to these token indices: the reader has them."""
        self._from = dict(next_index)

    def _accept(self, word: Reject | None) -> bool:
        first = not self._accepted.done()
        if first:
            self._accepted.set_result(word)
        return first

    # --- Receiver: what the link says ------------------------------------------------------------------------------------------

    def next_index(self) -> dict[int, int]:
        return {choice.index: choice.generated for choice in self._choices if choice.generated}

    def started(self, started: Started) -> None:
        self._accept(None)
        self._counters.queue_s = started.queue_s
        self._announce(started.cached_tokens)

    def attached(self, attached: Attached) -> None:
        self._accept(None)
        self.quiet_since = time.monotonic()
        self._counters.prompt_tokens = attached.prompt_tokens
        self._announce(attached.cached_tokens)
        self._repeat()

    def prompt_scored(self, part: PromptLogprobs) -> None:
        if part.start != len(self._prompt_scores):
            return  # told again after an attach
        tokenizer = self._model.tokenizer
        for offset, (logprob, top) in enumerate(zip(part.logprobs, part.top_logprobs, strict=True)):
            token = self.request.prompt[part.start + offset]
            self._prompt_scores.append(None if logprob is None else token_logprob(tokenizer, token, logprob, top or []))
        if len(self._prompt_scores) == len(self.request.prompt):
            self._emit(PromptScored(tokens=tuple(self._prompt_scores)))

    def token(self, token: TokenOut) -> None:
        choice = self._choices[token.choice]
        known = choice.generated
        cut = choice.push(token)
        if choice.generated == known:
            return
        self._generated += 1
        if cut:
            self._cut(choice)
        elif self.resumable:
            self._say(choice.take())  # a delta for every token, whatever frames they came in: a resumed stream has the same ones
        else:
            self._touched.add(token.choice)

    def choice_ended(self, end: ChoiceEnd) -> None:
        choice = self._choices[end.choice]
        if choice.finished is None and end.reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._say(choice.end(end, stop_token_ids=self.request.sampling.stop_token_ids))
            self._choice_finished(choice)

    def told(self) -> None:
        self._accept(None)
        now = time.monotonic()
        self.quiet_since = now
        if self._generated:
            self._timings.tokens_came(now)
        for index in self._touched:
            if self._choices[index].finished is None:
                self._say(self._choices[index].take())
        self._touched.clear()
        if self._ending_as is None:
            self._hold.mind(self._generated)
            self._mind_reader()

    def finished(self, finish: Finish) -> None:
        self._accept(None)
        self._counters = finish.counters
        self._settling = asyncio.create_task(self._settle(finish))

    def rejected(self, reject: Reject) -> None:
        """Never admitted by the worker. Before `start` has returned, `start` deals with it."""
        if self._accept(reject):
            self._close()
        elif self.resumable and reject.code == "not_found":
            self.lost("the worker no longer has it")  # it was on its way as the link broke
        else:
            self._settling = asyncio.create_task(self._settle_rejected(reject))

    def lost(self, why: str) -> None:
        """The worker settles from its journal as it comes back: nothing is settled here, and no finish is made up."""
        log.warning("request %s: its worker is lost: %s", self.request_id, why)
        self._accept(None)
        self._fail(self._ending_as or "worker_lost")

    def broke(self, error: Exception) -> None:
        """A fault of this gateway's own while it read the worker's words. The link has cancelled the request."""
        log.error("request %s ends with an error: %r", self.request_id, error)
        self._accept(None)
        self._fail("engine_error")

    # --- what its words call for -----------------------------------------------------------------------------------------------

    def _announce(self, cached_tokens: int) -> None:
        self._counters.cached_tokens = cached_tokens
        if not self._announced:
            self._announced = True
            self._emit(StartedEvent(prompt_tokens=self._counters.prompt_tokens, cached_tokens=cached_tokens))

    def _say(self, delta: Delta | None) -> None:
        if delta is not None and delta.next_index > self._from.get(delta.choice, 0):
            self._emit(delta)

    def _cut(self, choice: Choice) -> None:
        """A stop string was completed: what the choice generated past it is wasted."""
        self._say(choice.end_by_cut())
        self._tell_cut(choice)
        self._choice_finished(choice)

    def _tell_cut(self, choice: Choice) -> None:
        delivered = {choice.index: choice.delivered}
        self.link.tell(Cancel(request_id=self.request_id, reason=FinishReason.STOP, choice=choice.index, delivered=delivered))

    def _choice_finished(self, choice: Choice) -> None:
        """The last choice's end is told with the whole request's, when that is settled: whoever hears it may call again at once."""
        if any(other.finished is None for other in self._choices):
            self._tell_end(choice)

    def _tell_end(self, choice: Choice) -> None:
        if choice.finished is not None and not choice.told:
            choice.told = True
            self._emit(choice.finished)

    def _granted(self, allowance: int) -> None:
        self.link.tell(Allow(request_id=self.request_id, allowance=allowance))

    def _spent(self) -> None:
        """A budget has ended, and its last token is here."""
        delivered = {choice.index: choice.delivered for choice in self._choices}
        self.link.tell(Cancel(request_id=self.request_id, reason=FinishReason.BUDGET, delivered=delivered))

    def _hold_ended(self, why: Ending) -> None:
        """It will never be extended: what was generated so far is told, and then why there is no more."""
        self.stop("revoked" if why == "revoked" else "hold_lost")

    def _hold_broke(self, error: Exception) -> None:
        self.link.forget(self.request_id, self)
        self.link.tell(Cancel(request_id=self.request_id))
        self.broke(error)

    def _repeat(self) -> None:
        """Say again what may have been lost with the link: all of it may be heard twice."""
        if self._ending_as is not None:
            self.link.tell(Cancel(request_id=self.request_id))
            return
        self.link.tell(Pause(request_id=self.request_id, paused=self._paused))
        for choice in self._choices:
            if choice.cut:
                self._tell_cut(choice)
        self._hold.repeat()

    def _mind_reader(self) -> None:
        if not self._paused and len(self._events) >= self._patience.unread_events:
            self._paused = True
            self.link.tell(Pause(request_id=self.request_id, paused=True))
            self._after(self._patience.slow_reader_s, self.cancel, "slow_reader")

    def _unpause(self) -> None:
        self._paused = False
        self._stop_timer()
        self.link.tell(Pause(request_id=self.request_id, paused=False))

    # --- its end ---------------------------------------------------------------------------------------------------------------

    async def _settle(self, finish: Finish) -> None:
        """Settle first, then tell: the slot is free before anybody knows."""
        self._hold.stop()
        try:
            await self._admissions.settle(self.request_id, finish.counters, finish.reason)
            if self._responses is not None:
                await self._responses.ended(self.request_id)
        except Exception:
            log.exception("request %s isn't settled yet, the flusher will do it", self.request_id)
        failure = self._failure_of(finish)
        if failure is not None:
            if finish.error:
                log.error("request %s failed in the engine: %s", self.request_id, finish.error)
            self._fail(failure)
            return
        unfinished = [choice for choice in self._choices if choice.finished is None]
        for choice in unfinished:
            self._say(choice.end_by_budget())
        for choice in self._choices:
            self._tell_end(choice)
        self._conclude(Finished(counters=finish.counters))

    def _failure_of(self, finish: Finish) -> FailureCode | None:
        """None if it came to its end. A finish that leaves a choice open without a reason is no end."""
        whole = all(choice.finished is not None for choice in self._choices)
        if finish.reason is FinishReason.BUDGET or (whole and finish.reason in (FinishReason.STOP, FinishReason.LENGTH)):
            # It may have ended before the worker heard that it should; that it was stopped then changes nothing, unless text was dropped.
            return self._ending_as if self._muted else None
        if self._ending_as is not None:
            return self._ending_as
        match finish.reason:
            case FinishReason.TIMEOUT:
                return "timeout"
            case FinishReason.CANCELLED:
                return "cancelled"
            case _:
                return "engine_error"

    async def _settle_rejected(self, reject: Reject) -> None:
        log.warning("request %s was rejected late: %s: %s", self.request_id, reject.code, reject.message)
        try:
            await self._admissions.release(self.request_id)
        except (RedisError, OSError) as error:
            log.warning("request %s isn't released, its hold will expire: %s", self.request_id, error)
        self._fail(self._ending_as or "engine_error")

    def _give_up(self) -> None:
        """The worker hasn't answered a cancel. It will settle when it can."""
        self.link.forget(self.request_id, self)
        self._fail(self._ending_as or "cancelled")

    def _fail(self, code: FailureCode) -> None:
        counters = self._counters
        if not counters.generated_tokens:
            counters.generated_tokens = self._generated
        self._conclude(Failed(code=code, message=self._ending_message or _MESSAGES[code], counters=counters))

    def _conclude(self, event: Finished | Failed) -> None:
        if self.done.is_set():
            return
        self._emit(event)
        if not self.superseded:
            outcome = "completed" if isinstance(event, Finished) else event.code
            self._timings.ended(outcome, self._counters, longest_choice=max(choice.generated for choice in self._choices))
        self._close()

    def _close(self) -> None:
        self._hold.stop()
        self._stop_timer()
        self._timings.left()
        self.done.set()
        self._on_end(self)

    # --- small things ----------------------------------------------------------------------------------------------------------

    def _emit(self, event: Event) -> None:
        if self._muted and not isinstance(event, Finished | Failed):
            return
        self._events.append(event)
        self._wake.set()

    def _mute(self) -> None:
        self._muted = True
        self._events.clear()
        if self._paused:
            self._unpause()

    def _after(self, delay_s: float, then: Callable[..., None], *arguments: object) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(delay_s, then, *arguments)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
