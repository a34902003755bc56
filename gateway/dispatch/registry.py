"""Finds workers in Redis (see `inference.protocol.registry`) and keeps a link to each."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from msgspec import MsgspecError, json
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.dispatch.link import Link, LinkTiming
from inference.protocol.registry import WORKERS_KEY, Registration, worker_key

log = logging.getLogger(__name__)

REFRESH_S = 1.0

_registration = json.Decoder(Registration)


class WorkerRegistry:
    """Links to all workers that live. A worker that Redis has lost is kept as long as its link is up."""

    def __init__(
        self,
        redis: Redis,
        *,
        gateway_id: str,
        secret: bytes | None = None,
        greeted: Callable[[Link], None] = lambda _: None,
        timing: LinkTiming | None = None,
    ) -> None:
        self._redis = redis
        self._gateway_id = gateway_id
        self._secret = secret
        self._greeted = greeted
        self._timing = timing or LinkTiming()
        self._links: dict[str, Link] = {}
        self._runner: asyncio.Task[None] | None = None

    @property
    def links(self) -> Iterable[Link]:
        return self._links.values()

    def link(self, worker_id: str) -> Link | None:
        return self._links.get(worker_id)

    async def open(self) -> None:
        """Look for the first time, and then every second."""
        await self._look()
        self._runner = asyncio.create_task(self._run(), name="worker registry")

    async def close(self) -> None:
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
            self._runner = None
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links))

    async def refresh(self) -> None:
        """Read the registry once. Raises RedisError, OSError; then nothing has changed."""
        found = await self._read()
        for worker_id, link in list(self._links.items()):
            registration = found.get(worker_id)
            moved = registration is not None and registration.address != link.address
            link.registered = registration is not None
            if moved or (registration is None and not link.up):
                del self._links[worker_id]
                await link.close()
            else:
                link.check_alive()
        for worker_id, registration in found.items():
            if worker_id not in self._links:
                self._links[worker_id] = Link(
                    registration, gateway_id=self._gateway_id, secret=self._secret, greeted=self._greeted, timing=self._timing
                )

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            await self._look()

    async def _look(self) -> None:
        try:
            await self.refresh()
        except (RedisError, OSError) as error:
            log.warning("the worker registry can't be read, links stay as they are: %s", error)
            for link in self._links.values():
                link.check_alive()

    async def _read(self) -> dict[str, Registration]:
        members = await self._redis.smembers(WORKERS_KEY)
        worker_ids = sorted(member.decode() if isinstance(member, bytes) else str(member) for member in members)
        if not worker_ids:
            return {}
        async with self._redis.pipeline(transaction=False) as pipe:
            for worker_id in worker_ids:
                pipe.hget(worker_key(worker_id), "registration")
            answers = await pipe.execute()
        found = {}
        for worker_id, answer in zip(worker_ids, answers, strict=True):
            if answer is None:
                continue  # its time has run out: it is gone
            try:
                found[worker_id] = _registration.decode(answer)
            except MsgspecError as error:
                log.error("worker %s is registered in a way that can't be read: %s", worker_id, error)
        return found
