"""Which worker a request goes to: where its prefix is probably cached, unless that worker is much busier than another."""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from hashlib import blake2b

from gateway.dispatch.link import Link
from inference.protocol.block_keys import token_bytes

CHUNK_TOKENS = 64
"""Prefixes are remembered at multiples of this."""
MAX_CHUNKS = 32
REMEMBERED = 16_384
"""Prefixes in memory, the least recently used go first."""
TOLERATED_IMBALANCE = 8
"""A worker with a longer cached prefix may have so many more requests than the least busy one."""


class Router:
    """Remembers which worker computed which prefix, apart for each cache domain. A guess: the worker's own index decides."""

    def __init__(self) -> None:
        self._homes: OrderedDict[bytes, str] = OrderedDict()
        self._chosen: dict[str, int] = {}
        """When each worker was last chosen: of equally busy ones the longest unused gets the request."""
        self._choices = 0

    def choose(self, links: Collection[Link], prompt: Sequence[int], domain: bytes | None) -> Link:
        """The link to use; `links` must not be empty."""
        if len(links) == 1:
            return next(iter(links))
        least = min(links, key=lambda link: (link.pressure, self._chosen.get(link.worker_id, 0)))
        keys = [] if domain is None else _prefix_keys(prompt, domain)
        chosen = self._cached(links, keys, most_pressure=least.pressure + TOLERATED_IMBALANCE) or least
        self._choices += 1
        self._chosen[chosen.worker_id] = self._choices
        for key in keys:
            self._homes[key] = chosen.worker_id
            self._homes.move_to_end(key)
        while len(self._homes) > REMEMBERED:
            self._homes.popitem(last=False)
        return chosen

    def _cached(self, links: Collection[Link], keys: Sequence[bytes], *, most_pressure: int) -> Link | None:
        named = {link.worker_id: link for link in links}
        for key in reversed(keys):
            link = named.get(self._homes.get(key, ""))
            if link is not None and link.pressure <= most_pressure:
                return link
        return None


def _prefix_keys(prompt: Sequence[int], domain: bytes) -> list[bytes]:
    """Names of the prompt's prefixes, shortest first; a prompt below one chunk has none."""
    digest = blake2b(len(domain).to_bytes(4, "big") + domain, digest_size=16)
    ends = range(CHUNK_TOKENS, min(len(prompt), CHUNK_TOKENS * MAX_CHUNKS) + 1, CHUNK_TOKENS)
    keys = []
    for end in ends:
        digest.update(token_bytes(prompt[end - CHUNK_TOKENS : end]))
        keys.append(digest.copy().digest())
    return keys
