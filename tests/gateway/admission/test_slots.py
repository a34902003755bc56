"""A slot whose lease has ended is free for the next call, and for nobody else."""

from gateway.admission.outcomes import Granted


async def test_slot_that_went_to_another_call_cannot_be_claimed_any_more(stage):
    """However many other leases ended before, and are still to be dealt with."""
    for _ in range(30):
        await stage.granted(name="rival")
    await stage.limit("key", in_flight=1)
    await stage.wait(5)
    late = await stage.granted()
    await stage.wait(16)
    assert isinstance(await stage.admit(), Granted)
    assert not await stage.claim(late), "its slot is another's now"
    assert await stage.in_flight() == 1


async def test_tokens_of_an_ended_lease_are_there_for_the_next_call(stage):
    for _ in range(30):
        await stage.granted(name="rival")
    await stage.limit("tenant", tokens_per_day=110)
    await stage.wait(5)
    await stage.granted(prompt=10, most=100)
    await stage.wait(16)
    assert await stage.granted(prompt=10, most=100)
    assert await stage.budget("tenant") == (0, 110)
