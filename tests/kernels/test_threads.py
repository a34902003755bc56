import ctypes
import os
import threading
from typing import Any

import numpy as np
import pytest
import torch

from kernels import threads
from kernels.compiled import ADDRESS, COUNT, arguments, claim, fields, float32s, kernel
from kernels.linear import PackedLinear

_Arguments = arguments(out=ADDRESS, count=COUNT)


@kernel(_Arguments)
def count_up(pointer: Any) -> None:
    a = fields(pointer)
    out = float32s(a.out, a.count)
    while True:
        piece = claim(pointer)
        if piece >= a.count:
            break
        out[piece] += np.float32(1.0)


@pytest.fixture(params=[1, 2, 5], ids="{} threads".format)
def team(request: pytest.FixtureRequest) -> int:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_every_piece_is_done_exactly_once(team):
    out = torch.zeros(257)
    for _ in range(300):
        count_up(out.data_ptr(), 257)
    assert (out == 300).all()


def test_threads_that_compute_at_once_do_not_disturb_each_other(team):
    outs = [torch.zeros(64) for _ in range(4)]

    def repeat(out: torch.Tensor) -> None:
        for _ in range(200):
            count_up(out.data_ptr(), 64)

    callers = [threading.Thread(target=repeat, args=(out,)) for out in outs]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all((out == 200).all() for out in outs)


def test_the_team_follows_the_number_of_threads(team):
    linear, x = PackedLinear.pack(torch.randn(64, 32)), torch.randn(3, 32)
    results = []
    for size in (team, team + 1, 1, team):
        torch.set_num_threads(size)
        results.append(linear(x))
    assert all(torch.equal(result, results[0]) for result in results)


def test_workers_leave_when_their_team_closes():
    gathered = threads.Team(2)
    gathered.close()
    assert not any(thread.is_alive() for thread in gathered.members)


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_child_gathers_a_team_of_its_own(team):
    out = np.zeros(8, np.float32)
    count_up(out.ctypes.data, 8)
    child = os.fork()
    if child == 0:
        try:
            count_up(out.ctypes.data, 8)
        finally:
            os._exit(0 if (out == 2).all() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_configure_refuses_no_threads():
    with pytest.raises(ValueError, match="0 threads"):
        threads.configure(0)


def test_small_work_stays_on_the_callers_thread():
    out = torch.zeros(8)
    count_up.here(out.data_ptr(), 8)
    assert (out == 1).all()
    assert ctypes.sizeof(_Arguments) == 24
