import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.config import FairnessConfig
from inference.fairness import FairShares, Share
from tests.inference.driving import Driver, small_config

weights = st.floats(0.1, 8.0)


def backlogged(fair: FairShares, *weights: float) -> list[Share]:
    shares = [fair.share(f"share {index}", weight) for index, weight in enumerate(weights)]
    for share in shares:
        share.live = 1
    for share in shares:
        fair.queue(share)
    return shares


def serve_step(fair: FairShares, budget: int, can: Callable[[Share], bool], chunk: Callable[[], int]) -> dict[Share, float]:
    """What the scheduler does: turns, rounds, and never past the ceiling."""
    served: dict[Share, float] = {}
    fair.set_ceilings()
    over: set[Share] = set()

    def may(share: Share) -> bool:
        return share not in over and can(share)

    while budget > 0:
        share = fair.turn(may)
        if share is None:
            if fair.new_round(may):
                continue
            break
        tokens = min(budget, chunk())
        cost = tokens * random.choice((1, 2))
        if share.counter + cost / share.weight > share.ceiling:
            over.add(share)
            continue
        fair.charge(share, cost)
        served[share] = served.get(share, 0.0) + cost
        budget -= tokens
    fair.check()
    return served


@settings(max_examples=150, deadline=None)
@given(
    weight_list=st.lists(weights, min_size=2, max_size=5),
    quantum=st.integers(1, 32),
    seed=st.integers(0, 2**32),
    hog=st.booleans(),
)
def test_service_per_weight_of_backlogged_shares_stays_within_the_printed_bound(
    weight_list: list[float], quantum: int, seed: int, hog: bool
) -> None:
    """`hog`: the first share also decodes in every step, as one whose sequences hold all the room does."""
    draw = random.Random(seed)
    random.seed(seed)
    budget = 32
    fair = FairShares(quantum=quantum, step_tokens=budget)
    shares = backlogged(fair, *weight_list)
    total = dict.fromkeys(shares, 0.0)
    spread: dict[tuple[Share, Share], tuple[float, float]] = {}
    for _ in range(120):
        left = budget
        if hog:
            fair.set_ceilings()
            while left > 8 and shares[0].counter + shares[0].token_step <= shares[0].ceiling:
                fair.charge(shares[0], 2)
                total[shares[0]] += 2
                left -= 1
        for share, cost in serve_step(fair, left, lambda _: True, lambda: draw.randint(1, 16)).items():
            total[share] += cost
        for one in shares:
            for other in shares:
                apart = total[one] / one.weight - total[other] / other.weight
                low, high = spread.get((one, other), (0.0, 0.0))
                spread[one, other] = (min(low, apart), max(high, apart))
                lightest = min(one.weight, other.weight)
                assert spread[one, other][1] - spread[one, other][0] <= fair.bound(lightest) + 1e-6


def test_shares_get_service_in_proportion_to_their_weights() -> None:
    fair = FairShares(quantum=16, step_tokens=16)
    heavy, light = backlogged(fair, 3.0, 1.0)
    total = {heavy: 0.0, light: 0.0}
    for _ in range(1000):
        for share, cost in serve_step(fair, 16, lambda _: True, lambda: 4).items():
            total[share] += cost
    assert total[heavy] / total[light] == pytest.approx(3.0, rel=0.02)


def test_a_share_keeps_its_turn_until_its_deficit_is_used_up() -> None:
    fair = FairShares(quantum=10, step_tokens=10)
    first, second = backlogged(fair, 1.0, 1.0)
    assert fair.new_round(lambda _: True)
    turns = []
    for _ in range(10):
        share = fair.turn(lambda _: True)
        if share is None:
            break
        turns.append(share)
        fair.charge(share, 4)
    assert turns == [first] * 3 + [second] * 3


def test_a_returning_share_gets_no_credit_for_having_been_away() -> None:
    fair = FairShares(quantum=10, step_tokens=10)
    busy, other = backlogged(fair, 1.0, 1.0)
    fair.charge(busy, 500)
    fair.charge(other, 400)
    late = fair.share("late", 1.0)
    late.live = 1
    fair.queue(late)
    assert late.counter == 400


def test_a_share_that_is_ahead_is_not_forgiven_by_leaving_while_others_wait() -> None:
    fair = FairShares(quantum=10, step_tokens=10)
    greedy, _ = backlogged(fair, 1.0, 1.0)
    fair.charge(greedy, 500)
    fair.unqueue(greedy)
    fair.queue(greedy)
    assert greedy.counter == 500


def test_all_start_level_when_nobody_waited() -> None:
    fair = FairShares(quantum=10, step_tokens=10)
    one, other = backlogged(fair, 1.0, 1.0)
    fair.charge(one, 500)
    fair.unqueue(one)
    fair.unqueue(other)
    fair.queue(other)
    assert (one.counter, other.counter) == (0.0, 0.0)


def test_shares_without_sequences_are_forgotten() -> None:
    fair = FairShares(quantum=10, step_tokens=10)
    (gone,) = backlogged(fair, 1.0)
    fair.unqueue(gone)
    gone.live = 0
    other = fair.share("other", 1.0)
    other.live = 1
    fair.queue(other)
    fair.check()
    assert list(fair.shares) == ["other"]


def served(driver: Driver, share_of: dict[str, str]) -> dict[str, float]:
    """Service so far by the engine's own counters: 1 for each computed prompt token, 2 for each generated one."""
    total = dict.fromkeys(share_of.values(), 0.0)
    for request_id, share in share_of.items():
        finish = driver.finished.get(request_id)
        counters = finish.counters if finish else driver.engine.counters(request_id)
        total[share] += counters.computed_tokens + 2 * counters.generated_tokens
    return total


def flood_beside_light(driver: Driver, flood_weight: float) -> tuple[float, float]:
    """Floods, then adds a light share; returns the spread of service per weight while both are backlogged, and the bound."""
    draw = random.Random(5)
    share_of: dict[str, str] = {}
    for index in range(24):
        driver.submit(f"f{index}", [draw.randint(0, 62) for _ in range(40)], share="flood", weight=flood_weight, max_tokens=60)
        share_of[f"f{index}"] = "flood"
    for _ in range(30):
        driver.step()
    for index in range(40):
        driver.submit(f"l{index}", [draw.randint(0, 62) for _ in range(4)], share="light", max_tokens=12)
        share_of[f"l{index}"] = "light"
    fair = driver.engine.scheduler.tiers[0].fair
    apart = []
    while fair.shares["light"].waiting and fair.shares["flood"].waiting:
        driver.step()
        now = served(driver, share_of)
        apart.append(now["flood"] / flood_weight - now["light"])
    return max(apart) - min(apart), fair.bound(1.0)


SMALL = {"step_tokens": 16, "prefill_chunk": 16, "prefix_cache": False}


@pytest.mark.parametrize("flood_weight", [1.0, 3.0], ids=["1:1", "3:1"])
@pytest.mark.parametrize(("rows", "blocks"), [(4, 200), (16, 40)], ids=["few rows", "few blocks"])
def test_engine_keeps_the_bound_between_a_flood_of_long_requests_and_short_ones(flood_weight: float, rows: int, blocks: int) -> None:
    driver = Driver(config=small_config(max_sequences=rows, blocks=blocks, **SMALL))
    spread, bound = flood_beside_light(driver, flood_weight)
    assert spread <= bound
    driver.run()
    assert len(driver.finished) == 64
    assert all(finish.error is None for finish in driver.finished.values())


def test_without_fairness_the_same_flood_breaks_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FairShares, "set_ceilings", lambda fair: None)
    config = small_config(max_sequences=4, blocks=200, fairness=FairnessConfig(preempt_lead=1e9), **SMALL)
    spread, bound = flood_beside_light(Driver(config=config), 1.0)
    assert spread > bound
