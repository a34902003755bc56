"""Counts in Redis what the ledger has committed: every stream entry once, whatever dies in between."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from redis.asyncio import Redis

from gateway.admission.scripts import Argument, Script
from inference.protocol.registry import committed_key
from tenants.ledger.settlement import Event

COMMITTED_TTL_MS = 7 * 86_400_000
_AT_ONCE = 50  # a few milliseconds in which Redis does nothing else

_BOOK = Script("book")


@dataclass(frozen=True, slots=True, kw_only=True)
class Booked:
    """A stream entry whose event is in the ledger."""

    entry: str
    event: Event
    row: int
    is_source: bool
    """It was this entry, not another one with the same event, that brought it there."""

    def arguments(self) -> tuple[Argument, ...]:
        event = self.event
        return (
            *(self.entry, int(self.is_source), committed_key(event.epoch), event.sequence, self.row, event.request_id, event.charged),
            *(event.key_id, event.project_id, event.tenant_id, f"{event.budget_day} {event.budget_month}"),
        )


async def book(redis: Redis, entries: Sequence[Booked], *, stream: str, group: str) -> None:
    """Settle what the gateway hasn't, tell the workers, acknowledge. Doing it again changes nothing."""
    for start in range(0, len(entries), _AT_ONCE):
        part = chain.from_iterable(entry.arguments() for entry in entries[start : start + _AT_ONCE])
        await _BOOK.run(redis, stream, group, COMMITTED_TTL_MS, *part)
