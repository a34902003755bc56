"""Events of a response: their order, their numbers, and that they depend on the tokens alone."""

from msgspec import json

from gateway.events import ChoiceFinished, Delta, Failed, Finished, Started
from gateway.realtime.transcript import OPEN_EVENTS, Description, Transcript
from inference.protocol.usage import Counters

DESCRIPTION = Description(
    response_id="resp_1",
    created_at=5,
    model="m",
    instructions="Be brief.",
    max_output_tokens=9,
    temperature=0.5,
    top_p=1.0,
    metadata={"a": "b"},
)
COUNTERS = Counters(prompt_tokens=7, cached_tokens=3, computed_tokens=4, generated_tokens=6, billed_tokens=5, wasted_tokens=1)


def delta(text: str, index: int) -> Delta:
    return Delta(choice=0, text=text, tokens=(index,), next_index=index + 1)


def told(*events) -> list[dict]:
    transcript = Transcript(DESCRIPTION)
    numbered = [*transcript.opening()]
    for event in events:
        numbered += transcript.read(event)
    decoded = [json.decode(text) for _, text in numbered]
    assert [number for number, _ in numbered] == list(range(len(numbered)))
    assert [event["sequence_number"] for event in decoded] == list(range(len(decoded)))
    assert all(event["response_id"] == "resp_1" for event in decoded)
    return decoded


def kinds(events: list[dict]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_a_whole_response():
    events = told(
        Started(prompt_tokens=7, cached_tokens=3),
        delta("Hel", 0),
        delta("lo", 1),
        ChoiceFinished(choice=0, cause="stop"),
        Finished(counters=COUNTERS),
    )
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert events[OPEN_EVENTS]["delta"] == "Hel"
    assert events[-4]["text"] == "Hello"
    assert {event["item_id"] for event in events if "item_id" in event} == {events[2]["item"]["id"]}
    response = events[-1]["response"]
    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == "Hello"
    assert response["instructions"] == "Be brief."
    assert response["metadata"] == {"a": "b"}
    assert response["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 12,
    }


def test_an_answer_cut_by_its_limit_is_incomplete():
    events = told(delta("Hel", 0), ChoiceFinished(choice=0, cause="length"), Finished(counters=COUNTERS))
    assert kinds(events)[-1] == "incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events[-2]["item"]["status"] == "incomplete"


def test_a_budgets_end_is_told_as_such():
    events = told(delta("Hel", 0), ChoiceFinished(choice=0, cause="length", stop_reason="budget"), Finished(counters=COUNTERS))
    assert events[-1]["response"]["incomplete_details"] == {"reason": "budget"}


def test_a_cancelled_response_keeps_what_it_said():
    events = told(delta("Hel", 0), Failed(code="cancelled", message="", counters=COUNTERS))
    assert kinds(events)[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert events[-1]["response"]["status"] == "cancelled"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hel"


def test_a_failure_is_never_a_finish():
    events = told(delta("Hel", 0), Failed(code="worker_lost", message="Gone.", counters=COUNTERS))
    assert kinds(events)[-2:] == ["output_text.delta", "failed"]
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"] == {"code": "worker_lost", "message": "Gone."}


def test_tokens_without_text_take_no_number():
    assert len(told(delta("", 0), delta("a", 1))) == OPEN_EVENTS + 1


def test_a_description_survives_its_way_through_redis():
    assert Description.unpacked(DESCRIPTION.packed()) == DESCRIPTION
