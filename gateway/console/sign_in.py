"""Signing in, with a bound on guesses per address and per name."""

import hashlib
import logging
import math
from dataclasses import dataclass
from functools import cache

import redis
from django.conf import settings
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.http import HttpRequest

from gateway.console.people import address_of, role_of

logger = logging.getLogger(__name__)

ATTEMPTS = 10
WINDOW_S = 900

# Counts before the password is looked at, so that guesses in parallel are bounded too. Returns the seconds to wait, 0 if it may go on.
_TAKE = """
local wait = 0
for _, key in ipairs(KEYS) do
  if tonumber(redis.call('GET', key) or '0') >= tonumber(ARGV[1]) then wait = math.max(wait, redis.call('TTL', key)) end
end
if wait > 0 then return wait end
for _, key in ipairs(KEYS) do
  if redis.call('INCR', key) == 1 then redis.call('EXPIRE', key, ARGV[2]) end
end
return 0
"""


@dataclass(frozen=True, kw_only=True)
class Denied:
    message: str
    retry_after_s: int | None = None


@cache
def _client() -> redis.Redis:
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)


def sign_in(request: HttpRequest, name: str, password: str) -> User | Denied:
    """The operator or auditor of that name and password, or why not. Starts no session."""
    keys = _counters(request, name)
    wait_s = _take(keys)
    if wait_s:
        minutes = math.ceil(wait_s / 60)
        return Denied(message=f"Too many attempts. Try again in {minutes} min.", retry_after_s=wait_s)
    user = authenticate(request, username=name, password=password)
    if not isinstance(user, User) or role_of(user) is None:
        return Denied(message="Name or password is wrong.")
    _forget(keys)
    return user


def _counters(request: HttpRequest, name: str) -> tuple[str, str]:
    hashed = hashlib.sha256(name.strip().lower().encode()).hexdigest()[:32]
    return f"lockgate:signin:address:{address_of(request) or 'socket'}", f"lockgate:signin:name:{hashed}"


def _take(keys: tuple[str, str]) -> int:
    try:
        return int(_client().eval(_TAKE, len(keys), *keys, ATTEMPTS, WINDOW_S))
    except redis.RedisError:
        # Whoever must mend Valkey has to get in; Argon2 and the least length of passwords bound the guesses meanwhile.
        logger.warning("Sign-in attempts aren't counted: Valkey can't be reached", exc_info=True)
        return 0


def _forget(keys: tuple[str, str]) -> None:
    try:
        _client().delete(*keys)
    except redis.RedisError:
        logger.warning("Sign-in attempts weren't reset: Valkey can't be reached", exc_info=True)
