"""The engine's own process.

    python -m inference.worker --redis-url redis://… --socket /path.sock --model … --home … --worker-id …

It loads the model, prints what it does line by line (last `ready`, also as "ready\\n" on --ready-fd), serves gateways over the socket, and
registers in Redis. On SIGTERM or SIGINT it drains: refuses new requests, gives running ones --drain-s, ends the rest as errors, hands
over its usage and exits with 0; a second signal ends them at once. `kill -9` loses nothing that left the process: the next worker on
the same --home settles it from the journal.

Who starts it gives it `kernels.threads.ENVIRONMENT` as part of its environment (OpenMP reads it before Python can set it), at least
--drain-s plus five seconds between SIGTERM and SIGKILL, and one --worker-id per device that stays the same over restarts. Exit status:
0 after a drain, 1 when the engine broke, 2 when it can't be started as told (the last line on stderr says why).
"""

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import time
from pathlib import Path

import uvloop
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from inference.engine import Engine
from inference.errors import ConfigError, EngineError
from inference.journal import Journal, JournalError
from inference.leases import Leases
from inference.models import synthetic
from inference.models.base import Model
from inference.models.load import LoadedModel, load_model
from inference.protocol.frames import PROTOCOL_VERSION, ModelCard, Welcome
from inference.protocol.registry import Registration
from inference.serving.announcement import Announcement
from inference.serving.engine_thread import EngineThread
from inference.serving.link import Link, Terms
from inference.serving.listener import tcp_listener, unix_listener
from inference.serving.options import WorkerOptions, parse
from inference.serving.service import Service
from inference.usage import UsageOutbox
from inference.warming import warm_up
from inference.weights import WeightsError
from inference.weights.resolve import resolve
from kernels import threads

log = logging.getLogger("inference.worker")

_REDIS_TIMEOUT_S = 2.0
_HAND_OVER_S = 2.0
_LEFT_BEHIND_EVERY_S = 5.0


def say(line: str) -> None:
    """A line for whoever started us."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Worker:
    """Everything of one process, put together."""

    def __init__(self, options: WorkerOptions, engine: Engine, card: ModelCard) -> None:
        self._options = options
        self._epoch = secrets.token_hex(8)
        self._engine = engine
        self._card = card
        self._stopping = asyncio.Event()
        self._at_once = asyncio.Event()
        self._broken: BaseException | None = None

    async def run(self) -> int:
        """Serve until a signal, or until the engine breaks. Returns the exit status."""
        options = self._options
        listener, address = self._listen()
        journals = options.home / "journal"
        journal = Journal.create(journals, worker=options.worker_id, epoch=self._epoch)
        # No retries below: a claim must not be sent twice, and everything else is repeated by its own loop.
        redis = Redis.from_url(
            options.redis_url,
            socket_timeout=_REDIS_TIMEOUT_S,
            socket_connect_timeout=_REDIS_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
        thread = EngineThread(self._engine, loop=asyncio.get_running_loop())
        leases = Leases(redis, worker_id=options.worker_id)
        outbox = UsageOutbox(redis, journal, retry_s=options.usage_retry_s)
        service = Service(engine=thread, journal=journal, leases=leases, outbox=outbox, grace=options.grace)
        announcement = Announcement(redis, self._registration(address), service)
        outbox.settle_left_behind(journals)

        self._catch_signals()
        thread.start(deliver=service.stepped, failed=self._engine_failed)
        terms = self._terms()
        server = await asyncio.get_running_loop().create_server(lambda: Link(terms, service), sock=listener)
        tasks = [
            asyncio.create_task(each)
            for each in (leases.run(), outbox.run(), announcement.run(), self._sync(journal), self._watch_left_behind(outbox))
        ]
        ready = asyncio.create_task(self._tell_ready(announcement, address))
        for task in tasks:
            task.add_done_callback(self._task_ended)

        await self._stopping.wait()
        if self._broken is None:
            say("draining")
            await service.drain(timeout_s=options.drain_s, at_once=self._at_once)
        server.close()
        await _end([*tasks, ready])
        await announcement.withdraw()
        await service.close_links(timeout_s=_HAND_OVER_S)
        if self._broken is None:
            thread.stop()
            if not await outbox.flush(timeout_s=_HAND_OVER_S):
                say(f"{outbox.unconfirmed} usage events stay in the journal for the next start")
            outbox.close()
        if options.socket is not None:
            options.socket.unlink(missing_ok=True)
        await redis.aclose()
        return 0 if self._broken is None else 1

    def _listen(self) -> tuple[socket.socket, str]:
        options = self._options
        if options.socket is not None:
            return unix_listener(options.socket), f"unix:{options.socket}"
        assert options.listen is not None, "one of the two is required"
        listener = tcp_listener(*options.listen)
        host, port = listener.getsockname()[:2]
        return listener, f"tcp:{options.advertise or f'{host}:{port}'}"

    def _registration(self, address: str) -> Registration:
        return Registration(
            worker_id=self._options.worker_id,
            epoch=self._epoch,
            address=address,
            model=self._card.name,
            started_at_ms=time.time_ns() // 1_000_000,
            pid=os.getpid(),
        )

    def _terms(self) -> Terms:
        options = self._options
        welcome = Welcome(
            version=PROTOCOL_VERSION,
            worker_id=options.worker_id,
            epoch=self._epoch,
            card=self._card,
            max_choices=options.engine.max_choices,
        )
        secret = None if options.listen is None else options.secret
        return Terms(welcome=welcome, secret=secret, outbound_bytes=options.outbound_bytes, stall_s=options.stall_s)

    def _catch_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop)

    def _stop(self) -> None:
        if self._stopping.is_set():
            self._at_once.set()
        self._stopping.set()

    def _engine_failed(self, error: BaseException) -> None:
        """Links break, the journal stays: whoever starts next settles what ran."""
        say(f"the engine broke: {error!r}")
        self._broken = error
        self._stopping.set()

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        """None of them ends by itself: without it the worker would run on half alive."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a part of the worker broke", exc_info=error)
            self._broken = error
            self._stopping.set()

    async def _tell_ready(self, announcement: Announcement, address: str) -> None:
        await announcement.announced.wait()
        say(f"listening on {address}")
        if self._options.ready_fd is not None:
            os.write(self._options.ready_fd, b"ready\n")
            os.close(self._options.ready_fd)
        say("ready")

    @staticmethod
    async def _sync(journal: Journal) -> None:
        """What a crash of the machine can lose is about a second."""
        while True:
            await asyncio.sleep(1.0)
            await asyncio.to_thread(journal.sync)

    async def _watch_left_behind(self, outbox: UsageOutbox) -> None:
        """A worker that never comes back is settled by its neighbours; one that still died away as we started, by us."""
        while True:
            await asyncio.sleep(_LEFT_BEHIND_EVERY_S)
            outbox.settle_left_behind(self._options.home / "journal")


def check_home(home: Path) -> None:
    """Before the model loads, not after. Raises ConfigError when the journal can't be kept there."""
    folder = home / "journal"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--home: {folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"--home: {folder} can't be written by this user")


async def _end(tasks: "list[asyncio.Task[None]]") -> None:
    """Cancel until all have ended: up to Python 3.11 `wait_for`, which the Redis client awaits, can swallow a cancellation."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.5)


def load(options: WorkerOptions) -> tuple[Engine, ModelCard]:
    """Load the model and put the engine on it, saying what happens. Raises WeightsError or EngineError."""
    started = time.monotonic()
    say(f"loading {options.model} ({options.precision})")
    loaded: synthetic.SyntheticModel | LoadedModel
    model: Model
    if options.model.partition(":")[0] == synthetic.PREFIX:
        loaded = model = synthetic.SyntheticModel(synthetic.Script.parse(options.model))
    else:
        loaded = load_model(resolve(options.model), precision=options.precision, device=options.device, max_context=options.max_context)
        model = loaded.model
    say(f"loaded in {time.monotonic() - started:.1f} s")
    if loaded is not model:
        started = time.monotonic()
        say("warming up (the first start compiles the kernels)")
        warm_up(model, options.engine)
        say(f"warm in {time.monotonic() - started:.1f} s")
    engine = Engine(model, options.engine, clock=time.monotonic)
    for line in engine.describe():
        say(line)
    return engine, loaded.card(max_prompt_tokens=engine.max_prompt_tokens, created=int(time.time()))


def main() -> int:
    """Run a worker; returns the exit status."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        options = parse()
        check_home(options.home)
        threads.configure(options.threads or os.cpu_count() or 1)
        engine, card = load(options)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(Worker(options, engine, card).run())
    except (EngineError, WeightsError, JournalError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
