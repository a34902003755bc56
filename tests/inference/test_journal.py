"""What the journal says after a crash at any point: what was written last, or what was written before it, never less, never more."""

import copy
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.journal import HEADER_BYTES, IdentityTooLong, Journal, JournalFull, JournalUnreadable, left_behind
from inference.protocol.usage import Counters, FinishReason, UsageEvent


def open_journal(folder: Path, *, epoch: str = "e1", slots: int = 4, max_slots: int = 64) -> Journal:
    return Journal.create(folder, worker="w", epoch=epoch, slots=slots, max_slots=max_slots)


def totals(n: int) -> Counters:
    return Counters(prompt_tokens=n, computed_tokens=n, generated_tokens=2 * n, billed_tokens=2 * n, decode_s=n / 3, kv_block_s=n * 7.5)


def settled(folder: Path) -> list[UsageEvent]:
    """What whoever comes next finds in the folder."""
    (journal,) = left_behind(folder).journals
    journal.settle(occurred_at_ms=99)
    events = list(journal.pending())
    journal.close()
    return events


def test_finished_request_is_pending_until_its_sequence_is_committed(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    slot = journal.open("r1", "acme")
    journal.record(slot, totals(3))
    event = journal.finish(slot, totals(4), reason=FinishReason.STOP, occurred_at_ms=17)
    assert event == UsageEvent(
        worker="w", epoch="e1", sequence=1, request_id="r1", account="acme", occurred_at_ms=17, reason=FinishReason.STOP, counters=totals(4)
    )
    assert list(journal.pending()) == [event]
    assert journal.commit(1)
    assert not journal.commit(1)
    assert journal.in_use == 0
    journal.delete()
    assert not list(tmp_path.iterdir())


def test_every_counter_survives(tmp_path: Path) -> None:
    names = Counters.__struct_fields__
    counters = Counters(**{name: n + (0.5 if name.endswith("_s") else 0) for n, name in enumerate(names, start=1)})
    journal = open_journal(tmp_path)
    journal.record(journal.open("r1", "acme"), counters)
    journal.close()
    (event,) = settled(tmp_path)
    assert event.counters == counters


def test_running_request_of_a_dead_process_settles_as_crash_at_its_last_totals(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    running, ended = journal.open("r1", "acme"), journal.open("r2", "acme")
    journal.record(running, totals(5))
    pending = journal.finish(ended, totals(6), reason=FinishReason.LENGTH, occurred_at_ms=17)
    journal.close()
    crashed = UsageEvent(
        worker="w",
        epoch="e1",
        sequence=1,
        request_id="r1",
        account="acme",
        occurred_at_ms=99,
        reason=FinishReason.CRASH,
        counters=totals(5),
    )
    assert settled(tmp_path) == [crashed, pending]
    assert settled(tmp_path) == [crashed, pending]  # the same event again, its time stamped once


def test_journal_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    assert Journal.recover(journal.path) is None
    assert left_behind(tmp_path).journals == []
    journal.close()
    assert len(left_behind(tmp_path).journals) == 1


def test_discarded_request_leaves_no_event(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.discard(journal.open("r1", "acme"))
    journal.close()
    assert settled(tmp_path) == []


def test_file_grows_to_its_bound_and_then_refuses_without_losing_anything(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, slots=2, max_slots=5)
    for n in range(5):
        journal.record(journal.open(f"r{n}", "acme"), totals(n))
    with pytest.raises(JournalFull):
        journal.open("r5", "acme")
    journal.close()
    assert [(event.request_id, event.counters) for event in settled(tmp_path)] == [(f"r{n}", totals(n)) for n in range(5)]


def test_identity_that_does_not_fit_is_refused_and_nothing_moved(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    with pytest.raises(IdentityTooLong):
        journal.open("r" * 300, "a" * 300)
    assert journal.in_use == 0
    assert journal.finish(journal.open("r1", "acme"), totals(1), reason=FinishReason.STOP, occurred_at_ms=1).sequence == 1
    journal.close()


def test_foreign_file_is_moved_aside_and_the_others_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.journal").write_bytes(b"something else" * 1000)
    (tmp_path / "b.journal").write_bytes(b"")
    open_journal(tmp_path).close()
    with pytest.raises(JournalUnreadable):
        Journal.recover(tmp_path / "a.journal")
    found = left_behind(tmp_path)
    assert [journal.epoch for journal in found.journals] == ["e1"]
    assert found.unreadable == [tmp_path / "a.unreadable", tmp_path / "b.unreadable"]
    assert left_behind(tmp_path).unreadable == []


# --- any crash ----------------------------------------------------------------------------------------------------------------

Said = dict[int, tuple[str, FinishReason, Counters]]
"""What the journal should say: sequence → request, reason (crash while it runs), totals."""

steps = st.lists(
    st.tuples(st.sampled_from(["open", "record", "record", "record", "finish", "commit", "discard"]), st.integers(0, 7)), max_size=30
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps, data=st.data())
def test_after_a_crash_at_any_byte_the_journal_says_what_it_said_before_or_after_the_write(
    steps: list[tuple[str, int]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    journal = open_journal(folder, slots=2, max_slots=8)
    expected: Said = {}
    running: dict[int, int] = {}
    pending: list[int] = []
    sequence = 0
    before, said_before = journal.path.read_bytes(), copy.deepcopy(expected)
    for count, (step, pick) in enumerate(steps, start=1):
        before, said_before = journal.path.read_bytes(), copy.deepcopy(expected)
        if step == "open" and len(running) + len(pending) < 8:
            slot = journal.open(f"r{sequence + 1}", "acme")
            sequence += 1
            running[sequence] = slot
            expected[sequence] = (f"r{sequence}", FinishReason.CRASH, Counters())
        elif step in ("record", "finish", "discard") and running:
            chosen = sorted(running)[pick % len(running)]
            if step == "record":
                journal.record(running[chosen], totals(count))
                expected[chosen] = (f"r{chosen}", FinishReason.CRASH, totals(count))
            elif step == "finish":
                journal.finish(running.pop(chosen), totals(count), reason=FinishReason.STOP, occurred_at_ms=count)
                pending.append(chosen)
                expected[chosen] = (f"r{chosen}", FinishReason.STOP, totals(count))
            else:
                journal.discard(running.pop(chosen))
                del expected[chosen]
        elif step == "commit" and pending:
            chosen = pending.pop(pick % len(pending))
            assert journal.commit(chosen)
            del expected[chosen]
    after = journal.path.read_bytes()
    path = journal.path
    journal.close()

    # The last write reached the file up to some byte, or bytes of it in any order: pages and cache lines know no order after a power cut.
    old = before.ljust(len(after), b"\0")
    changed = [at for at in range(len(after)) if old[at] != after[at]]
    if data.draw(st.booleans(), label="in order"):
        arrived = set(changed[: data.draw(st.integers(0, len(changed)), label="bytes")])
    else:
        arrived = {at for at in changed if data.draw(st.booleans())}
    torn = bytearray(old)
    for at in arrived:
        torn[at] = after[at]
    path.write_bytes(torn)

    found = {event.sequence: (event.request_id, event.reason, event.counters) for event in settled(folder)}
    assert found in (said_before, expected)
    if len(arrived) == len(changed):
        assert found == expected
    if not arrived:
        assert found == said_before


@pytest.mark.parametrize("length", [0, 7, HEADER_BYTES - 1])
def test_truncated_header_is_unreadable(tmp_path: Path, length: int) -> None:
    open_journal(tmp_path).close()
    path = tmp_path / "e1.journal"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(JournalUnreadable):
        Journal.recover(path)


def test_truncated_slots_are_free_and_the_whole_ones_count(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for n in range(3):
        journal.record(journal.open(f"r{n}", "acme"), totals(n))
    path = journal.path
    journal.close()
    path.write_bytes(path.read_bytes()[: HEADER_BYTES + 2 * 1024 + 100])
    assert [event.request_id for event in settled(tmp_path)] == ["r0", "r1"]
