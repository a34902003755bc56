"""Keeps a set of processes running: starts them in order, restarts what dies, stops them in reverse order."""

import ctypes
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TextIO

FIRST_RESTART_S = 0.5
LONGEST_RESTART_S = 10.0
STEADY_AFTER_S = 30.0
"""A process that lived this long restarts at once again, with the shortest delay."""
PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


class StartError(Exception):
    """A process didn't start, or ended before it was ready; the message says which, and why."""


@dataclass(kw_only=True)
class Service:
    """One supervised process."""

    name: str
    start: Callable[[], subprocess.Popen[bytes]]
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout_s: float = 30.0
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    started_at: float = field(default=0.0, init=False)
    restart_at: float | None = field(default=None, init=False)
    delay_s: float = field(default=FIRST_RESTART_S, init=False)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


def die_with_parent() -> None:
    """In the child, before exec: the kernel ends it with SIGTERM when the supervisor is killed, so that nothing is orphaned."""
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Output:
    """Lines of all children on one terminal, each behind its process's name, and in a log file per process."""

    def __init__(self, folder: Path, terminal: TextIO) -> None:
        self.folder = folder
        self._terminal = terminal
        self._lock = threading.Lock()
        self._last: dict[str, str] = {}
        self._followers: dict[str, threading.Thread] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def say(self, text: str) -> None:
        with self._lock:
            self._terminal.write(text + "\n")
            self._terminal.flush()

    def follow(self, name: str, process: subprocess.Popen[bytes], *, quiet: bool) -> None:
        """Copy the child's output until it closes it. `quiet`: to the log only."""
        assert process.stdout is not None
        follower = threading.Thread(target=self._copy, args=(name, process.stdout, quiet), name=f"output-{name}", daemon=True)
        self._followers[name] = follower
        follower.start()

    def last(self, name: str) -> str:
        """The last line of a child that has ended."""
        if follower := self._followers.get(name):
            follower.join(timeout=5)
        return self._last.get(name, "it said nothing")

    def _copy(self, name: str, stream: IO[bytes], quiet: bool) -> None:
        with stream, (self.folder / f"{name}.log").open("ab") as log:
            for raw in stream:
                log.write(raw)
                log.flush()
                line = raw.decode(errors="replace").rstrip()
                if line:
                    self._last[name] = line
                if line and not quiet:
                    self.say(f"{name:<9} | {line}")


def spawn(
    arguments: Sequence[str],
    *,
    name: str,
    environment: Mapping[str, str],
    output: Output,
    quiet: bool = False,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own (a terminal's Ctrl-C reaches the supervisor only) with its output on ours."""
    process = subprocess.Popen(
        list(arguments),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=tuple(pass_fds),
        preexec_fn=die_with_parent,  # noqa: PLW1509 - one prepared system call, no lock taken
    )
    output.follow(name, process, quiet=quiet)
    return process


class Supervisor:
    """Owns every process it started; `run` returns when asked to stop, with all of them ended."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._services: list[Service] = []
        self._stop = threading.Event()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def request_stop(self) -> None:
        self._stop.set()

    def add(self, service: Service) -> None:
        """Start a service now, and keep it running from now on. Raises what its start raises."""
        service.process = service.start()
        service.started_at = time.monotonic()
        self._services.append(service)

    def wait_until(self, ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Wait until everything that was added is ready. Raises StartError when a process ends before, or time runs out."""
        deadline = time.monotonic() + timeout_s
        while not self._stop.is_set() and not ready():
            for service in self._services:
                if not service.running:
                    assert service.process is not None
                    raise StartError(f"{service.name} ended with status {service.process.returncode}: {self._output.last(service.name)}")
            if time.monotonic() > deadline:
                raise StartError(f"not ready within {timeout_s:.0f} s; the last line of each process is in {self._output.folder}")
            self._stop.wait(0.1)

    def run(self) -> None:
        """Restart what dies until a stop is requested."""
        while not self._stop.wait(0.1):
            for service in self._services:
                self._tend(service)

    def _tend(self, service: Service) -> None:
        now = time.monotonic()
        if service.running:
            if now - service.started_at > STEADY_AFTER_S:
                service.delay_s = FIRST_RESTART_S
            return
        if service.restart_at is None:
            status = service.process.returncode if service.process else None
            self._output.say(f"{service.name} ended (status {status}); starting it again in {service.delay_s:.1f} s")
            service.restart_at = now + service.delay_s
            service.delay_s = min(2 * service.delay_s, LONGEST_RESTART_S)
        elif now >= service.restart_at:
            service.restart_at = None
            try:
                service.process = service.start()
            except (StartError, OSError) as error:
                self._output.say(f"{service.name} didn't start: {error}")
            service.started_at = time.monotonic()

    def stop(self) -> None:
        """Stop all in reverse order of start; each gets its time to finish cleanly before it is killed."""
        for service in reversed(self._services):
            process = service.process
            if process is None or process.poll() is not None:
                continue
            self._output.say(f"stopping {service.name}")
            process.send_signal(service.stop_signal)
            try:
                process.wait(service.stop_timeout_s)
            except subprocess.TimeoutExpired:
                self._output.say(f"{service.name} didn't stop within {service.stop_timeout_s:.0f} s; killed")
                process.kill()
                process.wait()
