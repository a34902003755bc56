"""The gateway's end of its link to one worker: keeps it up, and hands what arrives to the request it is for."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.dispatch.connection import Connection
from gateway.dispatch.errors import GreetingFailed, LinkDown
from inference.protocol.frames import (
    Allow,
    Attach,
    Attached,
    Cancel,
    Challenge,
    ChoiceEnd,
    Draining,
    Finish,
    FromWorker,
    Load,
    ModelCard,
    Pause,
    PromptLogprobs,
    Reject,
    Started,
    Submit,
    TokenOut,
    Tokens,
    Welcome,
)
from inference.protocol.registry import Registration

log = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.05
_LONGEST_RETRY_S = 2.0
_MAX_UNSENT_BYTES = 32 * 1024 * 1024


class Receiver(Protocol):
    """One request's ears. Called on the event loop, so nothing here may wait. What one raises ends that request alone, by `broke`."""

    @property
    def resumable(self) -> bool:
        """Whether to attach again when the link breaks and the worker lives on."""
        ...

    def next_index(self) -> Mapping[int, int]:
        """The index of the next token of each choice."""
        ...

    def started(self, started: Started) -> None: ...
    def prompt_scored(self, part: PromptLogprobs) -> None: ...
    def token(self, token: TokenOut) -> None: ...
    def choice_ended(self, end: ChoiceEnd) -> None: ...
    def told(self) -> None:
        """One frame's worth has been given."""
        ...

    def attached(self, attached: Attached) -> None: ...

    # The last word, one of these. The link has forgotten the receiver by then.
    def finished(self, finish: Finish) -> None: ...
    def rejected(self, reject: Reject) -> None: ...
    def lost(self, why: str) -> None:
        """The worker is gone, and what it hadn't said with it."""
        ...

    def broke(self, error: Exception) -> None: ...


@dataclass(frozen=True, kw_only=True)
class LinkTiming:
    silence_s: float = 20.0
    """A worker that says nothing for so long (it sends its load every second) is given up."""
    reattach_s: float = 30.0
    """A resumable request waits for so long for its worker to come back."""


class Link:
    """A link to one worker, connected again whenever it breaks, until closed."""

    def __init__(
        self,
        registration: Registration,
        *,
        gateway_id: str,
        secret: bytes | None,
        greeted: Callable[["Link"], None],
        timing: LinkTiming,
    ) -> None:
        self.worker_id = registration.worker_id
        self.address = registration.address
        self._gateway_id = gateway_id
        self._secret = secret
        self._greeted = greeted
        self._timing = timing
        self._connection: Connection | None = None
        self._welcome: Welcome | None = None
        self._receivers: dict[str, Receiver] = {}
        self._attaching: dict[str, Receiver] = {}
        """Attach is sent; what comes before its answer belongs to whoever had the request before."""
        self._stranded: dict[str, Receiver] = {}
        """Resumable, and the link is down."""
        self._giving_up: asyncio.TimerHandle | None = None
        self._since_load = 0
        self.load: Load | None = None
        """The worker's latest heartbeat."""
        self.draining = False
        self.registered = True
        """Whether the registry still names the worker. Kept by the registry."""
        self._closing = False
        self._runner = asyncio.create_task(self._run(), name=f"link to {self.worker_id}")

    # --- what is known of the worker -------------------------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        return self._connection is not None

    @property
    def epoch(self) -> str | None:
        return None if self._welcome is None else self._welcome.epoch

    @property
    def card(self) -> ModelCard | None:
        """The model, as the worker last introduced itself."""
        return None if self._welcome is None else self._welcome.card

    @property
    def max_choices(self) -> int:
        return 1 if self._welcome is None else self._welcome.max_choices

    @property
    def pressure(self) -> int:
        """Requests at the worker: its last heartbeat, and what this gateway has sent and seen end since."""
        reported = 0 if self.load is None else self.load.running + self.load.waiting
        return max(reported + self._since_load, len(self._receivers), 0)

    @property
    def takes_requests(self) -> bool:
        return self.up and not self.draining

    # --- out -------------------------------------------------------------------------------------------------------------------

    def submit(self, submit: Submit, receiver: Receiver) -> None:
        """Send a request; the receiver hears of it from now on. Raises LinkDown."""
        connection = self._connection
        if connection is None:
            raise LinkDown(f"the link to {self.worker_id} is down")
        if connection.unsent_bytes > _MAX_UNSENT_BYTES:
            raise LinkDown(f"{self.worker_id} reads too slowly")
        self._receivers[submit.request_id] = receiver
        self._since_load += 1
        connection.send(submit)

    def attach(self, request_id: str, receiver: Receiver) -> None:
        """Take over a resumable request's stream. Raises LinkDown."""
        if self._connection is None:
            raise LinkDown(f"the link to {self.worker_id} is down")
        self._receivers.pop(request_id, None)
        self._attaching[request_id] = receiver
        self._connection.send(Attach(request_id=request_id, next_index=dict(receiver.next_index())))

    def tell(self, frame: Allow | Cancel | Pause) -> None:
        """Send something about a request; nothing is sent while the link is down."""
        if self._connection is not None:
            self._connection.send(frame)

    def forget(self, request_id: str, receiver: Receiver) -> None:
        """Tell this receiver nothing more."""
        for table in (self._receivers, self._attaching, self._stranded):
            if table.get(request_id) is receiver:
                del table[request_id]

    def check_alive(self) -> None:
        """Break a link whose worker has fallen silent."""
        connection = self._connection
        if connection is not None and asyncio.get_running_loop().time() - connection.heard_at > self._timing.silence_s:
            connection.abort(f"the worker said nothing for {self._timing.silence_s:g} s")

    async def close(self) -> None:
        """Close for good. Requests still here are lost."""
        self._closing = True
        self._runner.cancel()
        await asyncio.gather(self._runner, return_exceptions=True)
        if self._connection is not None:
            connection = self._connection
            connection.abort("the gateway closed the link")
            await connection.ended.wait()
        self._give_up("the worker has left")

    # --- up and down -----------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        delay_s = _FIRST_RETRY_S
        complained = ""
        while True:
            try:
                connection, welcome = await Connection.open(
                    self.address, gateway_id=self._gateway_id, secret=self._secret, received=self._received, lost=self._lost
                )
            except (OSError, GreetingFailed) as error:  # TimeoutError is an OSError
                if str(error) != complained:
                    complained = str(error)
                    log.warning("no link to worker %s at %s, trying again: %s", self.worker_id, self.address, error or "timed out")
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _LONGEST_RETRY_S)
                continue
            delay_s, complained = _FIRST_RETRY_S, ""
            self._come_up(connection, welcome)
            await connection.ended.wait()

    def _come_up(self, connection: Connection, welcome: Welcome) -> None:
        log.info("linked to worker %s (%s)", self.worker_id, welcome.card.name)
        same = self._welcome is not None and self._welcome.epoch == welcome.epoch
        self._connection, self._welcome = connection, welcome
        self.draining = False
        self._since_load = 0
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        if same:
            stranded, self._stranded = self._stranded, {}
            for request_id, receiver in stranded.items():
                self.attach(request_id, receiver)
        else:
            self._give_up("the worker was restarted")
        self._greeted(self)

    def _lost(self, why: str) -> None:
        log.log(logging.INFO if self._closing else logging.WARNING, "link to worker %s lost: %s", self.worker_id, why)
        self._connection = None
        self.load = None
        gone = {**self._receivers, **self._attaching}
        self._receivers.clear()
        self._attaching.clear()
        for request_id, receiver in gone.items():
            if receiver.resumable:
                self._stranded[request_id] = receiver
            else:
                receiver.lost(why)
        if self._stranded:
            self._giving_up = asyncio.get_running_loop().call_later(self._timing.reattach_s, self._give_up, "the worker didn't come back")

    def _give_up(self, why: str) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        stranded, self._stranded = self._stranded, {}
        for receiver in stranded.values():
            receiver.lost(why)

    # --- in --------------------------------------------------------------------------------------------------------------------

    def _received(self, frame: FromWorker) -> None:
        match frame:
            case Tokens():
                self._tokens(frame)
            case Finish(request_id=request_id):
                if (receiver := self._end(request_id)) is not None:
                    self._safely(request_id, receiver, receiver.finished, frame)
            case Reject(request_id=request_id):
                receiver = self._attaching.pop(request_id, None) or self._end(request_id)
                if receiver is not None:
                    self._safely(request_id, receiver, receiver.rejected, frame)
            case Attached(request_id=request_id):
                if (receiver := self._attaching.pop(request_id, None)) is not None:
                    self._receivers[request_id] = receiver
                    self._safely(request_id, receiver, receiver.attached, frame)
            case Load():
                self.load = frame
                self.draining = frame.draining
                self._since_load = 0
            case Draining():
                self.draining = True
            case Challenge() | Welcome():
                assert self._connection is not None
                self._connection.abort(f"the worker sent {type(frame).__name__} again")

    def _tokens(self, frame: Tokens) -> None:
        receivers = self._receivers
        told: dict[str, Receiver] = {}
        for started in frame.started:
            if (receiver := receivers.get(started.request_id)) is not None:
                told[started.request_id] = receiver
                self._safely(started.request_id, receiver, receiver.started, started)
        for part in frame.prompt_logprobs:
            if (receiver := receivers.get(part.request_id)) is not None:
                told[part.request_id] = receiver
                self._safely(part.request_id, receiver, receiver.prompt_scored, part)
        for token in frame.tokens:
            if (receiver := receivers.get(token.request_id)) is not None:
                told[token.request_id] = receiver
                self._safely(token.request_id, receiver, receiver.token, token)
        for end in frame.ends:
            if (receiver := receivers.get(end.request_id)) is not None:
                told[end.request_id] = receiver
                self._safely(end.request_id, receiver, receiver.choice_ended, end)
        for request_id, receiver in told.items():
            if receivers.get(request_id) is receiver:
                self._safely(request_id, receiver, receiver.told)

    def _end(self, request_id: str) -> Receiver | None:
        receiver = self._receivers.pop(request_id, None)
        if receiver is not None:
            self._since_load -= 1
        return receiver

    def _safely(self, request_id: str, receiver: Receiver, hear: Callable[..., None], *said: object) -> None:
        try:
            hear(*said)
        except Exception as error:
            log.exception("request %s broke while its worker's frame was read", request_id)
            self.forget(request_id, receiver)
            self.tell(Cancel(request_id=request_id))
            receiver.broke(error)
