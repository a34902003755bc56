import json
from pathlib import Path

import pytest

from gateway.configuration import ConfigurationError, integer, read, services_file

KEY = "k" * 32


def configured(home: Path, **environ: str):
    return read({"LOCKGATE_HOME": str(home), "LOCKGATE_SECRET_KEY": KEY} | environ)


def test_environment_goes_before_what_up_wrote(tmp_path):
    services_file(tmp_path).write_text(json.dumps({"database_url": "postgresql://up/1", "redis_url": "redis://up", "port": 8123}))
    found = configured(tmp_path, REDIS_URL="redis://mine")
    assert (found.database_url, found.redis_url, found.port) == ("postgresql://up/1", "redis://mine", 8123)


def test_hosts_may_be_written_with_spaces(tmp_path):
    assert configured(tmp_path, LOCKGATE_ALLOWED_HOSTS="a.example, b.example ,").allowed_hosts == ("a.example", "b.example")


def test_secret_key_is_the_one_that_is_kept_in_the_home(tmp_path):
    (tmp_path / "secret.key").write_text("kept-in-the-home\n")
    assert read({"LOCKGATE_HOME": str(tmp_path)}).secret_key == "kept-in-the-home"


def test_database_url_is_taken_apart_and_unquoted(tmp_path):
    database = configured(tmp_path, DATABASE_URL="postgresql://us%40er:p%2Fw@db.example:6543/name").database()
    expected = {"NAME": "name", "USER": "us@er", "PASSWORD": "p/w", "HOST": "db.example", "PORT": "6543"}
    assert database == {"ENGINE": "django.db.backends.postgresql"} | expected


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"PORT": "0"}, "PORT"),
        ({"PORT": "many"}, "PORT"),
        ({"LOCKGATE_SECRET_KEY": "short"}, "LOCKGATE_SECRET_KEY"),
        ({"LOCKGATE_WORKER_SECRET_FILE": "/nowhere"}, "LOCKGATE_WORKER_SECRET_FILE"),
    ],
)
def test_the_variable_that_is_wrong_is_named(tmp_path, environ, named):
    with pytest.raises(ConfigurationError, match=f"^{named}: "):
        configured(tmp_path, **environ)


def test_database_url_of_another_kind_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"^DATABASE_URL: .*'mysql'"):
        configured(tmp_path, DATABASE_URL="mysql://db/name").database()


def test_unreadable_services_file_is_named(tmp_path):
    services_file(tmp_path).write_text("{")
    with pytest.raises(ConfigurationError, match=r"services\.json is not valid JSON"):
        configured(tmp_path)


def test_integer_takes_both_bounds():
    assert [integer("WEB", text, low=1, high=64) for text in ("1", "64")] == [1, 64]
