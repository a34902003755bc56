"""Names of cache blocks: a keyed SHA-256 chain. Pure, so that a gateway may predict what a worker has cached.

A key covers everything that a block's content depends on: the model, the cache domain, the policy, and every token up to the block's
end. Each field is written with its type and its length, so that no two different lists of fields give the same bytes.
"""

import hmac
from array import array
from collections.abc import Iterable, Sequence
from sys import byteorder

KEY_BYTES = 32

_ROOT, _PARENT, _TOKENS, _EXTRA, _FINGERPRINT, _DOMAIN, _POLICY = range(1, 8)


def _field(kind: int, value: bytes) -> bytes:
    return bytes((kind,)) + len(value).to_bytes(8, "big") + value


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Tokens as little-endian 32-bit integers."""
    packed = array("I", tokens)
    if byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def root_key(secret: bytes, *, fingerprint: str, domain: bytes, policy: bytes = b"") -> bytes:
    """Where every chain of a cache domain begins."""
    fields = (_field(_ROOT, b""), _field(_FINGERPRINT, fingerprint.encode()), _field(_DOMAIN, domain), _field(_POLICY, policy))
    return hmac.digest(secret, b"".join(fields), "sha256")


def block_key(secret: bytes, parent: bytes, tokens: bytes, extras: Iterable[tuple[str, bytes]] = ()) -> bytes:
    """Name of the block that holds `tokens` (as token_bytes gives them) behind `parent`. extras: (type, value), such as an image's hash."""
    message = _field(_PARENT, parent) + _field(_TOKENS, tokens)
    for kind, value in extras:
        message += _field(_EXTRA, _field(0, kind.encode()) + value)
    return hmac.digest(secret, message, "sha256")


def prompt_keys(secret: bytes, root: bytes, prompt: Sequence[int], block_size: int) -> list[bytes]:
    """Names of the prompt's full blocks, first to last."""
    keys: list[bytes] = []
    parent = root
    for start in range(0, len(prompt) - block_size + 1, block_size):
        parent = block_key(secret, parent, token_bytes(prompt[start : start + block_size]))
        keys.append(parent)
    return keys
