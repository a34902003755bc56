"""Claims a request's hold before its first step and keeps its leases alive while it lives. See `protocol.frames.Lease`.

All claims that came together go to Redis in one call, and so do all renewals. The engine never waits for either.
"""

import asyncio
import hashlib
import logging
from enum import Enum, auto

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from inference.protocol.frames import Lease

log = logging.getLogger(__name__)

_BATCH = 500
_RETRY_S = 0.5
_NEVER_MS = 1 << 62

# KEYS: hold, expiry keys … ARGV: worker, member, time to live in ms.
_CLAIM = """
if redis.call('HGET', KEYS[1], 'state') ~= 'held' then return 0 end
redis.call('HSET', KEYS[1], 'state', 'claimed', 'worker', ARGV[1])
local time = redis.call('TIME')
local expiry = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[3]
for i = 2, #KEYS do redis.call('ZADD', KEYS[i], 'XX', expiry, ARGV[2]) end
return 1
"""
_CLAIM_SHA = hashlib.sha1(_CLAIM.encode(), usedforsecurity=False).hexdigest()

# KEYS: expiry keys. ARGV: member and time to live in ms of each.
_RENEW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 1, #KEYS do redis.call('ZADD', KEYS[i], 'XX', now + ARGV[2 * i], ARGV[2 * i - 1]) end
return #KEYS
"""


class Claim(Enum):
    """What became of a claim."""

    HELD = auto()
    """It is ours, and its leases are kept alive until `release`."""
    EXPIRED = auto()
    """The hold is gone, or somebody else has claimed it."""
    UNREACHABLE = auto()
    """Redis didn't answer; the hold may or may not be claimed. The request doesn't run."""


class Leases:
    """The leases of this worker's requests. Belongs to the event loop."""

    def __init__(self, redis: Redis, *, worker_id: str) -> None:
        self._redis = redis
        self._worker_id = worker_id
        self._kept: dict[str, Lease] = {}
        self._claims: list[tuple[str, Lease, asyncio.Future[Claim]]] = []
        self._claiming: asyncio.Task[None] | None = None
        self._shortest_ms = _NEVER_MS
        self._shorter = asyncio.Event()

    def __len__(self) -> int:
        return len(self._kept)

    async def claim(self, request_id: str, lease: Lease) -> Claim:
        """Claim the hold for this worker, together with all other claims of the moment."""
        claimed: asyncio.Future[Claim] = asyncio.get_running_loop().create_future()
        self._claims.append((request_id, lease, claimed))
        if self._claiming is None:
            self._claiming = asyncio.create_task(self._send_claims())
        return await claimed

    def release(self, request_id: str) -> None:
        """Stop renewing: the request has ended."""
        self._kept.pop(request_id, None)
        if not self._kept:
            self._shortest_ms = _NEVER_MS

    async def run(self) -> None:
        """Renew everything at a third of the shortest time to live, until cancelled. An outage is outlived: renewals are tried again."""
        reachable = True
        while True:
            self._shorter.clear()
            wait_s = self._shortest_ms / 3000
            if not reachable:
                wait_s = min(wait_s, _RETRY_S)
            try:
                async with asyncio.timeout(min(wait_s, 3600.0)):
                    await self._shorter.wait()
                continue
            except TimeoutError:
                pass
            try:
                await self.renew()
            except (RedisError, OSError) as error:
                if reachable:
                    log.warning("leases can't be renewed, trying again: %s", error)
                reachable = False
            else:
                reachable = True

    async def renew(self) -> None:
        """Renew every lease now, in one pipelined call. Raises RedisError or OSError."""
        kept = list(self._kept.values())
        if not kept:
            return
        async with self._redis.pipeline(transaction=False) as pipe:
            for start in range(0, len(kept), _BATCH):
                keys: list[str] = []
                values: list[str] = []
                for lease in kept[start : start + _BATCH]:
                    for key in lease.expiry_keys:
                        keys.append(key)
                        values += (lease.member, str(lease.ttl_ms))
                pipe.eval(_RENEW, len(keys), *keys, *values)
            await pipe.execute()

    async def _send_claims(self) -> None:
        while self._claims:
            batch, self._claims = self._claims[:_BATCH], self._claims[_BATCH:]
            for (request_id, lease, claimed), outcome in zip(batch, await self._claim_all([lease for _, lease, _ in batch]), strict=True):
                if outcome is Claim.HELD:
                    self._keep(request_id, lease)
                if not claimed.done():
                    claimed.set_result(outcome)
        self._claiming = None

    async def _claim_all(self, leases: list[Lease]) -> list[Claim]:
        try:
            answers = await self._evaluate_claims(leases)
            missing = [i for i, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
            if missing:
                await self._redis.script_load(_CLAIM)
                for i, answer in zip(missing, await self._evaluate_claims([leases[i] for i in missing]), strict=True):
                    answers[i] = answer
        except (RedisError, OSError) as error:
            log.warning("%d claims failed: %s", len(leases), error)
            return [Claim.UNREACHABLE] * len(leases)
        return [self._outcome(answer) for answer in answers]

    async def _evaluate_claims(self, leases: list[Lease]) -> list[object]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for lease in leases:
                keys = (lease.hold_key, *lease.expiry_keys)
                pipe.evalsha(_CLAIM_SHA, len(keys), *keys, self._worker_id, lease.member, str(lease.ttl_ms))
            answers: list[object] = await pipe.execute(raise_on_error=False)
            return answers

    @staticmethod
    def _outcome(answer: object) -> Claim:
        if isinstance(answer, Exception):
            log.warning("a claim failed: %s", answer)
            return Claim.UNREACHABLE
        return Claim.HELD if answer == 1 else Claim.EXPIRED

    def _keep(self, request_id: str, lease: Lease) -> None:
        self._kept[request_id] = lease
        if lease.ttl_ms < self._shortest_ms:
            self._shortest_ms = lease.ttl_ms
            self._shorter.set()
