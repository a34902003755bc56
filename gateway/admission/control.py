"""Who is calling, and may they: every limit of every scope in one Redis call. See scripts/admit.lua for the rules."""

import hashlib
import hmac
import json
import math
from collections.abc import Sequence
from typing import Any, cast

from redis.asyncio import Redis

from gateway.admission.domains import cache_domain
from gateway.admission.outcomes import Admission, Call, Caller, Extension, Granted, LimitState, RefusalCode, Refused
from gateway.admission.scripts import Script
from inference.protocol.frames import Lease
from inference.protocol.usage import Counters, FinishReason

READY = "lockgate:ready"
HOLDS = "lockgate:holds"
TRANCHE_TOKENS = 256
LEASE_MS = 8_000
"""A hold whose gateway dies before a worker has claimed it is back this soon; workers renew three times as often."""
SILENT_MS = 900_000
"""For so long a claimed hold waits for its worker to come back and settle from its journal; then its tokens are given back."""
UNBOOKED_MS = 7 * 86_400_000
"""For so long what was settled waits for its ledger event; then the journal that had it is taken for lost."""
UNAVAILABLE_RETRY_S = 1.0

_ADMIT, _IDENTIFY, _EXTEND = Script("admit"), Script("identify"), Script("extend")
_SETTLE, _RELEASE, _TEND = Script("settle"), Script("release"), Script("tend")
_NO_MODEL = frozenset({""})
_CALLER, _RATES = slice(4, 13), slice(13, 19)

_LIMIT_WORDS = {
    "requests_per_minute": "requests per minute",
    "tokens_per_minute": "tokens per minute",
    "in_flight": "requests in flight",
    "tokens_per_day": "tokens per day",
    "tokens_per_month": "tokens per month",
}


class AdmissionClosed(Exception):
    """Redis has restarted and isn't rebuilt yet. Try again in a moment."""


def digest_of(key: str) -> str:
    """What a key is known by: its SHA-256, in hex."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def cache_secret() -> bytes:
    """The installation's secret for cache domains, derived from its secret key."""
    from django.conf import settings  # the request path itself needs no Django

    return hmac.new(settings.SECRET_KEY.encode(), b"lockgate cache domains", hashlib.sha256).digest()


async def run_id(redis: Redis) -> str:
    """Changes whenever the server restarts."""
    return str((await redis.info("server"))["run_id"])


class AdmissionControl:
    """Admission over one Redis. Any number of processes share one count. All methods may raise RedisError."""

    def __init__(self, redis: Redis, *, secret: bytes | None = None, tranche: int = TRANCHE_TOKENS, lease_ms: int = LEASE_MS) -> None:
        self._redis = redis
        self._secret = cache_secret() if secret is None else secret
        self._tranche = tranche
        self._lease_ms = lease_ms

    async def authenticate(self, digest: str) -> Caller | Refused:
        """Who the key belongs to; counts nothing."""
        answer = await self._ask(_IDENTIFY, digest)
        if answer[0] == "granted":
            return self._caller(answer)
        return _refusal(answer, model="")

    async def limits(self, digest: str) -> LimitState | None:
        """What the key's own scope has left; None for a key that may not come in."""
        answer = await self._ask(_IDENTIFY, digest)
        return _limit_state(answer[_RATES]) if answer[0] == "granted" else None

    async def admit(self, call: Call) -> Admission:
        """Hold the call's prompt and a first tranche of output at every scope, or refuse and leave everything as it was."""
        answer = await self._ask(
            _ADMIT,
            call.digest,
            call.request_id,
            call.model,
            call.prompt_tokens,
            call.max_tokens,
            self._tranche,
            self._lease_ms,
            SILENT_MS,
        )
        if answer[0] != "granted":
            return _refusal(answer, model=call.model)
        caller = self._caller(answer)
        account = {"k": caller.key_id, "p": caller.project_id, "t": caller.tenant_id, "m": call.model, "e": call.endpoint}
        account |= {"d": answer[2], "o": answer[3]}
        return Granted(
            caller=caller,
            allowance=int(answer[1]),
            lease=Lease(
                hold_key=f"lockgate:hold:{call.request_id}",
                expiry_keys=(
                    HOLDS,
                    f"lockgate:inflight:key:{caller.key_id}",
                    f"lockgate:inflight:project:{caller.project_id}",
                    f"lockgate:inflight:tenant:{caller.tenant_id}",
                ),
                member=call.request_id,
                ttl_ms=self._lease_ms,
            ),
            account=json.dumps(account, separators=(",", ":")),
            limits=_limit_state(answer[_RATES]),
        )

    async def extend(self, request_id: str, wanted: int) -> Extension:
        """Raise the hold to `wanted` output tokens in all, or as far as every scope allows."""
        try:
            answer = _decoded(await _EXTEND.run(self._redis, request_id, wanted, guard=self._check_run_id))
        except AdmissionClosed:
            return Extension(allowance=0, ended_by="rate", retry_after_s=UNAVAILABLE_RETRY_S)
        allowance, ended_by, wait_ms = answer
        return Extension(
            allowance=int(allowance),
            ended_by=cast("Any", ended_by or None),
            retry_after_s=int(wait_ms) / 1000 if wait_ms else None,
        )

    async def settle(self, request_id: str, counters: Counters, reason: FinishReason) -> bool:
        """Charge prompt and billed tokens, give back the rest and the slot. Idempotent; returns whether anything changed."""
        return bool(await _SETTLE.run(self._redis, request_id, charged_tokens(counters)))

    async def release(self, request_id: str) -> bool:
        """Undo an admission whose request never ran: nothing stays charged, the call itself included. Idempotent."""
        return bool(await _RELEASE.run(self._redis, request_id))

    async def tend(self, most: int = 500) -> int:
        """Deal with holds whose lease has expired, whose worker or whose ledger event never came; returns how many."""
        return int(await _TEND.run(self._redis, most, SILENT_MS, UNBOOKED_MS))

    async def _ask(self, script: Script, *arguments: str | int) -> list[str]:
        try:
            return _decoded(await script.run(self._redis, *arguments, guard=self._check_run_id))
        except AdmissionClosed:
            return ["unavailable"]

    async def _check_run_id(self) -> None:
        """A restarted Redis may have lost its last second: close admission until its counters are rebuilt."""
        ready: bytes | None = await self._redis.get(READY)  # type: ignore[assignment]  # the client decodes nothing
        if ready is not None and ready.decode() != await run_id(self._redis):
            await self._redis.delete(READY)
            raise AdmissionClosed

    def _caller(self, answer: Sequence[str]) -> Caller:
        key, project, tenant, weight, priority, policy, epoch, group, models = answer[_CALLER]
        return Caller(
            key_id=key,
            project_id=project,
            tenant_id=tenant,
            share=tenant,
            weight=float(weight),
            tier=int(priority),
            cache_domain=cache_domain(self._secret, policy=policy, epoch=int(epoch), key=key, project=project, tenant=tenant, group=group),
            allowed_models=_allowed(models),
        )


def charged_tokens(counters: Counters) -> int:
    """What a request costs its budgets: the prompt once, cached or not, and the output that is billed."""
    return counters.prompt_tokens + counters.billed_tokens


def _decoded(answer: list[bytes]) -> list[str]:
    return [part.decode() if isinstance(part, bytes) else str(part) for part in answer]


def _allowed(models: str) -> frozenset[str]:
    """The models that every scope allows; empty where no scope names any, a name that no model has where they agree on none."""
    named = [frozenset(part.strip("\n").split("\n")) for part in models.split("\0") if part]
    return (frozenset.intersection(*named) or _NO_MODEL) if named else frozenset()


def _limit_state(parts: Sequence[str]) -> LimitState:
    def number(value: str) -> int | None:
        return int(value) if value else None

    def seconds(value: str) -> float | None:
        return int(value) / 1000 if value else None

    if not parts:
        parts = [""] * 6
    requests, requests_left, requests_ms, tokens, tokens_left, tokens_ms = parts
    return LimitState(
        limit_requests=number(requests),
        remaining_requests=number(requests_left),
        reset_requests_s=seconds(requests_ms),
        limit_tokens=number(tokens),
        remaining_tokens=number(tokens_left),
        reset_tokens_s=seconds(tokens_ms),
    )


def _refusal(answer: Sequence[str], *, model: str) -> Refused:
    code, scope, limit, value, wait = (*answer, "", "", "", "")[:5]
    known_scope = cast("Any", scope or None)
    match code:
        case "invalid_api_key":
            return Refused(code="invalid_api_key", message="The API key is unknown, revoked or expired.")
        case "suspended":
            return Refused(code="suspended", scope=known_scope, message=f"This key's {scope} is suspended.")
        case "model_not_allowed":
            return Refused(code="model_not_allowed", scope=known_scope, message=f"The model `{model}` does not exist or you can't use it.")
        case "unavailable" | "duplicate":
            message = "Limits can't be checked at the moment; nothing was charged."
            return Refused(code="unavailable", message=message, retry_after_s=UNAVAILABLE_RETRY_S)
    words = f"{int(value):,} {_LIMIT_WORDS[limit]}".replace(",", " ")
    retry_after_s = int(wait) / 1000 if wait else None
    if retry_after_s is None:
        message = f"This request alone is more than this {scope}'s limit of {words}. Shorten the prompt or have the limit raised."
    elif code == "concurrency_limit_exceeded" and limit != "in_flight":
        message = f"The rest of this {scope}'s limit of {words} is held by requests in flight. Nothing was charged; try again in a moment."
    else:
        message = f"This {scope} has reached its limit of {words}. Nothing was charged; try again in {math.ceil(retry_after_s)} s."
    return Refused(
        code=cast("RefusalCode", code),
        message=message,
        limit=limit,
        scope=known_scope,
        retry_after_s=retry_after_s,
        limits=_limit_state(answer[5:]),
    )
