"""The WebSocket API over a real web server, a real client and a real worker process."""

from collections import defaultdict

import pytest
import websockets

from gateway.generation import Patience
from tests.gateway.realtime.conftest import Client, serving
from tests.gateway.running_gateway import gateway, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

END = ("response.completed", "response.incomplete", "response.failed", "error")


def numbers(events: list[dict]) -> list[int]:
    return [event["sequence_number"] for event in events]


def text_of(events: list[dict]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def whole_text(events: list[dict]) -> str:
    return next(event["text"] for event in events if event["type"] == "response.output_text.done")


async def test_a_response_is_told_from_created_to_completed(server):
    async with server.connect() as connection:
        client = Client(connection)
        await client.create(instructions="Be brief.", metadata={"order": "7"})
        events = await client.until(*END)
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"
    assert numbers(events) == list(range(len(events)))
    assert text_of(events) == whole_text(events) != ""
    response = events[-1]["response"]
    assert response["usage"]["output_tokens"] == len(text_of(events)) + 1  # the end of the turn is a token, and no text
    assert response["metadata"] == {"order": "7"}
    assert events[0]["response"]["id"] == response["id"] == events[5]["response_id"]


async def test_the_limit_is_told_as_incomplete(server):
    async with server.connect() as connection:
        client = Client(connection)
        await client.create(max_output_tokens=3)
        events = await client.until(*END)
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events[-1]["response"]["usage"]["output_tokens"] == 3


@pytest.mark.parametrize("taken_at", [1, 4, 9, 30])
async def test_another_process_resumes_it_without_gap_or_duplicate(server, other_server, taken_at):
    async with server.connect() as connection:
        client = Client(connection)
        await client.create(ignore_eos=True, max_output_tokens=90)
        first = [await client.receive() for _ in range(taken_at)]
    async with other_server.connect() as connection:
        client = Client(connection)
        await client.send(type="response.resume", response_id=first[0]["response_id"], starting_after=first[-1]["sequence_number"])
        rest = await client.until(*END)
    assert numbers(first + rest) == list(range(len(first + rest)))
    assert text_of(first + rest) == whole_text(rest)
    assert len(text_of(first + rest)) == 90
    assert other_server.generations.running == 0


async def test_an_ended_response_can_be_read_again_the_same(server, other_server):
    async with server.connect() as connection:
        client = Client(connection)
        await client.create()
        once = await client.until(*END)
    async with other_server.connect() as connection:
        client = Client(connection)
        await client.send(type="response.resume", response_id=once[0]["response_id"])
        again = await client.until(*END)
        await client.send(type="response.resume", response_id=once[0]["response_id"], starting_after=once[-1]["sequence_number"])
        nothing = await client.receive()
    assert [event | {"response": None} for event in once] == [event | {"response": None} for event in again]
    assert once[-1]["response"]["output"] == again[-1]["response"]["output"]
    assert (nothing["type"], nothing["param"]) == ("error", "starting_after")


async def test_a_response_goes_on_while_nobody_listens(server, admissions):
    async with server.connect() as connection:
        client = Client(connection)
        await client.create(ignore_eos=True, max_output_tokens=60)
        created = await client.receive()
    await until(lambda: created["response_id"] in admissions.settled)
    assert admissions.settled[created["response_id"]][0].billed_tokens == 60


async def test_a_response_nobody_comes_back_for_is_cancelled(redis_url, server, admissions):
    async with gateway(redis_url, admissions, patience=Patience(orphan_grace_s=0.1)) as generations, serving(generations) as hasty:
        async with hasty.connect() as connection:
            client = Client(connection)
            await client.create(ignore_eos=True, max_output_tokens=4_000)
            created = await client.receive()
        await until(lambda: created["response_id"] in admissions.settled)
        assert admissions.settled[created["response_id"]][0].billed_tokens < 4_000


async def test_only_its_owner_may_resume_or_cancel_it(server, other_server):
    async with server.connect() as connection, other_server.connect("rival") as foreign:
        client, rival = Client(connection), Client(foreign)
        await client.create(ignore_eos=True, max_output_tokens=60)
        created = await client.receive()
        answers = []
        for response_id in (created["response_id"], "resp_" + "0" * 32):
            await rival.send(type="response.resume", response_id=response_id)
            answers.append(await rival.receive())
            await rival.send(type="response.cancel", response_id=response_id)
            answers.append(await rival.receive())
        assert {answer["type"] for answer in answers} == {"error"}
        assert answers[0] == answers[2]
        assert answers[1] == answers[3]
        events = [created, *await client.until(*END)]
    assert numbers(events) == list(range(len(events)))
    assert len(text_of(events)) == 60


async def test_whoever_it_was_taken_from_is_told(server, other_server):
    async with server.connect() as connection, other_server.connect() as elsewhere:
        client, taker = Client(connection), Client(elsewhere)
        await client.create(ignore_eos=True, max_output_tokens=900)
        created = await client.receive()
        await taker.send(type="response.resume", response_id=created["response_id"], starting_after=0)
        assert (await taker.receive())["sequence_number"] == 1
        told = await client.until(*END)
        assert told[-1]["code"] == "resumed_elsewhere"
        await taker.send(type="response.cancel", response_id=created["response_id"])
        assert (await taker.until(*END))[-1]["type"] == "response.incomplete"


async def test_one_connection_may_resume_its_own(server):
    async with server.connect() as connection:
        client = Client(connection)
        await client.create(ignore_eos=True, max_output_tokens=90)
        created = await client.receive()
        await client.send(type="response.resume", response_id=created["response_id"], starting_after=-1)
        events = [created, *await client.until(*END)]
    again = [place for place, event in enumerate(events) if event["type"] == "response.created"][-1]
    assert again > 0
    assert numbers(events[:again]) == list(range(again))
    assert numbers(events[again:]) == list(range(len(events) - again))
    assert events[-1]["type"] == "response.incomplete"


async def test_a_cancel_keeps_what_was_said_and_can_be_read_again(server, other_server):
    async with server.connect() as connection:
        client = Client(connection)
        await client.create(ignore_eos=True, max_output_tokens=2_000)
        events = [await client.receive() for _ in range(20)]
        await client.send(type="response.cancel", response_id=events[0]["response_id"])
        events += await client.until(*END)
    assert numbers(events) == list(range(len(events)))
    assert events[-1]["response"]["status"] == "cancelled"
    assert text_of(events) == whole_text(events)
    assert events[-1]["response"]["usage"]["output_tokens"] == len(text_of(events)) < 2_000
    async with other_server.connect() as connection:
        client = Client(connection)
        await client.send(type="response.resume", response_id=events[0]["response_id"])
        again = await client.until(*END)
    assert text_of(again) == text_of(events)
    assert numbers(again) == numbers(events)


async def test_several_responses_run_side_by_side_each_with_its_own_numbers(server):
    async with server.connect() as connection:
        client = Client(connection)
        for _ in range(5):
            await client.create(ignore_eos=True, max_output_tokens=30)
        by_response = defaultdict(list)
        ended = 0
        while ended < 5:
            event = await client.receive()
            by_response[event["response_id"]].append(event)
            ended += event["type"] in END
    assert len(by_response) == 5
    for events in by_response.values():
        assert numbers(events) == list(range(len(events)))
        assert len(text_of(events)) == 30


async def test_more_responses_than_allowed_are_refused_and_the_others_go_on(server):
    async with server.connect() as connection:
        client = Client(connection)
        for _ in range(17):
            await client.create(ignore_eos=True, max_output_tokens=400)
        kinds: list[str] = []
        while kinds.count("error") + kinds.count("response.incomplete") < 17:
            kinds.append((await client.receive())["type"])
    assert kinds.count("error") == 1
    assert kinds.count("response.incomplete") == 16


async def test_bad_messages_are_named_and_disturb_no_other(server):
    async with server.connect() as connection:
        client = Client(connection)
        await client.create(ignore_eos=True, max_output_tokens=60)
        created = await client.receive()
        for bad in ("{", "[]", '{"type": "response.explode"}', b"\x00binary"):
            await connection.send(bad)
        await client.create(model="nobody")
        await client.create(input=7)
        await client.create(input="x" * 9_000)
        await client.create(max_output_tokens=10**6)
        await client.send(type="response.cancel", response_id="resp_unknown")
        seen = []
        while sum(event["type"] == "error" for event in seen) < 9 or not any(event["type"] == "response.incomplete" for event in seen):
            seen.append(await client.receive())
    refusals = [event for event in seen if event["type"] == "error"]
    assert {refusal["param"] for refusal in refusals} == {None, "type", "model", "input", "max_output_tokens", "response_id"}
    assert all(refusal["error"]["message"] == refusal["message"] and refusal["status"] in (400, 404) for refusal in refusals)
    whole = [created, *(event for event in seen if event["type"] != "error")]
    assert numbers(whole) == list(range(len(whole)))


async def test_a_flood_of_messages_is_not_read_and_not_fatal(server):
    async with server.connect() as connection:
        client = Client(connection)
        for _ in range(160):
            await connection.send("{")
        codes = [(await client.receive())["code"] for _ in range(160)]
        assert codes.count("rate_limit_exceeded") > 20
        assert codes.count("invalid_json") >= 100


async def test_a_message_beyond_the_limit_closes_that_connection_only(server):
    async with server.connect() as connection, server.connect() as other:
        await connection.send("x" * (1024 * 1024 + 1))
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await connection.recv()
        assert closed.value.rcvd.code == 1009
        client = Client(other)
        await client.create()
        assert (await client.until(*END))[-1]["type"] == "response.completed"


async def test_a_refusal_of_admission_is_an_error_event(server, admissions):
    from gateway.admission.outcomes import Refused

    admissions.refusal = Refused(code="rate_limit_exceeded", message="Enough.", limit="requests_per_minute", retry_after_s=3.0)
    async with server.connect() as connection:
        client = Client(connection)
        await client.create()
        refusal = await client.receive()
    assert (refusal["type"], refusal["status"], refusal["code"]) == ("error", 429, "rate_limit_exceeded")


async def test_a_client_that_reads_slowly_loses_nothing(redis_url, server, admissions):
    """G44."""
    async with (
        gateway(redis_url, admissions, patience=Patience(unread_events=8)) as generations,
        serving(generations) as patient,
        patient.connect(max_queue=1) as connection,
    ):
        client = Client(connection)
        await client.create(ignore_eos=True, max_output_tokens=500)
        await until(lambda: any(running.unread >= 8 for running in generations._running.values()) or admissions.settled)
        events = await client.until(*END)
    assert numbers(events) == list(range(len(events)))
    assert text_of(events) == whole_text(events)
    assert events[-1]["response"]["usage"]["output_tokens"] == 500


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("", {}),
        ("", {"Authorization": "Bearer "}),
        ("", {"Authorization": "Basic acme"}),
        ("", {"Authorization": "Bearer stranger"}),
        ("?api_key=acme", {}),
        ("?api_key=acme", {"Authorization": "Bearer acme"}),
    ],
)
async def test_without_a_valid_key_in_the_header_there_is_no_connection(server, query, headers):
    with pytest.raises(websockets.InvalidStatus) as refusal:
        await websockets.connect(server.url + query, additional_headers=headers)
    assert refusal.value.response.status_code == 401
    assert b"invalid_api_key" in refusal.value.response.body
    assert b"stranger" not in refusal.value.response.body


async def test_other_paths_are_refused(server):
    with pytest.raises(websockets.InvalidStatus) as refusal:
        await websockets.connect(server.url + "/nowhere", additional_headers={"Authorization": "Bearer acme"})
    assert refusal.value.response.status_code == 403
