"""What a generation asks of admission."""

from typing import Protocol

from gateway.admission.outcomes import Admission, Call, Caller, Extension, Refused
from inference.protocol.usage import Counters, FinishReason


class Admissions(Protocol):
    """`gateway.admission.control.AdmissionControl`, as it is used here. All may raise RedisError or OSError."""

    async def authenticate(self, digest: str) -> Caller | Refused:
        """Who the key belongs to; nothing is counted."""
        ...

    async def admit(self, call: Call) -> Admission:
        """Let the call in and hold its tokens, or say why not."""
        ...

    async def extend(self, request_id: str, wanted: int) -> Extension:
        """Hold so many output tokens in all, or as many as are left."""
        ...

    async def settle(self, request_id: str, counters: Counters, reason: FinishReason) -> object:
        """Charge what was computed, give back the rest and the slot. Idempotent."""
        ...

    async def release(self, request_id: str) -> object:
        """Undo an admission: nothing was computed. Idempotent."""
        ...
