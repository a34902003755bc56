"""A Redis with Acme's and Rival's projections in it and a clock that tests set, so that every wait can be waited out at once."""

import hashlib
import itertools
import uuid
from collections.abc import Iterator

from redis.asyncio import Redis

from gateway.admission import booking, control, projection
from gateway.admission.control import AdmissionControl, digest_of, run_id
from gateway.admission.outcomes import Admission, Call, Granted
from gateway.admission.scripts import Script
from inference.protocol.usage import Counters, FinishReason

LIMITS = ("requests_per_minute", "tokens_per_minute", "in_flight", "tokens_per_day", "tokens_per_month")
START = 1_772_000_000  # a day, and the month that it is in, begin here
DAY_S = 86_400
MONTH_S = 3 * DAY_S
LEASE_MS = 15_000


def _id(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


class Stage:
    """Acme has a key "acme" and a colleague's key "mate" in one project; Rival has one key."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.control = AdmissionControl(redis, secret=b"secret")
        self._numbers = itertools.count(1)
        self.now_ms = 0

    async def open(self) -> None:
        await self.set_clock((START + 60) * 1000)
        calendar = {
            "day_starts": str([START + i * DAY_S for i in range(-1, 8)]),
            "month_starts": str([START + i * MONTH_S for i in range(-1, 3)]),
        }
        none = dict.fromkeys(LIMITS, "") | {"models": "", "state": "active"}
        for name in ("acme", "rival"):
            tenant = none | calendar | {"weight": "1.0", "priority": "1", "policy": "tenant", "cache_epoch": "0", "group": ""}
            await self.redis.hset(f"lockgate:tenant:{_id(name)}", mapping=tenant)
            await self.redis.hset(f"lockgate:project:{_id(name)}", mapping=none | {"tenant": _id(name)})
        for name, owner in (("acme", "acme"), ("mate", "acme"), ("rival", "rival")):
            key = none | {"id": _id(f"key {name}"), "project": _id(owner), "tenant": _id(owner), "expires_ms": ""}
            await self.redis.hset(self.projected("key", name), mapping=key)
        await self.redis.set(control.READY, await run_id(self.redis))

    # --- who ------------------------------------------------------------------------------------------------------------------

    def projected(self, scope: str, name: str = "acme") -> str:
        """The hash of a scope's projection."""
        return f"lockgate:key:{digest_of(name)}" if scope == "key" else f"lockgate:{scope}:{_id(name)}"

    def owner(self, scope: str, name: str = "acme") -> str:
        return _id(f"key {name}") if scope == "key" else _id(name)

    def counters(self, scope: str, name: str = "acme") -> str:
        return f"lockgate:scope:{scope}:{self.owner(scope, name)}"

    async def limit(self, scope: str, name: str = "acme", **values: object) -> None:
        await self.redis.hset(self.projected(scope, name), mapping={field: str(value) for field, value in values.items()})

    # --- time -----------------------------------------------------------------------------------------------------------------

    async def set_clock(self, now_ms: int) -> None:
        self.now_ms = now_ms
        await self.redis.delete("clock")
        await self.redis.rpush("clock", now_ms // 1000, now_ms % 1000 * 1000)

    async def wait(self, seconds: float) -> None:
        await self.set_clock(self.now_ms + round(seconds * 1000))

    # --- what -----------------------------------------------------------------------------------------------------------------

    def call(self, *, name: str = "acme", prompt: int = 10, most: int = 100, request_id: str | None = None) -> Call:
        request_id = request_id or f"r{next(self._numbers)}"
        return Call(digest=digest_of(name), request_id=request_id, model="small", endpoint="chat", prompt_tokens=prompt, max_tokens=most)

    async def admit(self, **fields: object) -> Admission:
        return await self.control.admit(self.call(**fields))  # type: ignore[arg-type]

    async def granted(self, **fields: object) -> str:
        """Admit what must get in; its request id."""
        call = self.call(**fields)  # type: ignore[arg-type]
        admission = await self.control.admit(call)
        assert isinstance(admission, Granted), admission
        return call.request_id

    async def claim(self, request_id: str) -> bool:
        """As a worker does, see inference.leases."""
        hold = f"lockgate:hold:{request_id}"
        if await self.redis.hget(hold, "state") != b"held":
            return False
        await self.redis.hset(hold, "state", "claimed")
        await self.renew(request_id)
        return True

    async def renew(self, request_id: str) -> None:
        hold = await self.redis.hgetall(f"lockgate:hold:{request_id}")
        scopes = [f"lockgate:inflight:{scope}:{hold[scope.encode()].decode()}" for scope in ("key", "project", "tenant")]
        for name in (control.HOLDS, *scopes):
            await self.redis.zadd(name, {request_id: self.now_ms + LEASE_MS}, xx=True)

    async def settle(self, request_id: str, *, prompt: int = 10, billed: int = 0) -> bool:
        counters = Counters(prompt_tokens=prompt, computed_tokens=prompt, generated_tokens=billed, billed_tokens=billed)
        return await self.control.settle(request_id, counters, FinishReason.STOP)

    # --- what came of it --------------------------------------------------------------------------------------------------------

    async def budget(self, scope: str = "key", name: str = "acme", kind: str = "day", start: int = START) -> tuple[int, int]:
        """Captured and held tokens."""
        values = await self.redis.hmget(self.counters(scope, name), f"captured:{kind}:{start}", f"held:{kind}:{start}")
        return int(values[0] or 0), int(values[1] or 0)

    async def in_flight(self, scope: str = "key", name: str = "acme") -> int:
        return int(await self.redis.zcard(f"lockgate:inflight:{scope}:{self.owner(scope, name)}"))

    async def dump(self) -> dict[str, object]:
        """Everything admission keeps."""
        found: dict[str, object] = {}
        for name in sorted(await self.redis.keys("lockgate:*")):
            kind = (await self.redis.type(name)).decode()
            match kind:
                case "hash":
                    found[name.decode()] = await self.redis.hgetall(name)
                case "zset":
                    found[name.decode()] = await self.redis.zrange(name, 0, -1, withscores=True)
                case "string":
                    found[name.decode()] = await self.redis.get(name)
                case _:
                    raise AssertionError(f"{name!r} is a {kind}")
        return found


def scripts() -> Iterator[Script]:
    for module in (control, booking, projection):
        yield from (value for value in vars(module).values() if isinstance(value, Script))


def set_clock_in(script: Script, patch) -> None:
    """Let the script read the time that the test says."""
    body = script._body.replace("redis.call('TIME')", "redis.call('LRANGE', 'clock', 0, 1)")
    assert body != script._body
    patch.setattr(script, "_body", body)
    patch.setattr(script, "_sha", hashlib.sha1(body.encode()).hexdigest())
