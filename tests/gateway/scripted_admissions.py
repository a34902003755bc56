"""An admission that says what a test tells it, and remembers what it was asked."""

import asyncio
import hashlib
from dataclasses import dataclass, field

from gateway.admission.outcomes import Admission, Call, Caller, Extension, Granted, LimitState, Refused
from inference.protocol.frames import Lease
from inference.protocol.usage import Counters, FinishReason

NO_LIMITS = LimitState(
    limit_requests=None, remaining_requests=None, reset_requests_s=None, limit_tokens=None, remaining_tokens=None, reset_tokens_s=None
)


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def caller(name: str) -> Caller:
    return Caller(
        key_id=name,
        project_id=name,
        tenant_id=name,
        share=name,
        weight=1.0,
        tier=0,
        cache_domain=name.encode(),
        allowed_models=frozenset(),
    )


@dataclass
class ScriptedAdmissions:
    """Satisfies `gateway.generation.admissions.Admissions`. Two keys are known: acme and rival."""

    tranche: int = 16
    budget: int | None = None
    """Tokens after which every extension says that the budget has ended."""
    refusal: Refused | None = None
    rate_waits: list[float] = field(default_factory=list)
    """Extensions refused for a minute's rate, with their waits, before one succeeds."""
    lease: Lease | None = None
    held: dict[str, int] = field(default_factory=dict)
    settled: dict[str, tuple[Counters, FinishReason]] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)
    extensions: list[int] = field(default_factory=list)
    settling: asyncio.Event | None = None
    """Settlement waits for this, if there is one."""

    async def authenticate(self, digest: str) -> Caller | Refused:
        for name in ("acme", "rival"):
            if digest == digest_of(name):
                return caller(name)
        return Refused(code="invalid_api_key", message="Incorrect API key provided.")

    async def admit(self, call: Call) -> Admission:
        known = await self.authenticate(call.digest)
        if isinstance(known, Refused):
            return known
        if self.refusal is not None:
            return self.refusal
        allowance = min(self.tranche, call.max_tokens, *([] if self.budget is None else [self.budget]))
        self.held[call.request_id] = allowance
        return Granted(caller=known, allowance=allowance, lease=self.lease, account="acme", limits=NO_LIMITS)  # type: ignore[arg-type]

    async def extend(self, request_id: str, wanted: int) -> Extension:
        if self.rate_waits:
            return Extension(allowance=self.held[request_id], ended_by="rate", retry_after_s=self.rate_waits.pop(0))
        granted = wanted if self.budget is None else min(wanted, self.budget)
        self.held[request_id] = max(self.held[request_id], granted)
        self.extensions.append(self.held[request_id])
        return Extension(allowance=self.held[request_id], ended_by="budget" if granted < wanted else None)

    async def settle(self, request_id: str, counters: Counters, reason: FinishReason) -> None:
        if self.settling is not None:
            await self.settling.wait()
        self.held.pop(request_id, None)
        self.settled[request_id] = (counters, reason)

    async def release(self, request_id: str) -> None:
        self.held.pop(request_id, None)
        self.released.append(request_id)
