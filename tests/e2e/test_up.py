"""Starting and stopping as a user does: what it prints, what it writes, what it says when something is wrong."""

import json
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import psutil
import pytest

from gateway.jobs.embedded import free_port
from tests.e2e.installation import ROOT, installation

pytestmark = pytest.mark.e2e


def up_fails(**variables: str) -> str:
    """Run `manage.py up`, which has to fail, and return its one line."""
    home = variables.pop("LOCKGATE_HOME", None) or tempfile.mkdtemp(prefix="lockgate-e2e-")
    environment = {n: v for n, v in os.environ.items() if n not in ("DATABASE_URL", "REDIS_URL")} | {"LOCKGATE_HOME": home, **variables}
    done = subprocess.run(
        [sys.executable, "manage.py", "up"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stdout + done.stderr
    return done.stderr.strip()


def processes_of(running) -> list[psutil.Process]:
    supervisor = psutil.Process(running.process.pid)
    return [supervisor, *supervisor.children(recursive=True)]


def test_demo_file_is_private_and_complete(up):
    assert stat.S_IMODE((up.home / "demo.json").stat().st_mode) == 0o600
    assert set(up.demo) >= {"base_url", "api_key", "operator", "password"}
    assert up.demo["base_url"] == f"{up.url}/v1"


def test_the_printed_lines_work_as_printed(up):
    curl = next(line.strip() for line in up.lines if line.strip().startswith("curl "))
    python = next(line.strip() for line in up.lines if "from openai import OpenAI" in line)
    done = subprocess.run(python, shell=True, capture_output=True, text=True, timeout=120, check=True, cwd="/")
    assert "Paris" in done.stdout
    done = subprocess.run(curl, shell=True, capture_output=True, text=True, timeout=120, check=True, cwd="/")
    assert done.stdout.rstrip().endswith("data: [DONE]")
    assert shlex.split(curl)[0] == "curl"
    assert up.demo["password"] in up.output


def test_health_and_readiness(up):
    assert httpx.get(f"{up.url}/healthz").status_code == 200
    assert httpx.get(f"{up.url}/readyz").status_code == 200


def test_metrics_are_for_operators(up):
    assert httpx.get(f"{up.url}/metrics").status_code in (401, 403)
    token = (up.home / "metrics.token").read_text().strip()
    page = httpx.get(f"{up.url}/metrics", headers={"Authorization": f"Bearer {token}"})
    assert page.status_code == 200
    for name in ("lockgate_time_to_first_token_seconds", "lockgate_time_per_output_token_seconds", "lockgate_worker_kv_blocks"):
        assert name in page.text


def test_no_secret_is_in_the_logs_or_the_process_list(up):
    secrets = [up.demo["api_key"], json.loads((up.home / "postgres.json").read_text())["password"]]
    secrets += [json.loads((up.home / "valkey.json").read_text())["password"], (up.home / "secret.key").read_text().strip()]
    logs = "".join(path.read_text(errors="replace") for path in (up.home / "logs").glob("*.log"))
    arguments = " ".join(word for process in processes_of(up) for word in process.cmdline())
    for secret in secrets:
        assert secret not in logs
        assert secret not in arguments


def test_worker_sockets_are_private(up):
    sockets = list((up.home / "sockets").glob("*.sock"))
    assert sockets
    for path in sockets:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_second_start_keeps_all_data_and_a_stop_leaves_nothing_running():
    with tempfile.TemporaryDirectory(prefix="lockgate-e2e-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        with installation(home, MODEL="synthetic:name=tiny") as first:
            key = first.create_key("Kept")
            demo = first.demo
            children = processes_of(first)[1:]
            assert len(children) >= 6
        assert first.process.returncode == 0, first.output
        assert not [p for p in children if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        with installation(home, MODEL="synthetic:name=tiny") as second:
            assert second.demo["api_key"] == demo["api_key"]
            assert second.demo["password"] == demo["password"]
            assert httpx.get(f"{second.url}/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
            again = subprocess.run(
                [sys.executable, "manage.py", "up"], cwd=ROOT, env=second.environment | {"PORT": str(free_port())}, capture_output=True,
                text=True, timeout=60, check=False,
            )  # fmt: skip
            assert "another `manage.py up` is running" in again.stderr
            second.process.send_signal(signal.SIGINT)
            second.process.wait(60)
        assert second.process.returncode == 0


def test_a_busy_port_is_one_clear_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = up_fails(PORT=str(port))
    assert said.count("\n") == 0
    assert f"PORT: 127.0.0.1:{port} can't be used" in said


def test_an_unwritable_folder_is_one_clear_line():
    said = up_fails(LOCKGATE_HOME="/proc/lockgate", PORT=str(free_port()))
    assert said.count("\n") == 0
    assert "LOCKGATE_HOME: /proc/lockgate can't be written" in said


@pytest.mark.parametrize(
    ("variable", "value"), [("PORT", "99999"), ("PORT", "abc"), ("WORKERS", "0"), ("WEB", "x"), ("PRECISION", "fp7")], ids=str
)
def test_a_wrong_variable_is_named(variable, value):
    said = up_fails(**{"PORT": str(free_port()), variable: value})
    assert said.count("\n") == 0
    assert variable in said


def test_a_broken_model_file_is_one_clear_line(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00 and then nothing of use")
    said = up_fails(MODEL=str(broken), PORT=str(free_port()))
    assert said.count("\n") == 0
    assert "broken.gguf" in said
