"""The pool of cache blocks: who holds which, and which goes next.

Every block is in exactly one state, so that free + cached + held = total:
free (nobody holds it, nothing worth keeping), cached (nobody holds it, a named prefix that can be evicted), held (refs > 0).
"""

from __future__ import annotations

from inference.errors import OutOfBlocks


class Block:
    """One page of the KV cache, at `index` in every cache group."""

    __slots__ = ("_next", "_owner", "_previous", "expires_at", "index", "key", "refs", "share_s", "since")

    def __init__(self, index: int) -> None:
        self.index = index
        self.refs = 0
        self.key: bytes | None = None
        """Its name in the prefix index, or None."""
        self.expires_at = 0.0
        self.share_s = 0.0
        """Seconds one sharer has been charged since the beginning: the integral of 1/refs over time."""
        self.since = 0.0
        self._owner: BlockList | None = None
        self._previous: Block = self
        self._next: Block = self

    def settle(self, now: float) -> None:
        """Bring share_s up to now; before every change of refs."""
        if self.refs:
            self.share_s += (now - self.since) / self.refs
        self.since = now

    def __repr__(self) -> str:
        return f"Block({self.index}, refs={self.refs}, named={self.key is not None})"


class BlockList:
    """A doubly linked list through the blocks themselves: every operation is O(1) and allocates nothing."""

    __slots__ = ("_count", "_end")

    def __init__(self) -> None:
        self._end = Block(-1)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, block: Block) -> None:
        assert block._owner is None, f"{block} is in a list already"
        last = self._end._previous
        last._next = block
        block._previous = last
        block._next = self._end
        self._end._previous = block
        block._owner = self
        self._count += 1

    def remove(self, block: Block) -> None:
        assert block._owner is self, f"{block} is not in this list"
        block._previous._next = block._next
        block._next._previous = block._previous
        block._previous = block._next = block
        block._owner = None
        self._count -= 1

    def pop_first(self) -> Block:
        first = self._end._next
        self.remove(first)
        return first

    def to_list(self) -> list[Block]:
        """First to last; for checks and reports."""
        blocks = []
        block = self._end._next
        while block is not self._end:
            blocks.append(block)
            block = block._next
        return blocks


class BlockPool:
    """All blocks, preallocated; the names of those that hold a reusable prefix; and the order in which the unheld are taken."""

    def __init__(self, count: int) -> None:
        self.blocks = [Block(index) for index in range(count)]
        self._free = BlockList()
        self._cached = BlockList()
        self._names: dict[bytes, Block] = {}
        for block in self.blocks:
            self._free.append(block)

    @property
    def total(self) -> int:
        return len(self.blocks)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def held(self) -> int:
        return self.total - self.free - self.cached

    @property
    def available(self) -> int:
        """What allocate can give: free blocks, then cached ones, the first to be evicted first."""
        return len(self._free) + len(self._cached)

    def allocate(self, now: float) -> Block:
        """A block of one's own. Raises OutOfBlocks; the pool is then unchanged."""
        if len(self._free):
            block = self._free.pop_first()
        elif len(self._cached):
            block = self._cached.pop_first()
            self._forget(block)
        else:
            raise OutOfBlocks(f"all {self.total} blocks are held")
        block.settle(now)
        block.refs = 1
        return block

    def share(self, block: Block, now: float) -> None:
        """Hold a block beside its other holders, or take it out of the cache."""
        if block.refs == 0:
            assert block.key is not None, "a free block has nothing to share"
            self._cached.remove(block)
        block.settle(now)
        block.refs += 1

    def release(self, block: Block, now: float) -> None:
        """Give up one hold."""
        assert block.refs > 0, f"{block} is held by nobody"
        block.settle(now)
        block.refs -= 1
        if block.refs == 0:
            (self._free if block.key is None else self._cached).append(block)

    def name(self, block: Block, key: bytes, expires_at: float) -> bool:
        """Make a held block's content findable. False where another block has the name or this one has another."""
        assert block.refs > 0, "only a holder knows what the block holds"
        if block.key is not None or key in self._names:
            return False
        block.key = key
        block.expires_at = expires_at
        self._names[key] = block
        return True

    def named(self, key: bytes) -> Block | None:
        return self._names.get(key)

    def unname(self, block: Block) -> None:
        """Make the content unreachable; an unheld block becomes free."""
        if block.key is None:
            return
        if block.refs == 0:
            self._cached.remove(block)
            self._free.append(block)
        self._forget(block)

    def _forget(self, block: Block) -> None:
        assert block.key is not None
        del self._names[block.key]
        block.key = None

    def check(self) -> None:
        """Raise AssertionError unless every invariant holds."""
        free, cached = self._free.to_list(), self._cached.to_list()
        held = [block for block in self.blocks if block.refs > 0]
        assert len(free) == self.free
        assert len(cached) == self.cached
        assert len(free) + len(cached) + len(held) == self.total, "free + cached + held = total"
        assert len({block.index for block in (*free, *cached, *held)}) == self.total, "a block is in two states"
        assert all(block.refs == 0 and block.key is None for block in free)
        assert all(block.refs == 0 and block.key is not None for block in cached)
        assert all(block.refs >= 0 for block in self.blocks)
        assert self._names == {block.key: block for block in self.blocks if block.key is not None}


class BlockTable:
    """The blocks of one sequence, in order of position. It only grows, and is released as a whole."""

    __slots__ = ("_entry_s", "_pool", "_released_s", "blocks")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.blocks: list[Block] = []
        self._entry_s = 0.0
        self._released_s = 0.0

    def __len__(self) -> int:
        return len(self.blocks)

    def share(self, block: Block, now: float) -> None:
        self._pool.share(block, now)
        self._take(block)

    def grow(self, count: int, now: float) -> None:
        """Append `count` new blocks. Raises OutOfBlocks, having changed nothing."""
        if count > self._pool.available:
            raise OutOfBlocks(f"{count} blocks wanted, {self._pool.available} of {self._pool.total} available")
        for _ in range(count):
            self._take(self._pool.allocate(now))

    def _take(self, block: Block) -> None:
        self.blocks.append(block)
        self._entry_s += block.share_s

    def release(self, now: float) -> None:
        """Give up every block, the last first so that a prefix's tail is evicted before its head. Safe to call again."""
        self._released_s = self.block_seconds(now)
        blocks, self.blocks, self._entry_s = self.blocks, [], 0.0
        for block in reversed(blocks):
            self._pool.release(block, now)

    def block_seconds(self, now: float) -> float:
        """Blocks held × seconds so far, a shared block's time divided among its sharers."""
        held = 0.0
        for block in self.blocks:
            held += block.share_s + (now - block.since) / block.refs
        return self._released_s + max(0.0, held - self._entry_s)
