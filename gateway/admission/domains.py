"""Cache domains: who may reuse whose prefixes, as a key that only this installation can derive."""

import hashlib
import hmac
from functools import lru_cache


def typed_field(kind: str, value: str | int) -> bytes:
    """A field that no other field can be mistaken for: kind and value, each behind its length."""
    encoded = str(value).encode()
    tag = kind.encode()
    return len(tag).to_bytes(2, "big") + tag + len(encoded).to_bytes(4, "big") + encoded


@lru_cache(maxsize=16_384)
def cache_domain(secret: bytes, *, policy: str, epoch: int, key: str, project: str, tenant: str, group: str) -> bytes | None:
    """HMAC-SHA256 over the policy, its epoch and the owner whose requests may share. None: nothing is cached. Raises ValueError."""
    owners = {"isolated": ("key", key), "project": ("project", project), "tenant": ("tenant", tenant), "shared": ("group", group)}
    if policy == "off":
        return None
    if policy not in owners or not owners[policy][1]:
        raise ValueError(f"cache policy {policy!r} has no owner")
    kind, owner = owners[policy]
    # Members of a trust group always have the same epoch (tenants.services), so one of them purges for all.
    message = typed_field("policy", policy) + typed_field("epoch", epoch) + typed_field(kind, owner)
    return hmac.new(secret, message, hashlib.sha256).digest()
