"""Which blocks hold the beginning of a prompt already, within one cache domain."""

import secrets

import numpy as np

from inference.blocks import Block, BlockPool
from inference.protocol.block_keys import block_key, root_key


class PrefixIndex:
    """Finds and records full blocks by the key of everything up to their end (inference.protocol.block_keys)."""

    def __init__(self, pool: BlockPool, *, fingerprint: str, block_size: int, secret: bytes | None = None) -> None:
        self._pool = pool
        self._fingerprint = fingerprint
        self._block_size = block_size
        self._secret = secrets.token_bytes(32) if secret is None else secret

    def root(self, domain: bytes) -> bytes:
        return root_key(self._secret, fingerprint=self._fingerprint, domain=domain)

    def extend(self, keys: list[bytes], root: bytes, tokens: np.ndarray[tuple[int], np.dtype[np.int32]], blocks: int) -> None:
        """Bring `keys`, the names of the first blocks of `tokens`, up to `blocks` entries."""
        size = self._block_size
        parent = keys[-1] if keys else root
        for index in range(len(keys), blocks):
            parent = block_key(self._secret, parent, tokens[index * size : (index + 1) * size].astype("<u4").tobytes())
            keys.append(parent)

    def match(self, keys: list[bytes], limit: int, now: float) -> list[Block]:
        """The blocks of the longest known prefix, at most `limit`. They aren't held yet. What has expired is forgotten."""
        blocks: list[Block] = []
        for key in keys[:limit]:
            block = self._pool.named(key)
            if block is None:
                break
            if block.expires_at <= now:
                self._pool.unname(block)
                break
            blocks.append(block)
        return blocks

    def touch(self, block: Block, expires_at: float) -> None:
        """A use prolongs an entry's life, never shortens it."""
        block.expires_at = max(block.expires_at, expires_at)

    def insert(self, block: Block, key: bytes, expires_at: float) -> None:
        """Record a held block that is full. Where the prefix is known already, this copy stays unnamed."""
        self._pool.name(block, key, expires_at)

    def purge(self) -> int:
        """Forget everything; returns how many blocks were forgotten."""
        named = [block for block in self._pool.blocks if block.key is not None]
        for block in named:
            self._pool.unname(block)
        return len(named)
