"""One response as the events that a client reads, numbered without a gap.

The events are a function of what was asked and of the tokens alone: the generation gives one delta for each token that lets text out,
whatever frames the tokens came in. So any gateway process that is given the tokens from the beginning writes the same events with the same
numbers, and a resumed stream is the transcript past the last number that the client has.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, json, msgpack

from gateway.events import ChoiceFinished, Delta, Event, Failed, Finished
from inference.protocol.usage import Counters

_encode = json.Encoder().encode

OPEN_EVENTS = 4
"""Before the first delta: created, in_progress, output_item.added, content_part.added."""


class Description(Struct, frozen=True, kw_only=True):
    """What of a request its response object repeats. Kept beside the running response."""

    response_id: str
    created_at: int
    """Unix seconds."""
    model: str
    instructions: str | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    metadata: dict[str, str]

    @property
    def item_id(self) -> str:
        return "msg_" + self.response_id.removeprefix("resp_")

    def packed(self) -> bytes:
        return msgpack.encode(self)

    @classmethod
    def unpacked(cls, note: bytes) -> "Description":
        return msgpack.decode(note, type=cls)


class Transcript:
    """Turns a generation's events, all of them from the first on, into numbered events in JSON."""

    def __init__(self, description: Description) -> None:
        self._description = description
        self._next = 0
        self._text: list[str] = []
        self._finish: ChoiceFinished | None = None
        self.ended = False

    def opening(self) -> Iterator[tuple[int, str]]:
        """Number and text of the events before the first token."""
        item = {"id": self._description.item_id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._event("response.content_part.added", **self._place(), part=self._part(""))

    def read(self, event: Event) -> Iterator[tuple[int, str]]:
        """Number and text of what this event says to the client."""
        match event:
            case Delta(text=text) if text:
                self._text.append(text)
                yield self._event("response.output_text.delta", **self._place(), delta=text, logprobs=[])
            case ChoiceFinished():
                self._finish = event
            case Finished(counters=counters):
                assert self._finish is not None, "a finished generation has said how"
                whole = self._finish.cause == "stop"
                yield from self._close("completed" if whole else "incomplete")
                reason = None if whole else "max_output_tokens"
                if self._finish.stop_reason == "budget":
                    reason = "budget"
                yield self._last("completed" if whole else "incomplete", counters, reason=reason)
            case Failed(code="cancelled", counters=counters):
                yield from self._close("incomplete")
                yield self._last("cancelled", counters, reason="cancelled")
            case Failed(code=code, message=message, counters=counters):
                yield self._last("failed", counters, error={"code": code, "message": message})
            case _:
                pass

    def _close(self, status: str) -> Iterator[tuple[int, str]]:
        text = "".join(self._text)
        yield self._event("response.output_text.done", **self._place(), text=text, logprobs=[])
        yield self._event("response.content_part.done", **self._place(), part=self._part(text))
        yield self._event("response.output_item.done", output_index=0, item=self._item(status))

    def _last(self, status: str, counters: Counters, *, reason: str | None = None, error: dict[str, str] | None = None) -> tuple[int, str]:
        self.ended = True
        name = "incomplete" if status == "cancelled" else status
        response = self._response(status, output=True) | {
            "usage": _usage(counters),
            "incomplete_details": None if reason is None else {"reason": reason},
            "error": error,
        }
        return self._event(f"response.{name}", response=response)

    def _event(self, kind: str, **fields: object) -> tuple[int, str]:
        number, self._next = self._next, self._next + 1
        return number, _encode({"type": kind, "sequence_number": number, "response_id": self._description.response_id, **fields}).decode()

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._description.item_id, "output_index": 0, "content_index": 0}

    @staticmethod
    def _part(text: str) -> dict[str, object]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _item(self, status: str) -> dict[str, object]:
        return {
            "id": self._description.item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [self._part("".join(self._text))],
        }

    def _response(self, status: str, *, output: bool = False) -> dict[str, object]:
        description = self._description
        return {
            "id": description.response_id,
            "object": "response",
            "created_at": description.created_at,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": description.instructions,
            "max_output_tokens": description.max_output_tokens,
            "metadata": description.metadata,
            "model": description.model,
            "output": [self._item("completed" if status == "completed" else "incomplete")] if output else [],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": description.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": description.top_p,
            "truncation": "disabled",
            "usage": None,
        }


def _usage(counters: Counters) -> dict[str, object]:
    return {
        "input_tokens": counters.prompt_tokens,
        "input_tokens_details": {"cached_tokens": counters.cached_tokens},
        "output_tokens": counters.billed_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counters.prompt_tokens + counters.billed_tokens,
    }
