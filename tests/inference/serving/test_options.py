"""What the worker's command line and environment come to, and which mistake is named how."""

from pathlib import Path

import pytest

from inference.config import EngineConfig, FairnessConfig
from inference.errors import ConfigError
from inference.serving.options import WorkerOptions, parse


def parsed(*flags: str, environ: dict[str, str] | None = None) -> WorkerOptions:
    given = " ".join(flags)
    address = () if "--listen" in given or "--socket" in given else ("--socket", "/run/w.sock")
    arguments = ["--home", "/data", "--worker-id", "w1", "--model", "synthetic", *address, *flags]
    return parse(arguments, {"REDIS_URL": "redis://localhost"} if environ is None else environ)


def test_defaults_are_the_engines_own() -> None:
    options = parsed()
    assert options.engine == EngineConfig()
    assert (options.redis_url, options.socket, options.listen) == ("redis://localhost", Path("/run/w.sock"), None)


def test_engine_settings_come_from_the_environment_and_flags_win() -> None:
    environ = {
        "REDIS_URL": "redis://localhost",
        "LOCKGATE_ENGINE_BLOCKS": "100",
        "LOCKGATE_ENGINE_MAX_SEQUENCES": "7",
        "LOCKGATE_ENGINE_PREFIX_CACHE": "no",
        "LOCKGATE_ENGINE_FAIRNESS_QUANTUM": "33",
        "LOCKGATE_ENGINE_QUEUE_LIMIT": "",
    }
    engine = parsed("--max-sequences", "9", "--queue-timeout-s", "1.5", environ=environ).engine
    assert engine == EngineConfig(blocks=100, max_sequences=9, prefix_cache=False, queue_timeout_s=1.5, fairness=FairnessConfig(quantum=33))


def test_tcp_with_a_secret(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x" * 32 + "\n")
    options = parsed("--listen", "[::1]:9000", "--secret-file", str(secret))
    assert (options.listen, options.secret, options.socket) == (("::1", 9000), b"x" * 32, None)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(["--listen", "127.0.0.1:0"], "--listen needs --secret-file", id="TCP without a secret"),
        pytest.param(
            ["--listen", "127.0.0.1:0", "--secret-file", "/nowhere"], "--secret-file: /nowhere: No such file", id="no secret file"
        ),
        pytest.param(["--listen", "127.0.0.1:0", "--secret-file", "/dev/null"], "at least 32 are needed", id="too short a secret"),
        pytest.param(["--listen", "somewhere"], "--listen: expected host:port, got 'somewhere'", id="no port"),
        pytest.param(["--socket", "/" + "x" * 200], "--socket: .* is longer than the 107 bytes", id="too long a path"),
        pytest.param(["--max-sequences", "none"], "--max-sequences: 'none'", id="no number"),
        pytest.param(["--prefix-cache", "maybe"], "--prefix-cache: 'maybe'", id="no truth value"),
        pytest.param(["--step-tokens", "0"], "step_tokens must be at least 1", id="out of range"),
    ],
)
def test_mistake_is_named(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parsed(*flags)


def test_mistake_in_the_environment_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="LOCKGATE_ENGINE_BLOCKS: 'many'"):
        parsed(environ={"REDIS_URL": "redis://localhost", "LOCKGATE_ENGINE_BLOCKS": "many"})
    with pytest.raises(ConfigError, match="REDIS_URL"):
        parsed(environ={})
