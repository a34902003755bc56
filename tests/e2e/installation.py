"""One installation as a user starts it: `manage.py up` in a process of its own, with its own data folder, servers and port."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.jobs.embedded import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
START_S = 240


class RunningInstallation:
    """What `manage.py up` prints and writes, and its processes."""

    def __init__(self, home: Path, port: int, process: subprocess.Popen[str]) -> None:
        self.home = home
        self.port = port
        self.process = process
        self.lines: list[str] = []
        self._up = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self.lines.append(line.rstrip("\n"))
                if line.startswith("Ctrl-C stops everything"):
                    self._up.set()
        self._up.set()

    def wait_until_up(self) -> None:
        assert self._up.wait(START_S), self.output
        assert self.process.poll() is None, self.output

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    @property
    def demo(self) -> dict[str, str]:
        return json.loads((self.home / "demo.json").read_text())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a second shell would need to run commands against this installation: LOCKGATE_HOME alone."""
        kept = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL", "PORT")}
        return kept | {"LOCKGATE_HOME": str(self.home)}

    def manage(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=check,
            timeout=120,
        )

    def create_key(self, tenant: str, *arguments: str) -> str:
        """A new tenant's key, made as an operator would make it."""
        self.manage("create_tenant", tenant)
        return self.manage("create_key", tenant, *arguments).stdout.strip()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(90)
        self._reader.join(10)


@contextmanager
def installation(home: Path | None = None, **variables: str) -> Iterator[RunningInstallation]:
    """Start an installation, wait until it serves, and stop it in the end. Without `home`, in a folder that is removed afterwards."""
    own = home is None
    if home is None:
        home = Path(tempfile.mkdtemp(prefix="lockgate-e2e-"))
        home.chmod(0o755)
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE")}
    environment |= {"LOCKGATE_HOME": str(home), "PORT": str(port), "PYTHONUNBUFFERED": "1", **variables}
    process = subprocess.Popen(
        [sys.executable, "manage.py", "up"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    running = RunningInstallation(home, port, process)
    try:
        running.wait_until_up()
        yield running
    finally:
        running.stop()
        if own:
            shutil.rmtree(home, ignore_errors=True)
