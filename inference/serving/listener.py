"""Where the worker listens: a Unix socket that only its user may open, or TCP under a shared secret."""

import socket
from pathlib import Path

from inference.errors import ConfigError

_BACKLOG = 128


def unix_listener(path: Path) -> socket.socket:
    """A listening socket at this path, mode 0600. Raises ConfigError when a living process serves it already."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _clear(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)  # before it listens: until then nobody can connect
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"--socket: {path}: {error.strerror}") from error
    return listener


def tcp_listener(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Port 0 takes a free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(f"--listen: {host}:{port}: {error.strerror or error}") from error


def _clear(path: Path) -> None:
    """Take away the socket of a process that is gone."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise ConfigError(f"--socket: another process serves {path}")
