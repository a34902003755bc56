"""Who holds rows and blocks: admission, growth, and who gives way."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from operator import attrgetter

from inference.accounting import note_reused
from inference.batching import RowTables
from inference.blocks import Block, BlockPool
from inference.config import EngineConfig
from inference.prefix import PrefixIndex
from inference.request import ENDED, RUNNING, WAITING, Sequence

_rank = attrgetter("rank")


def _brings_chunk(sequence: Sequence) -> bool:
    """It is in the current step with more than the one token of a decode: too late to take it out."""
    return sequence.scheduled > 1 or (sequence.scheduled == 1 and sequence.computed < sequence.prompt_length)


class Capacity:
    """The running sequences, best rank first, and everything they hold."""

    def __init__(
        self, config: EngineConfig, pool: BlockPool, index: PrefixIndex, tables: RowTables, *, requeue: Callable[[Sequence], None]
    ) -> None:
        self._config = config
        self._pool = pool
        self._index = index
        self.tables = tables
        self._requeue = requeue
        self.running: list[Sequence] = []
        self.preempted = 0
        """Preemptions since the start."""

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._config.block_size)

    # --- getting in ------------------------------------------------------------------------------------------------------------

    def admit(self, sequence: Sequence, now: float, *, may_preempt: bool) -> bool:
        """Give a waiting sequence a row, and blocks for all its known tokens. False: no room, and no block was taken."""
        found = self._reusable(sequence, now)
        if not self._fits(sequence, found):
            if not may_preempt or not self._make_room(sequence, found, now):
                return False
            found = self._reusable(sequence, now)
            if not self._fits(sequence, found):
                return False
        table = sequence.table
        assert not table.blocks, "a waiting sequence holds nothing"
        for block in found:
            table.share(block, now)
            self._index.touch(block, now + sequence.request.submit.cache_ttl_s)
        sequence.protected = sequence.preemptions >= self._config.max_preemptions > 0
        table.grow(self._blocks_wanted(sequence) - len(found), now)
        sequence.row = self.tables.take()
        self.tables.set_blocks(sequence.row, 0, table.blocks)
        sequence.named = len(found)
        sequence.computed = len(found) * self._config.block_size
        self.tables.computed[sequence.row] = sequence.computed
        self.tables.next_token[sequence.row] = sequence.tokens[sequence.computed]
        sequence.state = RUNNING
        insort(self.running, sequence, key=_rank)
        note_reused(sequence)
        return True

    def _reusable(self, sequence: Sequence, now: float) -> list[Block]:
        """Blocks that hold its beginning: in its cache domain, or with another choice of its request.

        The last known token is always computed, so that there are logits to sample from.
        """
        request = sequence.request
        limit = (sequence.length - 1) // self._config.block_size
        found: list[Block] = []
        if request.root is not None and not request.tells_prompt:
            self._index.extend(sequence.keys, request.root, sequence.tokens, limit)
            found = self._index.match(sequence.keys, limit, now)
        if len(request.sequences) > 1:
            prompt_blocks = min(limit, sequence.prompt_length // self._config.block_size)
            for other in request.sequences:
                if len(found) < prompt_blocks and other.state == RUNNING and other.computed >= prompt_blocks * self._config.block_size:
                    found = other.table.blocks[:prompt_blocks]
        return found

    def _blocks_wanted(self, sequence: Sequence) -> int:
        """All it can ever need once it was preempted too often, else what its known tokens need."""
        if sequence.preemptions >= self._config.max_preemptions > 0:
            return self.blocks_for(max(sequence.limit - 1, sequence.length))
        return self.blocks_for(sequence.length)

    def _fits(self, sequence: Sequence, found: list[Block]) -> bool:
        return self.tables.unused > 0 and self._blocks_short(sequence, found) + self._headroom(len(self.running)) <= 0

    def _blocks_short(self, sequence: Sequence, found: list[Block]) -> int:
        new = self._blocks_wanted(sequence) - len(found)
        out_of_cache = sum(block.refs == 0 for block in found)
        return new + out_of_cache - self._pool.available

    @staticmethod
    def _headroom(running: int) -> int:
        """Blocks that a newcomer leaves: those that run grow too, and if it fitted exactly it would be the first to go again."""
        return running // 4

    # --- growing ---------------------------------------------------------------------------------------------------------------

    def grow(self, sequence: Sequence, now: float) -> bool:
        """One more block for a running sequence. Without a free one the cheapest victim gives way; False: that was the sequence itself."""
        while not self._pool.available:
            victim = next(self._stalled(), None) or self._last_below(sequence)
            if victim is None:
                self.preempt(sequence, now)
                return False
            self.preempt(victim, now)
        table = sequence.table
        table.grow(1, now)
        self.tables.set_blocks(sequence.row, len(table) - 1, table.blocks[-1:])
        return True

    def full(self, sequence: Sequence) -> bool:
        """The next token has no place in the blocks held."""
        return sequence.computed >= len(sequence.table) * self._config.block_size

    # --- giving way ------------------------------------------------------------------------------------------------------------

    def _stalled(self) -> Iterator[Sequence]:
        return (sequence for sequence in reversed(self.running) if not sequence.scheduled and sequence.request.stalled)

    def _last_below(self, sequence: Sequence) -> Sequence | None:
        for other in reversed(self.running):
            if other is sequence:
                return None
            if not other.protected and not _brings_chunk(other):
                return other
        return None

    def _victims(self, sequence: Sequence) -> Iterator[Sequence]:
        """Who may be asked to give way to a waiting sequence: the stalled, then lower tiers, then shares that lead by far."""
        yield from self._stalled()
        request = sequence.request
        lead = self._config.fairness.preempt_lead
        for other in reversed(self.running):
            if other.protected or other.request.stalled or _brings_chunk(other):
                continue
            if other.request.tier is not request.tier:
                if other.rank > sequence.rank and not other.request.aged:
                    yield other
            elif other.share is not sequence.share and request.tier.fair.lead(other.share, sequence.share) > lead:
                yield other

    def _make_room(self, sequence: Sequence, found: list[Block], now: float) -> bool:
        """Preempt as many victims as it takes, or none if they don't suffice."""
        short, rows = self._blocks_short(sequence, found), self.tables.unused
        victims: list[Sequence] = []
        dropped: dict[Block, int] = {}
        for victim in self._victims(sequence):
            victims.append(victim)
            rows += 1
            for block in victim.table.blocks:
                dropped[block] = drops = dropped.get(block, 0) + 1
                short -= drops == block.refs
            if short + self._headroom(len(self.running) - len(victims)) <= 0 and rows > 0:
                break
        else:
            return False
        for victim in victims:
            self.preempt(victim, now)
        return True

    def preempt(self, sequence: Sequence, now: float) -> None:
        """Take everything from a running sequence; it waits to be computed again."""
        if not sequence.request.stalled:
            sequence.preemptions += 1
        sequence.request.counters.preemptions += 1
        self.preempted += 1
        self._withdraw_from_step(sequence)
        self.release(sequence, now, state=WAITING)
        self._requeue(sequence)

    def _withdraw_from_step(self, sequence: Sequence) -> None:
        if sequence.scheduled:
            assert not _brings_chunk(sequence), "a scheduled chunk is no victim"
            sequence.scheduled = 0
            sequence.request.remaining += 1
            sequence.share.counter -= sequence.share.token_step

    def release(self, sequence: Sequence, now: float, *, state: int = ENDED) -> None:
        """The one way by which row and blocks come back. Safe to call again."""
        sequence.table.release(now)
        if sequence.row >= 0:
            del self.running[bisect_left(self.running, sequence.rank, key=_rank)]
            self.tables.give_back(sequence.row)
            sequence.row = -1
        if sequence.prefilling:
            sequence.prefilling = False
            sequence.request.tier.fair.prefill(sequence.share, -1)
        sequence.computed = 0
        sequence.named = 0
        sequence.protected = False
        sequence.state = state
