"""Usage events for tests: the cast's ids, and one event with what a test cares about."""

import itertools
import uuid
from datetime import UTC, datetime

from tenants.ledger.models import QUANTITIES
from tenants.ledger.settlement import Event

ACME, RIVAL = uuid.UUID(int=0xAC), uuid.UUID(int=0xF1)
PROJECT, OTHER_PROJECT = uuid.UUID(int=0xB1), uuid.UUID(int=0xB2)
KEY, OTHER_KEY = uuid.UUID(int=0xC1), uuid.UUID(int=0xC2)
NOON = datetime(2026, 3, 14, 12, 30, tzinfo=UTC)

_sequence = itertools.count(1)


def event(*, at: datetime = NOON, sequence: int | None = None, day: int = 1000, month: int = 500, **fields: object) -> Event:
    """One request's usage; quantities by name, the others zero."""
    quantities = tuple(int(fields.pop(name, 0)) for name in QUANTITIES)  # type: ignore[call-overload]
    sequence = next(_sequence) if sequence is None else sequence
    known: dict[str, object] = {
        "worker": "w",
        "epoch": "e",
        "request_id": f"r{sequence}",
        "tenant_id": ACME,
        "project_id": PROJECT,
        "key_id": KEY,
        "model": "small",
        "endpoint": "chat",
        "reason": "stop",
    }
    values = {name: str(value) for name, value in (known | fields).items()}
    return Event(occurred_at=at, sequence=sequence, budget_day=day, budget_month=month, quantities=quantities, **values)
