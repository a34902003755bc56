"""The WebSocket API by a plain client: create, deltas, cancel, resume, errors."""

import asyncio
import json

import pytest
import websockets

pytestmark = pytest.mark.e2e

FRANCE = "What is the capital of France?"


class Socket:
    """A connection that speaks JSON events."""

    def __init__(self, connection: websockets.ClientConnection) -> None:
        self.connection = connection

    async def send(self, **event) -> None:
        await self.connection.send(json.dumps(event))

    async def receive(self) -> dict:
        return json.loads(await asyncio.wait_for(self.connection.recv(), 60))

    async def until(self, *kinds: str) -> list[dict]:
        events = [await self.receive()]
        while events[-1]["type"] not in kinds:
            events.append(await self.receive())
        return events


def connect(up, key: str | None = None):
    return websockets.connect(
        f"ws://127.0.0.1:{up.port}/v1/responses", additional_headers={"Authorization": f"Bearer {key or up.demo['api_key']}"}
    )


def text_of(events: list[dict]) -> str:
    return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")


async def test_create_streams_deltas_and_completes(up, model):
    async with connect(up) as connection:
        socket = Socket(connection)
        await socket.send(type="response.create", model=model, input=FRANCE, temperature=0)
        events = await socket.until("response.completed", "response.failed", "error")
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"
    assert text_of(events) == "The capital of France is Paris."
    numbers = [e["sequence_number"] for e in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert events[-1]["response"]["usage"]["output_tokens"] == 8


async def test_a_response_resumes_on_a_new_connection_without_gap_or_duplicate(up, model):
    async with connect(up) as connection:
        socket = Socket(connection)
        await socket.send(type="response.create", model=model, input="Tell me a long story.", temperature=0, max_output_tokens=60)
        first = [await socket.receive() for _ in range(12)]
    identifier = first[0]["response"]["id"]
    async with connect(up) as connection:
        socket = Socket(connection)
        await socket.send(type="response.resume", response_id=identifier, starting_after=first[-1]["sequence_number"])
        rest = await socket.until("response.completed", "response.incomplete", "response.failed", "error")
    numbers = [e["sequence_number"] for e in first + rest]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    whole = next(e for e in rest if e["type"] == "response.output_text.done")["text"]
    assert text_of(first + rest) == whole


async def test_only_the_owner_may_resume(up, model):
    rival = up.create_key("Rival socket")
    async with connect(up) as connection:
        socket = Socket(connection)
        await socket.send(type="response.create", model=model, input="Tell me a story.", max_output_tokens=16)
        created = await socket.receive()
    async with connect(up, rival) as connection:
        socket = Socket(connection)
        await socket.send(type="response.resume", response_id=created["response"]["id"], starting_after=0)
        refusal = await socket.receive()
    assert refusal["type"] == "error"
    assert "story" not in json.dumps(refusal)


async def test_cancel_ends_the_response(up, model):
    async with connect(up) as connection:
        socket = Socket(connection)
        await socket.send(type="response.create", model=model, input="Tell me a very long story.", max_output_tokens=500)
        created = await socket.receive()
        await socket.until("response.output_text.delta")
        await socket.send(type="response.cancel", response_id=created["response"]["id"])
        events = await socket.until("response.completed", "response.incomplete", "response.failed", "response.cancelled", "error")
    assert events[-1]["type"] != "response.completed"
    assert events[-1]["response"]["status"] in ("cancelled", "incomplete")


async def test_bad_messages_name_the_field_and_leave_the_connection_open(up, model):
    async with connect(up) as connection:
        socket = Socket(connection)
        for bad in ("{", '{"type": "response.explode"}', json.dumps({"type": "response.create", "model": model, "input": 7})):
            await connection.send(bad)
            assert (await socket.receive())["type"] == "error"
        await socket.send(type="response.create", model=model, input=FRANCE, temperature=0)
        events = await socket.until("response.completed", "response.failed")
    assert events[-1]["type"] == "response.completed"


async def test_no_connection_without_a_key(up):
    with pytest.raises(websockets.InvalidStatus) as refusal:
        await websockets.connect(f"ws://127.0.0.1:{up.port}/v1/responses")
    assert refusal.value.response.status_code in (401, 403)
