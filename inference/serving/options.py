"""The worker's command line. Every engine setting is a flag, its default from the environment (LOCKGATE_ENGINE_<NAME>)."""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TypeVar

from inference.config import EngineConfig
from inference.errors import ConfigError
from inference.serving.service import Grace

ENGINE_PREFIX = "LOCKGATE_ENGINE_"
_UNIX_PATH_BYTES = 107


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Everything a worker is told."""

    redis_url: str
    home: Path
    worker_id: str
    model: str
    precision: str
    device: str
    max_context: int | None
    threads: int
    socket: Path | None
    listen: tuple[str, int] | None
    advertise: str | None
    secret: bytes | None
    drain_s: float
    outbound_bytes: int
    stall_s: float
    usage_retry_s: float
    ready_fd: int | None
    grace: Grace
    engine: EngineConfig


def parse(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> WorkerOptions:
    """Read flags and environment. Raises ConfigError naming what is wrong; argparse itself exits on unknown flags."""
    parser = argparse.ArgumentParser(prog="python -m inference.worker", description="One engine process.")
    parser.add_argument("--redis-url", default=environ.get("REDIS_URL"), help="where it registers, claims and reports usage (REDIS_URL)")
    parser.add_argument("--home", type=Path, required=True, help="data folder; the journal is in its folder journal/")
    parser.add_argument("--worker-id", required=True)
    parser.add_argument("--model", required=True, help="Hugging Face folder, GGUF file, or synthetic[:…]")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--max-context", type=int, help="positions to prepare for, if fewer than the model's own")
    parser.add_argument("--threads", type=int, default=0, help="compute threads; 0: one a core")
    address = parser.add_mutually_exclusive_group(required=True)
    address.add_argument("--socket", type=Path, help="Unix socket to serve, mode 0600")
    address.add_argument("--listen", metavar="HOST:PORT", help="TCP address to serve; needs --secret-file")
    parser.add_argument("--advertise", metavar="HOST:PORT", help="how gateways reach --listen, if not by that address")
    parser.add_argument("--secret-file", type=Path, help="file with the secret that worker and gateways share")
    parser.add_argument("--drain-s", type=float, default=30.0, help="after SIGTERM, running requests get this long")
    parser.add_argument("--orphan-grace-s", type=float, default=60.0, help="resumable requests outlive their gateway by this")
    parser.add_argument("--retention-s", type=float, default=60.0, help="ended resumable requests can be read for this long")
    parser.add_argument("--outbound-bytes", type=int, default=4 * 1024 * 1024, help="unread bytes at which a gateway's requests end")
    parser.add_argument("--stall-s", type=float, default=30.0, help="a gateway that leaves data unread for so long loses its link")
    parser.add_argument("--usage-retry-s", type=float, default=5.0, help="an unconfirmed usage event is sent again after this")
    parser.add_argument("--ready-fd", type=int, help='file descriptor that gets "ready\\n"')
    settings = dict(_settings(EngineConfig))
    for name in settings:
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, metavar="VALUE", help=f"engine setting ({_variable(name)})")
    given = parser.parse_args(arguments)
    if not given.redis_url:
        raise ConfigError("--redis-url (or REDIS_URL) is needed")
    if given.socket is not None and len(os.fsencode(given.socket)) > _UNIX_PATH_BYTES:
        raise ConfigError(f"--socket: {given.socket} is longer than the {_UNIX_PATH_BYTES} bytes a Unix socket's path can have")
    return WorkerOptions(
        redis_url=given.redis_url,
        home=given.home,
        worker_id=given.worker_id,
        model=given.model,
        precision=given.precision,
        device=given.device,
        max_context=given.max_context,
        threads=given.threads,
        socket=given.socket,
        listen=None if given.listen is None else _host_and_port(given.listen),
        advertise=given.advertise,
        secret=_secret(given.secret_file, needed=given.listen is not None),
        drain_s=given.drain_s,
        outbound_bytes=given.outbound_bytes,
        stall_s=given.stall_s,
        usage_retry_s=given.usage_retry_s,
        ready_fd=given.ready_fd,
        grace=Grace(orphan_s=given.orphan_grace_s, retention_s=given.retention_s),
        engine=_engine(settings, vars(given), environ),
    )


Reader = Callable[[str], object]
C = TypeVar("C")

_READERS: dict[object, Reader] = {int: int, int | None: int, float: float}


def _settings(config: type, prefix: str = "") -> Iterator[tuple[str, Reader]]:
    """Every plain setting and how its text becomes its value; those of a nested config behind its name. Secrets are no flags."""
    for each in fields(config):
        if isinstance(each.type, type) and is_dataclass(each.type):
            yield from _settings(each.type, f"{prefix}{each.name}_")
        elif each.type is bool:
            yield prefix + each.name, _boolean
        elif each.type in _READERS:
            yield prefix + each.name, _READERS[each.type]


def _engine(settings: Mapping[str, Reader], flags: Mapping[str, str | None], environ: Mapping[str, str]) -> EngineConfig:
    given = {
        name: _read(name, reader, flags[name], environ)
        for name, reader in settings.items()
        if flags[name] is not None or environ.get(_variable(name))
    }
    return _build(EngineConfig, given)


def _build(config: type[C], given: Mapping[str, object], prefix: str = "") -> C:
    assert is_dataclass(config)
    values: dict[str, object] = {}
    for each in fields(config):
        if isinstance(each.type, type) and is_dataclass(each.type):
            values[each.name] = _build(each.type, given, f"{prefix}{each.name}_")
        elif prefix + each.name in given:
            values[each.name] = given[prefix + each.name]
    return config(**values)


def _variable(name: str) -> str:
    return ENGINE_PREFIX + name.upper()


def _boolean(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in known:
        raise ValueError(text)
    return known[text.lower()]


def _read(name: str, reader: Reader, flag: str | None, environ: Mapping[str, str]) -> object:
    text = environ.get(_variable(name), "") if flag is None else flag
    try:
        return reader(text)
    except ValueError as error:
        where = _variable(name) if flag is None else f"--{name.replace('_', '-')}"
        raise ConfigError(f"{where}: {text!r} isn't possible") from error


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--listen: expected host:port, got {address!r}")
    return host.strip("[]"), int(port)


def _secret(path: Path | None, *, needed: bool) -> bytes | None:
    if path is None:
        if needed:
            raise ConfigError("--listen needs --secret-file: on TCP anybody could reach this worker")
        return None
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"--secret-file: {path}: {error.strerror}") from error
    if len(secret) < 32:
        raise ConfigError(f"--secret-file: {path} has {len(secret)} bytes, at least 32 are needed")
    return secret
