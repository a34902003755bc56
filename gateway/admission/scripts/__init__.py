"""The scripts that admission runs inside Redis: one call each, so that every check and every debit happens at once."""

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

_FOLDER = Path(__file__).parent
_SHARED = (_FOLDER / "common.lua").read_text() + (_FOLDER / "reap.lua").read_text()

Guard = Callable[[], Awaitable[None]]


class Script:
    """One script. Redis forgets scripts when it restarts: `guard` then has a say before this one is loaded again."""

    def __init__(self, name: str) -> None:
        self._body = _SHARED + (_FOLDER / f"{name}.lua").read_text()
        self._sha = hashlib.sha1(self._body.encode(), usedforsecurity=False).hexdigest()

    async def run(self, redis: Redis, *arguments: str | int | float | bytes, guard: Guard | None = None) -> Any:
        """Run it. Raises what the client raises, and what `guard` raises."""
        try:
            return await redis.evalsha(self._sha, 0, *arguments)
        except NoScriptError:
            if guard is not None:
                await guard()
            return await redis.eval(self._body, 0, *arguments)
