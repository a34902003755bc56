import pytest

from tests.gateway.admission.stage import Stage, scripts, set_clock_in


@pytest.fixture
def clock(monkeypatch):
    """All scripts read the time that the test says."""
    for script in scripts():
        set_clock_in(script, monkeypatch)


@pytest.fixture
async def stage(redis, clock) -> Stage:
    stage = Stage(redis)
    await stage.open()
    return stage
