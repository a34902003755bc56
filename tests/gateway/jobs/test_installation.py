import os

import pytest
import yaml

from gateway.configuration import ConfigurationError
from gateway.jobs.installation import ROOT, listen, prepare_home, worker_environment
from kernels import threads


def test_engine_processes_start_with_what_the_kernels_ask_for():
    assert worker_environment() == threads.ENVIRONMENT


@pytest.mark.parametrize("service", ["worker", "worker-gpu"])
def test_composed_engine_processes_start_with_the_same(service):
    environment = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"][service]["environment"]
    assert environment.items() >= threads.ENVIRONMENT.items()


def test_one_home_belongs_to_one_up(tmp_path):
    lock = prepare_home(tmp_path)
    with pytest.raises(ConfigurationError, match=r"another `manage\.py up` is running"):
        prepare_home(tmp_path)
    os.close(lock)
    os.close(prepare_home(tmp_path))


def test_a_secret_key_is_made_once_and_is_private(tmp_path):
    os.close(prepare_home(tmp_path))
    key = tmp_path / "secret.key"
    made = key.read_text()
    os.close(prepare_home(tmp_path))
    assert key.read_text() == made
    assert len(made) >= 32
    assert key.stat().st_mode & 0o077 == 0


def test_a_port_that_is_taken_is_named():
    with listen("127.0.0.1", 0) as first, pytest.raises(ConfigurationError, match=r"^PORT: 127\.0\.0\.1:"):
        listen("127.0.0.1", first.getsockname()[1])
