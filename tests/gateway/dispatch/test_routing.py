"""Which worker gets a request."""

from dataclasses import dataclass

from gateway.dispatch.routing import CHUNK_TOKENS, REMEMBERED, TOLERATED_IMBALANCE, Router

ACME, RIVAL = b"acme", b"rival"
PREFIX = list(range(10 * CHUNK_TOKENS))


@dataclass(eq=False)
class Worker:
    """What routing looks at of a link."""

    worker_id: str
    pressure: int = 0


def workers(count: int) -> list[Worker]:
    return [Worker(f"w{number}") for number in range(count)]


def test_the_only_worker_gets_everything():
    (only,) = workers(1)
    assert Router().choose([only], PREFIX, ACME) is only


def test_equally_busy_workers_take_turns():
    router, pool = Router(), workers(3)
    assert {router.choose(pool, [number] * 100, ACME).worker_id for number in range(3)} == {"w0", "w1", "w2"}


def test_a_known_prefix_goes_where_it_was_computed():
    router, pool = Router(), workers(3)
    home = router.choose(pool, PREFIX, ACME)
    home.pressure = TOLERATED_IMBALANCE
    assert router.choose(pool, [*PREFIX, 1, 2, 3], ACME) is home
    assert router.choose(pool, PREFIX[: 3 * CHUNK_TOKENS], ACME) is home


def test_the_longest_known_prefix_decides():
    router, pool = Router(), workers(2)
    short = router.choose(pool, PREFIX[:CHUNK_TOKENS], ACME)
    other = next(worker for worker in pool if worker is not short)
    long = router.choose([other], PREFIX, ACME)
    short.pressure = 1
    assert long is other
    assert router.choose(pool, [7] * CHUNK_TOKENS, ACME) is other
    assert router.choose(pool, PREFIX[: 2 * CHUNK_TOKENS], ACME) is short


def test_a_much_busier_worker_loses_its_claim():
    router, pool = Router(), workers(2)
    home = router.choose(pool, PREFIX, ACME)
    home.pressure = TOLERATED_IMBALANCE + 1
    assert router.choose(pool, PREFIX, ACME) is not home


def test_a_prefix_of_another_domain_says_nothing():
    router, pool = Router(), workers(2)
    home = router.choose(pool, PREFIX, ACME)
    home.pressure = 1
    assert router.choose(pool, PREFIX, RIVAL) is not home
    assert router.choose(pool, PREFIX, None) is not home


def test_a_worker_that_has_left_is_not_chosen():
    router, pool = Router(), workers(2)
    home = router.choose(pool, PREFIX, ACME)
    assert router.choose([worker for worker in pool if worker is not home], PREFIX, ACME) is not home


def test_memory_is_bounded():
    router, pool = Router(), workers(2)
    for number in range(REMEMBERED // 8):
        router.choose(pool, [number] * (10 * CHUNK_TOKENS), ACME)
    assert len(router._homes) == REMEMBERED
