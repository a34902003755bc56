"""Deficit round robin over weighted shares, in service received per weight.

Every share of a tier has a counter: what it was given ÷ its weight, at a cost of 1 for each prompt token computed for the first time,
2 for each generated one, nothing for cached or recomputed ones. A round lifts `level` by quantum ÷ heaviest weight; a share may begin
work while its counter lies under the level, so its deficit is (level − counter) × weight. It keeps its turn until the deficit is used
up: requests that share a prefix come one after the other.

The counters of two shares that both have waiting work never part by more than H ÷ min(weight), H = quantum + 2 × step budget. The round
robin alone keeps to it where capacity lets it; where it doesn't (the leader's sequences hold all the blocks), `ceiling` stops the
leader. Over any interval in which both are backlogged and can be served, |service_i/w_i − service_j/w_j| is therefore at most
2·H ÷ min(weight): `bound`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import floor, inf

PREFILL_COST = 1
GENERATE_COST = 2


class Share:
    """One share's standing within one tier."""

    __slots__ = ("ceiling", "counter", "live", "name", "prefilling", "token_step", "waiting", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.counter = 0.0
        """Service ÷ weight since contention began."""
        self.token_step = GENERATE_COST / weight
        """What a generated token adds to the counter."""
        self.ceiling = inf
        """The counter must not pass this in the current step."""
        self.live = 0
        """Sequences that haven't ended."""
        self.waiting = 0
        """Sequences in its queue."""
        self.prefilling = 0

    def __repr__(self) -> str:
        return f"Share({self.name!r}, weight={self.weight}, counter={self.counter:.1f}, waiting={self.waiting})"


class FairShares:
    """The shares of one tier and whose turn it is."""

    def __init__(self, *, quantum: int, step_tokens: int) -> None:
        self.quantum = quantum
        self.half_bound = quantum + 2 * step_tokens
        self.level = 0.0
        self.shares: dict[str, Share] = {}
        self._turns: OrderedDict[Share, None] = OrderedDict()
        self._waiting: dict[Share, None] = {}

    def share(self, name: str, weight: float) -> Share:
        """The share of this name; its latest weight holds."""
        share = self.shares.get(name)
        if share is None:
            share = self.shares[name] = Share(name, weight)
        elif share.weight != weight:
            share.weight = weight
            share.token_step = GENERATE_COST / weight
        return share

    def bound(self, lightest: float) -> float:
        """By how much service ÷ weight of two backlogged shares can differ over any interval."""
        return 2 * self.half_bound / lightest

    # --- who has work --------------------------------------------------------------------------------------------------------

    def queue(self, share: Share) -> None:
        """One more of its sequences waits. On return from idleness it is lifted to the least served of those that wait."""
        share.waiting += 1
        if share.waiting == 1:
            if self._waiting:
                share.counter = max(share.counter, min(other.counter for other in self._waiting))
            else:
                self._begin_contention()
            self._waiting[share] = None
            self._turns.setdefault(share)

    def unqueue(self, share: Share) -> None:
        share.waiting -= 1
        if share.waiting == 0:
            del self._waiting[share]
            self._drop_if_done(share)

    def prefill(self, share: Share, change: int) -> None:
        """One more (+1) or one less (−1) of its running sequences has prompt tokens to compute."""
        share.prefilling += change
        if share.prefilling:
            self._turns.setdefault(share)
        else:
            self._drop_if_done(share)

    def _drop_if_done(self, share: Share) -> None:
        if not share.waiting and not share.prefilling:
            self._turns.pop(share, None)

    def _begin_contention(self) -> None:
        """Nobody waited: nobody is owed anything. All start level again."""
        self.level = 0.0
        for name, share in list(self.shares.items()):
            share.counter = 0.0
            if not share.live and not share.waiting:
                del self.shares[name]

    # --- whose turn ------------------------------------------------------------------------------------------------------------

    def charge(self, share: Share, cost: float) -> None:
        share.counter += cost / share.weight

    def turn(self, can: Callable[[Share], bool]) -> Share | None:
        """The share whose turn it is among those that can do something and have a deficit left; None where no such is."""
        turns = self._turns
        for _ in range(len(turns)):
            share = next(iter(turns))
            if share.counter < self.level and can(share):
                return share
            turns.move_to_end(share)
        return None

    def new_round(self, can: Callable[[Share], bool]) -> bool:
        """Give every share its quantum, as often as it takes until one that can do something has a deficit. False: none can."""
        able = [share for share in self._turns if can(share)]
        if not able:
            return False
        heaviest = max(share.weight for share in self._turns)
        step = self.quantum / heaviest
        behind = min(share.counter for share in able) - self.level
        self.level += step * (floor(max(0.0, behind) / step) + 1)
        return True

    def least_served(self, can: Callable[[Share], bool]) -> Share | None:
        """Of those that can do something, the one with the smallest counter, whatever its deficit."""
        return min((share for share in self._turns if can(share)), key=lambda share: share.counter, default=None)

    # --- capacity --------------------------------------------------------------------------------------------------------------

    def set_ceilings(self) -> None:
        """How far each share may get in this step, measured from the least served other one that waits."""
        least, second = inf, inf
        holder: Share | None = None
        for share in self._waiting:
            if share.counter < least:
                least, second, holder = share.counter, least, share
            elif share.counter < second:
                second = share.counter
        for share in self.shares.values():
            floor_counter = second if share is holder else least
            share.ceiling = floor_counter + self.half_bound / share.weight

    def lead(self, share: Share, behind: Share) -> float:
        """How far a share is ahead of another, as a part of what is allowed."""
        return (share.counter - behind.counter) * share.weight / self.half_bound

    def check(self) -> None:
        """Raise AssertionError unless every invariant holds."""
        for share in self.shares.values():
            assert share.waiting >= 0
            assert share.prefilling >= 0
            assert (share in self._waiting) == (share.waiting > 0), share
            assert (share in self._turns) == (share.waiting > 0 or share.prefilling > 0), share
        assert all(self.shares.get(share.name) is share for share in (*self._waiting, *self._turns))
