"""What the workers say of themselves, read from the registry. A worker that is gone or unreadable is marked, and hides no other."""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

import msgspec
import redis
from django.conf import settings

from inference.protocol.frames import Load
from inference.protocol.registry import WORKERS_KEY, Registration, worker_key


def blocks_held(load: Load) -> int:
    """Blocks of running requests."""
    return load.blocks_total - load.blocks_free - load.blocks_cached


@dataclass(frozen=True, kw_only=True)
class Worker:
    id: str
    registration: Registration | None = None
    load: Load | None = None
    problem: str = ""
    """Why `load` is missing; empty where it isn't."""

    @property
    def started_at(self) -> datetime | None:
        return None if self.registration is None else datetime.fromtimestamp(self.registration.started_at_ms / 1000, UTC)


@dataclass(frozen=True, kw_only=True)
class Fleet:
    at: datetime
    workers: tuple[Worker, ...] = ()
    problem: str = ""
    """Why nothing could be read; empty where it could."""

    @property
    def loads(self) -> list[Load]:
        return [worker.load for worker in self.workers if worker.load is not None]

    @property
    def partial(self) -> bool:
        """Some worker's figures are missing from the sums."""
        return bool(self.problem) or any(worker.problem for worker in self.workers)

    def total(self, field: str) -> int | None:
        """The sum over all workers that are heard; None where none is."""
        return sum(getattr(load, field) for load in self.loads) if self.loads else None


@cache
def _client() -> redis.Redis:
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)


def read() -> Fleet:
    """The fleet now. Blocks for two round trips at most; raises nothing for what a worker or Valkey does wrong."""
    now = datetime.now(UTC)
    client = _client()
    try:
        ids = sorted(member.decode(errors="replace") if isinstance(member, bytes) else member for member in client.smembers(WORKERS_KEY))
        pipeline = client.pipeline(transaction=False)
        for worker_id in ids:
            pipeline.hmget(worker_key(worker_id), "registration", "load")
        answers = pipeline.execute(raise_on_error=False) if ids else []
    except redis.RedisError as error:
        return Fleet(at=now, problem=f"Valkey can't be reached: {error}")
    return Fleet(at=now, workers=tuple(_worker(worker_id, answer) for worker_id, answer in zip(ids, answers, strict=True)))


def _worker(worker_id: str, answer: object) -> Worker:
    match answer:
        case [bytes() as registered, bytes() as heartbeat]:
            pass
        case [None, None]:
            return Worker(id=worker_id, problem="No heartbeat. It is gone, or its machine can't reach Valkey.")
        case _:
            return Worker(id=worker_id, problem="Its entry in the registry is incomplete.")
    try:
        return Worker(
            id=worker_id,
            registration=msgspec.json.decode(registered, type=Registration),
            load=msgspec.json.decode(heartbeat, type=Load),
        )
    except msgspec.MsgspecError as error:
        return Worker(id=worker_id, problem=f"Its entry in the registry can't be read: {error}")
