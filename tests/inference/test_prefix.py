import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.blocks import BlockPool, BlockTable
from inference.prefix import PrefixIndex
from inference.protocol.block_keys import prompt_keys

SECRET = b"k" * 32
SIZE = 2


class Cache:
    """A pool and its index, and the whole life of a sequence in two calls."""

    def __init__(self, blocks: int = 64) -> None:
        self.pool = BlockPool(blocks)
        self.index = PrefixIndex(self.pool, fingerprint="model", block_size=SIZE, secret=SECRET)

    def keys(self, tokens: list[int], domain: bytes) -> list[bytes]:
        keys: list[bytes] = []
        self.index.extend(keys, self.index.root(domain), np.array(tokens, dtype=np.int32), len(tokens) // SIZE)
        return keys

    def compute(self, tokens: list[int], domain: bytes = b"acme", *, now: float = 0.0, ttl_s: float = 100.0) -> None:
        keys = self.keys(tokens, domain)
        table = BlockTable(self.pool)
        for block in self.index.match(keys, len(keys), now):
            table.share(block, now)
        table.grow(len(keys) - len(table), now)
        for block, key in zip(table.blocks, keys, strict=True):
            self.index.insert(block, key, now + ttl_s)
        table.release(now)
        self.pool.check()

    def hit(self, tokens: list[int], domain: bytes = b"acme", *, now: float = 0.0) -> int:
        return len(self.index.match(self.keys(tokens, domain), 99, now))


def test_only_the_same_domain_finds_a_prefix() -> None:
    cache = Cache()
    cache.compute([1, 2, 3, 4])
    assert cache.hit([1, 2, 3, 4]) == 2
    assert cache.hit([1, 2, 9, 9]) == 1
    assert cache.hit([1, 2, 3, 4], b"rival") == 0


def test_a_block_is_found_only_behind_the_same_prefix() -> None:
    cache = Cache()
    cache.compute([1, 2, 3, 4])
    assert cache.hit([3, 4]) == 0
    assert cache.hit([9, 9, 3, 4]) == 0


def test_entries_expire_and_a_use_prolongs_them() -> None:
    cache = Cache()
    cache.compute([1, 2, 3, 4], now=0.0, ttl_s=10.0)
    (first, _) = cache.index.match(cache.keys([1, 2, 3, 4], b"acme"), 2, 5.0)
    cache.index.touch(first, 15.0)
    cache.index.touch(first, 1.0)
    assert cache.hit([1, 2, 3, 4], now=12.0) == 1
    assert cache.hit([1, 2, 3, 4], now=15.0) == 0
    cache.pool.check()
    assert cache.pool.cached == 0


def test_purge_forgets_everything_and_frees_what_nobody_holds() -> None:
    cache = Cache()
    cache.compute([1, 2, 3, 4])
    assert cache.index.purge() == 2
    assert cache.hit([1, 2, 3, 4]) == 0
    assert cache.pool.free == cache.pool.total


def test_keys_are_those_a_gateway_predicts() -> None:
    cache = Cache()
    assert cache.keys([1, 2, 3, 4, 5], b"acme") == prompt_keys(SECRET, cache.index.root(b"acme"), [1, 2, 3, 4, 5], SIZE)


def test_a_secret_is_drawn_where_none_is_given() -> None:
    first = PrefixIndex(BlockPool(1), fingerprint="model", block_size=SIZE)
    second = PrefixIndex(BlockPool(1), fingerprint="model", block_size=SIZE)
    assert first.root(b"acme") != second.root(b"acme")


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=9)
uses = st.lists(st.tuples(prompts, st.sampled_from([b"acme", b"rival"])), max_size=25)


@settings(max_examples=150, deadline=None)
@given(uses=uses, probe=prompts, domain=st.sampled_from([b"acme", b"rival"]))
def test_a_hit_is_the_longest_prefix_of_full_blocks_the_domain_has_computed(
    uses: list[tuple[list[int], bytes]], probe: list[int], domain: bytes
) -> None:
    cache = Cache(blocks=512)
    known: set[tuple[int, ...]] = set()
    for tokens, user in uses:
        cache.compute(tokens, user)
        if user == domain:
            known |= {tuple(tokens[:end]) for end in range(SIZE, len(tokens) + 1, SIZE)}
    longest = 0
    while tuple(probe[: (longest + 1) * SIZE]) in known and (longest + 1) * SIZE <= len(probe):
        longest += 1
    assert cache.hit(probe, domain) == longest


@settings(max_examples=100, deadline=None)
@given(uses=uses)
def test_eviction_never_gives_a_wrong_hit(uses: list[tuple[list[int], bytes]]) -> None:
    cache = Cache(blocks=5)
    known: dict[bytes, set[tuple[int, ...]]] = {b"acme": set(), b"rival": set()}
    for tokens, user in uses:
        for end in range(SIZE, SIZE * cache.hit(tokens, user) + 1, SIZE):
            assert tuple(tokens[:end]) in known[user]
        cache.compute(tokens, user)
        known[user] |= {tuple(tokens[:end]) for end in range(SIZE, len(tokens) + 1, SIZE)}
