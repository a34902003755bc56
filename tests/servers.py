"""Starts the session's Postgres and Valkey. A plugin (`-p tests.servers` in pyproject.toml), because pytest-django reads the settings
before any conftest is loaded, and they find the servers through the environment like any process does."""

import atexit
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

OWN = "LOCKGATE_TESTS_OWN_SERVERS"
"""Set where the servers in the environment are another test process's: tests empty their Valkey, so each process needs one of its own."""


def _start_servers() -> None:
    if OWN not in os.environ and os.environ.get("DATABASE_URL") and os.environ.get("REDIS_URL"):
        return
    from gateway.jobs.embedded import embedded_servers

    home = Path(tempfile.mkdtemp(prefix="lockgate-tests-"))
    home.chmod(0o755)
    stack = ExitStack()
    stack.callback(shutil.rmtree, home, ignore_errors=True)
    database_url, redis_url = stack.enter_context(embedded_servers(home))
    atexit.register(stack.close)
    os.environ[OWN] = "1"
    os.environ["DATABASE_URL"] = database_url
    os.environ["REDIS_URL"] = redis_url
    os.environ["LOCKGATE_HOME"] = str(home)


_start_servers()
