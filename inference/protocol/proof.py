"""How both ends of a TCP link show that they know the shared secret, without sending it."""

import hashlib
import hmac

_WORKER = b"lockgate worker"


def gateway_proof(secret: bytes, nonce: bytes, gateway_id: str) -> bytes:
    """Hello.proof: HMAC-SHA256 over the worker's nonce (Challenge.nonce) and the gateway's id."""
    return hmac.digest(secret, nonce + gateway_id.encode(), hashlib.sha256)


def worker_proof(secret: bytes, nonce: bytes, worker_id: str) -> bytes:
    """Welcome.proof: HMAC-SHA256 over the gateway's nonce (Hello.nonce) and the worker's id."""
    return hmac.digest(secret, _WORKER + nonce + worker_id.encode(), hashlib.sha256)


def matches(proof: bytes, expected: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(proof, expected)
