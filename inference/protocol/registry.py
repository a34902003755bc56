"""Where workers announce themselves in Redis.

A worker writes hash `lockgate:worker:{worker_id}` (fields below) with a time to live and adds its id to the set `lockgate:workers`;
it renews both with every heartbeat. A member of the set whose hash has expired is gone.
"""

from msgspec import Struct

WORKERS_KEY = "lockgate:workers"
USAGE_STREAM = "lockgate:usage"
REGISTRATION_TTL_MS = 6_000
HEARTBEAT_S = 1.0


def worker_key(worker_id: str) -> str:
    return f"lockgate:worker:{worker_id}"


def committed_key(epoch: str) -> str:
    """Set of the epoch's event sequences that the flusher has committed to Postgres. The worker takes them out and forgets those events."""
    return f"lockgate:committed:{epoch}"


class Registration(Struct, frozen=True, kw_only=True):
    """Field `registration` of the worker's hash, as JSON. The hash's second field, `load`, is the latest Load frame as JSON."""

    worker_id: str
    epoch: str
    address: str
    """unix:/path or tcp:host:port"""
    model: str
    started_at_ms: int
    pid: int
