import shutil
import signal
import socket
import stat
import tempfile
from pathlib import Path

import psycopg
import pytest
import redis

from gateway.jobs.embedded import EmbeddedPostgres, EmbeddedServerError, EmbeddedValkey


@pytest.fixture
def home():
    with tempfile.TemporaryDirectory(prefix="lockgate-embedded-") as folder:
        yield Path(folder)  # mode 0700: as root, Postgres can't reach it and its cluster has to go elsewhere


def test_postgres_keeps_its_data_over_a_restart_and_a_kill(home):
    postgres = EmbeddedPostgres(home)
    postgres.start()
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (value int)")
        connection.execute("INSERT INTO kept VALUES (7)")
    postgres.process.send_signal(signal.SIGQUIT)  # immediate shutdown: recovery at the next start, as after a crash
    postgres.process.wait()
    again = EmbeddedPostgres(home)
    again.start()
    try:
        with psycopg.connect(again.url) as connection:
            assert connection.execute("SELECT value FROM kept").fetchone() == (7,)
    finally:
        again.stop()
        shutil.rmtree(again.data)
    assert again.process.returncode == 0


def test_valkey_keeps_its_data_over_a_kill(home):
    valkey = EmbeddedValkey(home)
    valkey.start()
    with redis.Redis.from_url(valkey.url) as client:
        client.set("kept", 7)
        client.waitaof(1, 0, 5000)
    valkey.process.kill()
    valkey.process.wait()
    again = EmbeddedValkey(home)
    again.start()
    try:
        with redis.Redis.from_url(again.url) as client:
            assert client.get("kept") == b"7"
    finally:
        again.stop()


def test_a_restarted_server_keeps_the_port_that_others_know(home):
    valkey = EmbeddedValkey(home, fast_and_forgetful=True)
    valkey.start()
    known = valkey.url
    valkey.stop()
    port = int(known.rsplit(":", 1)[1].split("/")[0])
    with socket.create_server(("127.0.0.1", port)), pytest.raises(EmbeddedServerError, match=f"port {port} is taken"):
        valkey.start()
    valkey.start()
    valkey.stop()
    assert valkey.url == known


def test_valkey_asks_for_its_password(home):
    valkey = EmbeddedValkey(home, fast_and_forgetful=True)
    valkey.start()
    try:
        port = valkey.url.rsplit(":", 1)[1].split("/")[0]
        with redis.Redis(port=int(port)) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
    finally:
        valkey.stop()


def test_passwords_are_readable_by_their_owner_only(home):
    valkey = EmbeddedValkey(home, fast_and_forgetful=True)
    valkey.start()
    valkey.stop()
    for name in ("valkey.json", "valkey/valkey.conf"):
        assert stat.S_IMODE((home / name).stat().st_mode) == 0o600
