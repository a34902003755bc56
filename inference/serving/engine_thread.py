"""The engine's own thread. Commands go in by a queue, what each step gave comes out as one call on the event loop."""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from inference.engine import Engine, RequestRejected, StepOutput
from inference.protocol.frames import Allow, Cancel, Load, Pause, Submit
from inference.protocol.usage import Counters

log = logging.getLogger(__name__)

Command = Submit | Allow | Cancel | Pause

_STEPS_AHEAD = 4
"""Steps whose outputs the event loop hasn't dealt with yet. At so many the engine waits: memory stays bounded, sockets get their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step's output, the totals of the requests in it, and the submits that the engine refused since the step before."""

    output: StepOutput | None
    counters: dict[str, Counters] = field(default_factory=dict)
    refused: list[tuple[str, RequestRejected]] = field(default_factory=list)


class EngineThread:
    """Owns the engine: nobody else calls it."""

    def __init__(self, engine: Engine, *, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._loop = loop
        self._clock = clock
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._undealt = threading.Semaphore(_STEPS_AHEAD)
        self._stopping = threading.Event()
        self._deliver: Callable[[StepResult], None]
        self._failed: Callable[[BaseException], None]
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.load: Load = engine.load()
        """As of the latest step."""

    def start(self, *, deliver: Callable[[StepResult], None], failed: Callable[[BaseException], None]) -> None:
        """Both are called on the event loop. `failed`: the engine broke, or `deliver` did, and with it every stream of that step."""
        self._deliver = deliver
        self._failed = failed
        self._thread.start()

    def put(self, command: Command) -> None:
        """Have the engine do this before its next step. Unknown request ids are no error."""
        self._commands.put(command)

    def stop(self) -> None:
        """End the thread after the step it is in."""
        self._stopping.set()
        self._commands.put(None)
        self._undealt.release()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                refused = self._obey(self._next_commands())
                output = self._step()
                self.load = self._engine.load()
                if refused or output is not None:
                    self._ship(output, refused)
        except Exception as error:
            log.exception("the engine broke")
            self._loop.call_soon_threadsafe(self._failed, error)

    def _next_commands(self) -> Iterable[Command | None]:
        """Everything that is there; with nothing to compute, wait for something or for the engine's next deadline."""
        if not self._engine.has_work:
            deadline = self._engine.next_deadline()
            try:
                yield self._commands.get(timeout=None if deadline is None else max(0.0, deadline - self._clock()))
            except queue.Empty:
                return
        while True:
            try:
                yield self._commands.get_nowait()
            except queue.Empty:
                return

    def _obey(self, commands: Iterable[Command | None]) -> list[tuple[str, RequestRejected]]:
        engine = self._engine
        refused = []
        for command in commands:
            match command:
                case Submit():
                    try:
                        engine.submit(command)
                    except RequestRejected as rejection:
                        refused.append((command.request_id, rejection))
                case Allow(request_id=request_id, allowance=allowance):
                    engine.allow(request_id, allowance)
                case Cancel(request_id=request_id, reason=reason, choice=choice, delivered=delivered):
                    engine.cancel(request_id, reason=reason, choice=choice, delivered=delivered)
                case Pause(request_id=request_id, paused=paused):
                    engine.pause(request_id, paused)
                case None:
                    break
        return refused

    def _step(self) -> StepOutput | None:
        engine = self._engine
        if not engine.has_work:
            deadline = engine.next_deadline()
            if deadline is None or deadline > self._clock():
                return None
        return engine.step()

    def _ship(self, output: StepOutput | None, refused: list[tuple[str, RequestRejected]]) -> None:
        counters = {} if output is None else {request_id: self._engine.counters(request_id) for request_id in _running(output)}
        self._undealt.acquire()
        self._loop.call_soon_threadsafe(self._deal, StepResult(output=output, counters=counters, refused=refused))

    def _deal(self, result: StepResult) -> None:
        try:
            self._deliver(result)
        except Exception as error:
            log.exception("a step's output was lost")
            self._failed(error)
        finally:
            self._undealt.release()


def _running(output: StepOutput) -> set[str]:
    """Requests with something to send, other than those that ended: their last totals come with their end."""
    requests = {item.request_id for items in (output.started, output.prompt_logprobs, output.tokens, output.ends) for item in items}
    return requests.difference(finished.request_id for finished in output.finished)
