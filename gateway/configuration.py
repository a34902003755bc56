"""The one place that reads configuration: the environment first, then what `manage.py up` wrote into LOCKGATE_HOME.

| variable | meaning |
| --- | --- |
| LOCKGATE_HOME | data folder; everything else can be found from it |
| DATABASE_URL, REDIS_URL | servers of your own instead of the embedded ones |
| PORT, WEB, WORKERS | where the gateway listens, how many web and worker processes |
| MODEL, PRECISION | what the workers serve |
| LOCKGATE_SECRET_KEY | at least 32 characters; made and kept in LOCKGATE_HOME when absent |
| LOCKGATE_WORKER_SECRET_FILE | file with the secret (32 bytes or more) that is shared with workers reached by TCP |
| LOCKGATE_METRICS_TOKEN | what Prometheus presents at /metrics; made and kept in LOCKGATE_HOME/metrics.token when absent |
| LOCKGATE_METRICS_PUBLIC | 1: /metrics asks for no token |
| LOCKGATE_ALLOWED_HOSTS, LOCKGATE_DEBUG | Django's ALLOWED_HOSTS (comma separated), DEBUG |
"""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit


class ConfigurationError(Exception):
    """A setting is wrong; the message names it."""


def default_home() -> Path:
    """Root keeps its data in /var/lib, so that the embedded Postgres (which never runs as root) can reach it."""
    return Path("/var/lib/lockgate") if os.geteuid() == 0 else Path.home() / ".local" / "share" / "lockgate"


@dataclass(frozen=True, kw_only=True)
class Configuration:
    home: Path
    database_url: str | None
    redis_url: str | None
    secret_key: str
    port: int
    allowed_hosts: tuple[str, ...]
    debug: bool
    worker_secret: bytes | None
    metrics_token: str | None
    metrics_public: bool

    def database(self) -> dict[str, object]:
        """Django's DATABASES["default"]."""
        if self.database_url is None:
            # No server is known yet. Commands that need none (lint, help, makemigrations) still work; the others fail on connect.
            return {"ENGINE": "django.db.backends.postgresql", "NAME": "lockgate", "HOST": str(self.home), "PORT": "1"}
        url = urlsplit(self.database_url)
        if url.scheme not in ("postgres", "postgresql"):
            raise ConfigurationError(f"DATABASE_URL: expected postgresql://…, got scheme {url.scheme!r}")
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": unquote(url.path.lstrip("/")),
            "USER": unquote(url.username or ""),
            "PASSWORD": unquote(url.password or ""),
            "HOST": unquote(url.hostname or ""),
            "PORT": str(url.port or 5432),
        }


def services_file(home: Path) -> Path:
    """What `manage.py up` started: database_url, redis_url, port. Mode 0600."""
    return home / "services.json"


def _services(home: Path) -> dict[str, object]:
    try:
        text = services_file(home).read_text()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    try:
        services: dict[str, object] = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{services_file(home)} is not valid JSON: {error}") from error
    return services


def _secret_key(home: Path, environ: Mapping[str, str]) -> str:
    if key := environ.get("LOCKGATE_SECRET_KEY"):
        if len(key) < 32:
            raise ConfigurationError("LOCKGATE_SECRET_KEY: at least 32 characters are needed")
        return key
    path = home / "secret.key"
    try:
        return path.read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        # Nothing is kept here: `manage.py up` writes the file. Until then a key of this process's own serves commands that need none.
        return secrets.token_urlsafe(48)
    except PermissionError as error:
        raise ConfigurationError(f"LOCKGATE_HOME: {path} can't be read by this user") from error


def _worker_secret(environ: Mapping[str, str]) -> bytes | None:
    name = environ.get("LOCKGATE_WORKER_SECRET_FILE")
    if not name:
        return None
    try:
        secret = Path(name).read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(f"LOCKGATE_WORKER_SECRET_FILE: {name} can't be read ({error.strerror})") from error
    if len(secret) < 32:
        raise ConfigurationError(f"LOCKGATE_WORKER_SECRET_FILE: {name} has {len(secret)} bytes, at least 32 are needed")
    return secret


def integer(name: str, text: str, *, low: int, high: int) -> int:
    """The variable's value as an integer within bounds, or an error that names the variable."""
    try:
        value = int(text)
    except ValueError as error:
        raise ConfigurationError(f"{name}: expected a whole number, got {text!r}") from error
    if not low <= value <= high:
        raise ConfigurationError(f"{name}: expected {low} to {high}, got {value}")
    return value


def read(environ: Mapping[str, str] = os.environ) -> Configuration:
    """Read the configuration; raises ConfigurationError naming what is wrong."""
    home = Path(environ.get("LOCKGATE_HOME") or default_home()).expanduser().absolute()
    services = _services(home)

    def known(variable: str, field: str) -> str | None:
        value = environ.get(variable) or services.get(field)
        return None if value is None else str(value)

    return Configuration(
        home=home,
        database_url=known("DATABASE_URL", "database_url"),
        redis_url=known("REDIS_URL", "redis_url"),
        secret_key=_secret_key(home, environ),
        port=integer("PORT", known("PORT", "port") or "8000", low=1, high=65535),
        allowed_hosts=tuple(
            host for part in environ.get("LOCKGATE_ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]").split(",") if (host := part.strip())
        ),
        debug=environ.get("LOCKGATE_DEBUG", "") == "1",
        worker_secret=_worker_secret(environ),
        metrics_token=environ.get("LOCKGATE_METRICS_TOKEN") or None,
        metrics_public=environ.get("LOCKGATE_METRICS_PUBLIC", "") == "1",
    )
