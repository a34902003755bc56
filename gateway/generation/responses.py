"""What any gateway process needs to take a resumable response over: kept in Redis while it runs and for a while after."""

from collections.abc import Sequence
from typing import Any, cast

from msgspec import Struct, msgpack
from redis.asyncio import Redis

from gateway.events import GenerationRequest
from inference.protocol.sampling import Sampling

RUNNING_TTL_S = 24 * 3600
ENDED_TTL_S = 120
"""A little longer than a worker keeps an ended response."""
TAIL_TOKENS = 64
"""Of the prompt: a character that it leaves open belongs to the answer."""


class ResponseRecord(Struct, frozen=True, kw_only=True):
    request_id: str
    key_id: str
    """The owner."""
    worker_id: str
    epoch: str
    endpoint: str
    model: str
    prompt_tail: list[int]
    prompt_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]
    include_stop: bool
    note: bytes
    """Of whoever started it, opaque here."""

    def request(self, digest: str) -> GenerationRequest:
        """The request again, with the end of its prompt only."""
        return GenerationRequest(
            digest=digest,
            request_id=self.request_id,
            endpoint=self.endpoint,
            model=self.model,
            prompt=self.prompt_tail,
            sampling=self.sampling,
            stop=self.stop,
            include_stop=self.include_stop,
            resumable=True,
        )


class KeptResponse(Struct, frozen=True, kw_only=True):
    record: ResponseRecord
    allowance: int
    """When last noted."""
    ended: bool


_decoder = msgpack.Decoder(ResponseRecord)


def _key(request_id: str) -> str:
    return f"lockgate:response:{request_id}"


class Responses:
    """A hash per response: `record`, `holder` (which generation reads it now), `allowance`, `ended`.

    All methods may raise RedisError or OSError.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis: Redis = redis

    async def save(self, record: ResponseRecord, *, holder: str, allowance: int) -> None:
        key = _key(record.request_id)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(key, mapping={"record": msgpack.encode(record), "holder": holder, "allowance": allowance})
            pipe.expire(key, RUNNING_TTL_S)
            await pipe.execute()

    async def load(self, request_id: str) -> KeptResponse | None:
        values = await cast(Any, self._redis.hmget(_key(request_id), ["record", "allowance", "ended"]))
        if values[0] is None:
            return None
        return KeptResponse(record=_decoder.decode(values[0]), allowance=int(values[1]), ended=values[2] is not None)

    async def hold(self, request_id: str, holder: str) -> None:
        """Say who reads it now."""
        await self._set(request_id, "holder", holder)

    async def holders(self, request_ids: Sequence[str]) -> list[str | None]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for request_id in request_ids:
                pipe.hget(_key(request_id), "holder")
            answers = await pipe.execute()
        return [None if answer is None else answer.decode() if isinstance(answer, bytes) else str(answer) for answer in answers]

    async def note_allowance(self, request_id: str, allowance: int) -> None:
        await self._set(request_id, "allowance", allowance)

    async def _set(self, request_id: str, field: str, value: str | int) -> None:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(_key(request_id), field, value)
            pipe.expire(_key(request_id), RUNNING_TTL_S)
            await pipe.execute()

    async def ended(self, request_id: str) -> None:
        """It is settled; whoever attaches from now on hears it again."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(_key(request_id), "ended", 1)
            pipe.expire(_key(request_id), ENDED_TTL_S)
            await pipe.execute()

    async def drop(self, request_id: str) -> None:
        await cast(Any, self._redis.delete(_key(request_id)))
