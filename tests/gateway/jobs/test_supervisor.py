import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gateway.jobs.embedded import EmbeddedServerError
from gateway.jobs.supervisor import Output, Service, StartError, Supervisor, spawn

WAIT_S = 20


@pytest.fixture
def output(tmp_path):
    return Output(tmp_path / "logs", io.StringIO())


@pytest.fixture
def supervisor(output):
    supervisor = Supervisor(output)
    yield supervisor
    supervisor.stop()


def python(program: str, output: Output, name: str = "child"):
    def start() -> subprocess.Popen[bytes]:
        return spawn([sys.executable, "-c", program], name=name, environment=os.environ, output=output)

    return start


SLEEPER = "import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); print('up', flush=True); signal.pause()"


def has_said(output: Output, name: str, text: str) -> bool:
    log = output.folder / f"{name}.log"
    return log.exists() and text in log.read_text()


def test_a_killed_process_is_started_again(supervisor, output):
    service = Service(name="child", start=python(SLEEPER, output))
    supervisor.add(service)
    supervisor.wait_until(lambda: has_said(output, "child", "up"), timeout_s=WAIT_S)
    first = service.process
    runner = threading.Thread(target=supervisor.run)
    runner.start()
    try:
        first.kill()
        done = threading.Event()
        for _ in range(WAIT_S * 10):
            if service.running and service.process.pid != first.pid:
                break
            done.wait(0.1)
        assert service.running
        assert service.process.pid != first.pid
    finally:
        supervisor.request_stop()
        runner.join()


def test_a_server_that_cannot_start_again_at_once_is_tried_again(supervisor, output):
    started = threading.Event()

    def start() -> subprocess.Popen[bytes]:
        starts.append(len(starts))
        if len(starts) == 2:
            raise EmbeddedServerError("its port is taken")
        if len(starts) == 3:
            started.set()
        return python(SLEEPER, output)()

    starts: list[int] = []
    service = Service(name="child", start=start)
    supervisor.add(service)
    runner = threading.Thread(target=supervisor.run)
    runner.start()
    try:
        service.process.kill()
        assert started.wait(WAIT_S)
    finally:
        supervisor.request_stop()
        runner.join()


def test_a_process_that_ends_before_it_is_ready_is_reported_with_its_last_words(supervisor, output):
    supervisor.add(Service(name="child", start=python("import sys; print('no such model'); sys.exit(3)", output)))
    with pytest.raises(StartError, match="child ended with status 3: no such model"):
        supervisor.wait_until(lambda: False, timeout_s=WAIT_S)


def test_stop_ends_processes_in_reverse_order(supervisor, output, tmp_path):
    order = tmp_path / "order"
    for name in ("first", "second"):
        program = (
            "import signal, sys\n"
            f"def end(*_): open({str(order)!r}, 'a').write({name + ' '!r}); sys.exit(0)\n"
            "signal.signal(15, end); print('up', flush=True)\n"
            "while True: signal.pause()"
        )
        supervisor.add(Service(name=name, start=python(program, output, name)))
    supervisor.wait_until(lambda: has_said(output, "first", "up") and has_said(output, "second", "up"), timeout_s=WAIT_S)
    supervisor.stop()
    assert order.read_text() == "second first "


def test_a_process_that_ignores_the_request_is_killed(supervisor, output):
    program = "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"
    service = Service(name="child", start=python(program, output), stop_timeout_s=0.2)
    supervisor.add(service)
    supervisor.wait_until(lambda: has_said(output, "child", "up"), timeout_s=WAIT_S)
    supervisor.stop()
    assert service.process.returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_children_end_when_the_supervisor_is_killed(tmp_path):
    pid_file = tmp_path / "pid"
    program = f"""
import io, os, sys, signal
from pathlib import Path
from gateway.jobs.supervisor import Output, spawn
child = spawn([sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"],
              name="child", environment=os.environ, output=Output(Path({str(tmp_path)!r}), io.StringIO()))
Path({str(pid_file)!r}).write_text(str(child.pid))
print("ready", flush=True)
signal.pause()
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout.readline() == b"ready\n"
        child = os.pidfd_open(int(pid_file.read_text()))
        parent.kill()
        parent.wait()
    import select

    ready, _, _ = select.select([child], [], [], WAIT_S)
    os.close(child)
    assert ready, "the child outlived its supervisor"


def test_logs_of_each_process_are_kept(supervisor, output):
    supervisor.add(Service(name="child", start=python(SLEEPER, output)))
    supervisor.wait_until(lambda: has_said(output, "child", "up"), timeout_s=WAIT_S)
    assert (output.folder / "child.log").read_text() == "up\n"
    assert Path(output.folder).is_dir()
