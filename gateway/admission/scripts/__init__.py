"""The scripts that admission runs inside Redis: one call each, so that every check and every debit happens at once."""

import hashlib
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

_FOLDER = Path(__file__).parent
_SHARED = "".join((_FOLDER / f"{name}.lua").read_text() for name in ("common", "identity", "holds"))
_PIPELINED = 200

Argument = str | int | float | bytes
Guard = Callable[[], Awaitable[None]]


class Script:
    """One script. Redis forgets scripts when it restarts: `guard` then has a say before this one is loaded again."""

    def __init__(self, name: str) -> None:
        self._body = _SHARED + (_FOLDER / f"{name}.lua").read_text()
        self._sha = hashlib.sha1(self._body.encode(), usedforsecurity=False).hexdigest()

    async def run(self, redis: Redis, *arguments: Argument, guard: Guard | None = None) -> Any:
        """Run it. Raises what the client raises, and what `guard` raises."""
        try:
            return await redis.evalsha(self._sha, 0, *arguments)
        except NoScriptError:
            if guard is not None:
                await guard()
            return await redis.eval(self._body, 0, *arguments)

    async def run_each(self, redis: Redis, calls: Iterable[tuple[Argument, ...]]) -> None:
        """Run it once for each of the calls, many in one round trip. Raises the first error that there is."""
        pending = list(calls)
        if pending:
            await redis.script_load(self._body)
        for start in range(0, len(pending), _PIPELINED):
            async with redis.pipeline(transaction=False) as pipeline:
                for arguments in pending[start : start + _PIPELINED]:
                    pipeline.evalsha(self._sha, 0, *arguments)
                await pipeline.execute()
