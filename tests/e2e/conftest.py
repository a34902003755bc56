from collections.abc import Iterator

import pytest

from tests.e2e.installation import RunningInstallation, installation


@pytest.fixture(scope="session")
def up() -> Iterator[RunningInstallation]:
    """One installation on the default model in full precision, for all end-to-end tests that don't break it."""
    with installation(PRECISION="fp32", WEB="2") as running:
        yield running


@pytest.fixture(scope="session")
def model(up: RunningInstallation) -> str:
    return next(line.split("serving ")[1].rstrip(".") for line in up.lines if line.startswith("Lockgate is up"))
