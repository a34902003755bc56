"""Tells the registry in Redis and every gateway that this worker lives, and how loaded it is. See `protocol.registry`."""

import asyncio
import logging

from msgspec import json
from redis.asyncio import Redis
from redis.exceptions import RedisError

from inference.protocol.registry import HEARTBEAT_S, REGISTRATION_TTL_MS, WORKERS_KEY, Registration, worker_key
from inference.serving.service import Service

log = logging.getLogger(__name__)


class Announcement:
    """The worker's entry in the registry."""

    def __init__(self, redis: Redis, registration: Registration, service: Service) -> None:
        self._redis = redis
        self._registration = registration
        self._service = service
        self._key = worker_key(registration.worker_id)
        self.announced = asyncio.Event()
        """The registry has known this worker at least once."""

    async def run(self) -> None:
        """A heartbeat a second until cancelled. An outage of Redis is outlived; gateways that are linked hear the load all the same."""
        reachable = True
        while True:
            self._service.tell_load()
            try:
                await self._announce()
            except (RedisError, OSError) as error:
                if reachable:
                    log.warning("the registry can't be reached, trying again: %s", error)
                reachable = False
            else:
                reachable = True
                self.announced.set()
            await asyncio.sleep(HEARTBEAT_S)

    async def withdraw(self) -> None:
        """Leave the registry; if Redis is away, the entry runs out by itself."""
        try:
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.delete(self._key)
                pipe.srem(WORKERS_KEY, self._registration.worker_id)
                await pipe.execute()
        except (RedisError, OSError) as error:
            log.warning("left without telling the registry: %s", error)

    async def _announce(self) -> None:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(self._key, mapping={"registration": json.encode(self._registration), "load": json.encode(self._service.load)})
            pipe.pexpire(self._key, REGISTRATION_TTL_MS)
            pipe.sadd(WORKERS_KEY, self._registration.worker_id)
            await pipe.execute()
