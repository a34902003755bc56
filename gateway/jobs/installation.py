"""What `manage.py up` runs: embedded servers unless others are named, then jobs, workers and web, all found from LOCKGATE_HOME."""

import fcntl
import json
import os
import secrets
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.configuration import ConfigurationError, services_file
from gateway.jobs.embedded import EmbeddedPostgres, EmbeddedValkey, write_private
from gateway.jobs.supervisor import Output, Service, StartError, Supervisor, spawn

ROOT = Path(__file__).resolve().parent.parent.parent
READY_TIMEOUT_S = 900.0
"""Loading a large model may take minutes; every step is shown meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Options:
    home: Path
    host: str
    port: int
    model: str
    precision: str
    workers: int
    web: int
    database_url: str | None
    redis_url: str | None


@dataclass(frozen=True, kw_only=True)
class Demo:
    """The first operator and the first key, as kept in demo.json (0600)."""

    base_url: str
    api_key: str
    operator: str
    password: str


def prepare_home(home: Path) -> int:
    """Make the data folder and lock it for this process's life. Returns the lock's descriptor. Raises ConfigurationError."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o755)
        lock = os.open(home / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(f"LOCKGATE_HOME: {home} can't be written ({error.strerror})") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise ConfigurationError(f"LOCKGATE_HOME: another `manage.py up` is running on {home}") from error
    if not (home / "secret.key").exists():
        write_private(home / "secret.key", secrets.token_urlsafe(48))
    return lock


def listen(host: str, port: int) -> socket.socket:
    """The socket that all web processes share. Raises ConfigurationError when the port is taken."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"PORT: {host}:{port} can't be used ({error.strerror}); set PORT to a free one") from error
    listener.listen(2048)
    return listener


class Installation:
    """One running gateway on this machine."""

    def __init__(self, options: Options, output: Output) -> None:
        self._options = options
        self._output = output
        self.supervisor = Supervisor(output)
        self._database_url = options.database_url or ""
        self._redis_url = options.redis_url or ""

    def start(self) -> Demo:
        """Start everything and wait until the first request would be answered. Raises StartError or ConfigurationError."""
        options = self._options
        listener = listen(options.host, options.port)
        with listener:
            self._start_servers()
            self._remember_services()
            self._initialise()
            demo = self._demo()
            self._start_jobs()
            for number in range(options.workers):
                self._start_worker(number)
            for number in range(options.web):
                self._start_web(number, listener)
            self.supervisor.wait_until(self._ready, timeout_s=READY_TIMEOUT_S)
        return demo

    @property
    def home(self) -> Path:
        return self._options.home

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self._options.host in ("0.0.0.0", "::") else self._options.host  # noqa: S104 - compared, not bound
        return f"http://{f'[{host}]' if ':' in host else host}:{self._options.port}"

    def models(self, api_key: str) -> list[str]:
        """The names that /v1/models gives."""
        request = urllib.request.Request(f"{self.url}/v1/models", headers={"Authorization": f"Bearer {api_key}"})  # noqa: S310 - our own URL
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - our own URL
            return [model["id"] for model in json.load(answer)["data"]]

    def _environment(self, **more: str) -> dict[str, str]:
        options = self._options
        return {
            **os.environ,
            "LOCKGATE_HOME": str(options.home),
            "DATABASE_URL": self._database_url,
            "REDIS_URL": self._redis_url,
            "PORT": str(options.port),
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(ROOT),
            "DJANGO_SETTINGS_MODULE": "gateway.settings",
            "PROMETHEUS_MULTIPROC_DIR": str(options.home / "metrics"),
            **more,
        }

    def _start_servers(self) -> None:
        home = self._options.home
        if not self._database_url:
            self._output.say("starting Postgres")
            postgres = EmbeddedPostgres(home)
            self.supervisor.add(Service(name="postgres", start=postgres.start, stop_signal=postgres.stop_signal))
            self._database_url = postgres.url
        if not self._redis_url:
            self._output.say("starting Valkey")
            valkey = EmbeddedValkey(home)
            self.supervisor.add(Service(name="valkey", start=valkey.start))
            self._redis_url = valkey.url

    def _remember_services(self) -> None:
        services = {"database_url": self._database_url, "redis_url": self._redis_url, "port": self._options.port}
        write_private(services_file(self._options.home), json.dumps(services))

    def _manage(self, *arguments: str) -> list[str]:
        return [sys.executable, str(ROOT / "manage.py"), *arguments]

    def _initialise(self) -> None:
        """Migrate, make the first operator and the demo tenant, tell Valkey who may come in."""
        self._output.say("preparing the database")
        done = subprocess.run(self._manage("initialise"), env=self._environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()
            raise StartError(f"preparing the database failed: {last[-1] if last else done.returncode}")

    def _demo(self) -> Demo:
        """What `initialise` has kept, now or at an earlier start, with the address of today."""
        path = self._options.home / "demo.json"
        known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        known["base_url"] = f"{self.url}/v1"
        write_private(path, json.dumps(known, indent=2) + "\n")
        return Demo(**{name: known.get(name, "") for name in ("base_url", "api_key", "operator", "password")})

    def _start(
        self, name: str, arguments: list[str], *, quiet: bool = False, stop_timeout_s: float = 30.0, more: Mapping[str, str] | None = None
    ) -> None:
        def start() -> subprocess.Popen[bytes]:
            return spawn(arguments, name=name, environment=self._environment(**(more or {})), output=self._output, quiet=quiet)

        self.supervisor.add(Service(name=name, start=start, stop_timeout_s=stop_timeout_s))

    def _start_jobs(self) -> None:
        self._output.say("starting jobs")
        self._start("flusher", self._manage("flusher"))
        schedule = self._options.home / "celerybeat-schedule"
        celery = ["-m", "celery", "-A", "gateway.jobs.celery", "worker", "-B", "-s", str(schedule), "-c", "1", "-l", "warning"]
        self._start("jobs", [sys.executable, *celery, "--without-gossip", "--without-mingle"], quiet=True)

    def _start_worker(self, number: int) -> None:
        options = self._options
        name = f"worker-{number}"
        folder = options.home / "sockets"
        folder.mkdir(exist_ok=True, mode=0o700)
        arguments = [sys.executable, "-m", "inference.worker", "--worker-id", name, "--socket", str(folder / f"{name}.sock")]
        arguments += ["--home", str(options.home), "--model", options.model, "--precision", options.precision]
        self._output.say(f"starting {name}")
        self._start(name, arguments, stop_timeout_s=60.0, more=worker_environment())

    def _start_web(self, number: int, listener: socket.socket) -> None:
        name = f"web-{number}"
        descriptor = os.dup(listener.fileno())  # the supervisor's own copy, for restarts

        def start() -> subprocess.Popen[bytes]:
            arguments = [sys.executable, "-m", "gateway.serve", "--fd", str(descriptor)]
            return spawn(arguments, name=name, environment=self._environment(), output=self._output, pass_fds=(descriptor,))

        self.supervisor.add(Service(name=name, start=start))

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2) as answer:  # noqa: S310 - our own URL
                return bool(answer.status == 200)
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False


def worker_environment() -> Mapping[str, str]:
    """What an engine process must find in its environment before its libraries load (thread pools that don't spin against each other)."""
    return {"GOMP_SPINCOUNT": "1000"}  # kernels.threads.ENVIRONMENT, which the gateway may not import
