import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.blocks import Block, BlockPool, BlockTable
from inference.errors import OutOfBlocks


def named_table(pool: BlockPool, names: list[bytes], now: float = 0.0) -> BlockTable:
    table = BlockTable(pool)
    table.grow(len(names), now)
    for block, name in zip(table.blocks, names, strict=True):
        pool.name(block, name, expires_at=1e9)
    return table


def test_tails_are_evicted_before_heads_and_older_prefixes_before_newer() -> None:
    pool = BlockPool(6)
    older = named_table(pool, [b"a1", b"a2", b"a3"])
    newer = named_table(pool, [b"b1", b"b2", b"b3"])
    older.release(1.0)
    newer.release(2.0)
    order = []
    for _ in range(6):
        before = {name for name in (b"a1", b"a2", b"a3", b"b1", b"b2", b"b3") if pool.named(name)}
        pool.allocate(3.0)
        order += [name for name in before if pool.named(name) is None]
    assert order == [b"a3", b"a2", b"a1", b"b3", b"b2", b"b1"]


def test_free_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(2)
    named_table(pool, [b"kept"]).release(0.0)
    pool.allocate(1.0)
    assert pool.named(b"kept") is not None
    pool.allocate(1.0)
    assert pool.named(b"kept") is None


def test_reuse_makes_a_prefix_the_newest_again() -> None:
    pool = BlockPool(2)
    first, second = named_table(pool, [b"first"]), named_table(pool, [b"second"])
    first.release(0.0)
    second.release(0.0)
    again = BlockTable(pool)
    block = pool.named(b"first")
    assert block is not None
    again.share(block, 1.0)
    again.release(2.0)
    pool.allocate(3.0)
    assert pool.named(b"second") is None
    assert pool.named(b"first") is block


def test_release_twice_gives_each_block_back_once() -> None:
    pool = BlockPool(3)
    table = BlockTable(pool)
    table.grow(2, 0.0)
    table.release(1.0)
    table.release(2.0)
    pool.check()
    assert pool.free == 3


def test_asking_for_too_much_changes_nothing() -> None:
    pool = BlockPool(2)
    table = BlockTable(pool)
    table.grow(1, 0.0)
    with pytest.raises(OutOfBlocks):
        table.grow(2, 0.0)
    assert (len(table), pool.free) == (1, 1)
    pool.check()


def test_a_name_belongs_to_the_first_block_that_takes_it() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(0.0), pool.allocate(0.0)
    assert pool.name(first, b"same", 1.0)
    assert not pool.name(second, b"same", 1.0)
    assert pool.named(b"same") is first


def test_a_shared_blocks_time_is_divided_among_its_sharers() -> None:
    pool = BlockPool(3)
    alone = BlockTable(pool)
    alone.grow(2, 0.0)
    guest = BlockTable(pool)
    guest.share(alone.blocks[0], 10.0)
    assert alone.block_seconds(20.0) == pytest.approx(10 + 20 + 5)
    assert guest.block_seconds(20.0) == pytest.approx(5)
    guest.release(20.0)
    alone.release(30.0)
    assert alone.block_seconds(99.0) == pytest.approx(10 + 5 + 10 + 30)
    assert guest.block_seconds(99.0) == pytest.approx(5)


class PoolMachine(RuleBasedStateMachine):
    """Random holds, names and releases; block-seconds of all tables must add up to the time that blocks were held."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(8)
        self.tables: list[BlockTable] = []
        self.gone: list[BlockTable] = []
        self.now = 0.0
        self.held_s = 0.0
        self.names = 0

    @rule(count=st.integers(0, 5))
    def grow_new(self, count: int) -> None:
        table = BlockTable(self.pool)
        if count > self.pool.available:
            with pytest.raises(OutOfBlocks):
                table.grow(count, self.now)
        else:
            table.grow(count, self.now)
            self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(pick=st.integers(0, 99))
    def share_prefix(self, pick: int) -> None:
        other = self.tables[pick % len(self.tables)]
        table = BlockTable(self.pool)
        for block in other.blocks[: pick % (len(other) + 1)]:
            table.share(block, self.now)
        self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(pick=st.integers(0, 99))
    def name_blocks(self, pick: int) -> None:
        for block in self.tables[pick % len(self.tables)].blocks:
            self.names += 1
            self.pool.name(block, self.names.to_bytes(4, "big"), 1e9)

    @rule(number=st.integers(1, 50))
    def take_from_cache(self, number: int) -> None:
        block = self.pool.named(number.to_bytes(4, "big"))
        if block is not None:
            table = BlockTable(self.pool)
            table.share(block, self.now)
            self.tables.append(table)

    @rule(number=st.integers(1, 50))
    def forget(self, number: int) -> None:
        block = self.pool.named(number.to_bytes(4, "big"))
        if block is not None:
            self.pool.unname(block)
            assert block.key is None

    @precondition(lambda self: self.tables)
    @rule(pick=st.integers(0, 99), twice=st.booleans())
    def release(self, pick: int, twice: bool) -> None:
        table = self.tables.pop(pick % len(self.tables))
        table.release(self.now)
        if twice:
            table.release(self.now)
        self.gone.append(table)

    @rule(seconds=st.floats(0.0, 10.0))
    def wait(self, seconds: float) -> None:
        self.held_s += seconds * self.pool.held
        self.now += seconds

    @invariant()
    def holds_add_up(self) -> None:
        self.pool.check()
        holds: dict[Block, int] = {}
        for table in self.tables:
            for block in table.blocks:
                holds[block] = holds.get(block, 0) + 1
        assert all(block.refs == holds.get(block, 0) for block in self.pool.blocks)

    @invariant()
    def block_seconds_add_up(self) -> None:
        total = sum(table.block_seconds(self.now) for table in self.tables + self.gone)
        assert total == pytest.approx(self.held_s, abs=1e-6)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase
