"""How many threads compute, and a team of them for the compiled kernels.

Torch's own operations use its OpenMP pool; the kernels have a team of their own, because OpenMP's barrier waits for threads that
aren't running (see `team`), and a server shares its cores with the gateway. The two never work at the same time, and each sleeps soon
after its last work.
"""

import ctypes
import os
import sys
import threading
from typing import Any

import numba
import numpy as np
import torch
from numba import types

from kernels import caching, team

ENVIRONMENT: dict[str, str] = {"GOMP_SPINCOUNT": "1000"}
"""What a process that computes must be started with: OpenMP reads it once, before Python can set it. By itself libgomp's pool spins for
milliseconds after a torch operation, on cores that the kernels and the gateway need; 1000 turns are about 25 µs."""

caching.configure()
_work = numba.cfunc(types.void(types.int64), cache=True)(team.work)
_run = numba.cfunc(types.void(types.int64, types.int64, types.int64), cache=True)(team.run)


@numba.cfunc(types.void(types.int64), cache=True)
def _nothing(_arguments: int) -> None:
    return


def _address(function: Any) -> int:
    address: int = function.address
    return address


class Team:
    """Workers beside the thread that calls `run`."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._state = np.zeros(team.WORDS, np.int64)
        self._address: int = self._state.ctypes.data
        self._work = ctypes.CFUNCTYPE(None, ctypes.c_int64)(_address(_work))
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(_address(_run))
        self.members = [
            threading.Thread(target=self._work, args=(self._address,), name=f"kernels-{i}", daemon=True) for i in range(workers)
        ]
        for thread in self.members:
            thread.start()

    def run(self, region: int, arguments: int) -> None:
        self._run(self._address, region, arguments)

    def close(self) -> None:
        """Workers leave; nothing may be running."""
        self._state[team.STOP] = 1
        self._run(self._address, _address(_nothing), 0)
        for thread in self.members:
            thread.join()


_lock = threading.Lock()
_team: Team | None = None


def configure(threads: int) -> None:
    """Compute with this many threads, torch and kernels alike. Once, before the first step.

    Threads that wait for the GIL get it sooner from then on: a kernel gives it up and wants it back some hundred times a step.
    """
    if threads < 1:
        raise ValueError(f"{threads} threads can't compute anything")
    torch.set_num_threads(threads)
    sys.setswitchinterval(0.0005)
    _gather(threads)


def team_size() -> int:
    """Threads that `run` puts to work, the caller's own included."""
    return torch.get_num_threads() if team.FUTEX is not None else 1


def _gather(threads: int) -> Team | None:
    """The team for this many threads, None for one."""
    global _team  # noqa: PLW0603 - one for the process, as its cores are
    if _team is not None and _team.workers != threads - 1:
        _team.close()
        _team = None
    if _team is None and threads > 1:
        _team = Team(threads - 1)
    return _team


def _forget_team() -> None:
    """In a forked child, where the workers don't exist."""
    global _lock, _team
    _lock, _team = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_team)
_alone = ctypes.CFUNCTYPE(None, ctypes.c_int64)


def run(region: int, arguments: int) -> None:
    """This thread and every worker that is free call the function at address `region` with `arguments`; returns when all work is done.

    Without the GIL. A second thread that calls while the team is at work does its region alone.
    """
    if team_size() > 1 and _lock.acquire(blocking=False):
        try:
            gathered = _gather(team_size())
            assert gathered is not None
            gathered.run(region, arguments)
        finally:
            _lock.release()
    else:
        _alone(region)(arguments)
