"""One client's connection: reads its messages, runs its responses side by side, and leaves them running when it goes."""

import asyncio
import logging
import secrets
import time
from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer
from msgspec import json

from gateway import generation
from gateway.admission.outcomes import Refused
from gateway.api import errors
from gateway.api.endpoint import served
from gateway.api.errors import ApiError
from gateway.api.parameters import AskedLimit, token_limit
from gateway.api.presented_key import exposed, holds_key, presented_digest
from gateway.events import GenerationRequest
from gateway.generation import Generation
from gateway.realtime.messages import CancelResponse, Create, Resume, read
from gateway.realtime.transcript import Description, Transcript
from gateway.text import PromptRefused
from inference.protocol.sampling import Sampling

log = logging.getLogger(__name__)

ENDPOINT = "responses"
MAX_RESPONSES = 16
"""Running on one connection."""
MESSAGES_PER_S = 20.0
MESSAGES_AT_ONCE = 100.0


class ResponsesConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """Speaks OpenAI's Responses WebSocket mode, and `response.cancel` and `response.resume` beside."""

    channel_layer_alias = "none"
    """Nothing is sent to it from elsewhere: it reads its own generations."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._digest = ""
        self._running: dict[str, Generation] = {}
        self._resuming: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._messages_left = MESSAGES_AT_ONCE
        self._counted_at = time.monotonic()

    # --- the connection --------------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        try:
            self._digest = self._presented_digest()
            caller = await generation.service().authenticate(self._digest)
            if isinstance(caller, Refused):
                raise errors.refused(caller)
        except generation.Unavailable as error:
            await self._deny(errors.unavailable(error.message, error.retry_after_s or 1.0))
        except ApiError as error:
            await self._deny(error)
        else:
            await self.accept()

    def _presented_digest(self) -> str:
        query = self.scope["query_string"]
        if holds_key(query):
            raise exposed()
        return presented_digest(self.scope["headers"], query)

    async def _deny(self, error: ApiError) -> None:
        """Answer the handshake with an HTTP error, where the server can."""
        if "websocket.http.response" in self.scope.get("extensions", {}):
            headers = [(b"content-type", b"application/json"), *error.headers]
            await self.base_send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
            await self.base_send({"type": "websocket.http.response.body", "body": error.body()})
        else:
            await self.close()

    async def disconnect(self, code: int) -> None:
        """Leave what runs to whoever resumes it."""
        del code
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for running in self._running.values():
            running.detach()

    # --- messages --------------------------------------------------------------------------------------------------------------

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Nothing here waits for a response: the next message may be its cancel."""
        try:
            self._count_message()
            if text_data is None:
                raise ApiError("Messages have to be JSON in text frames.", code="invalid_json")
            match read(text_data):
                case Create() as create:
                    self._check_room()
                    self._spawn(self._create(create))
                case Resume() as resume:
                    self._check_room()
                    self._spawn(self._resume(resume))
                case CancelResponse(response_id=response_id):
                    self._cancel(response_id)
        except ApiError as error:
            await self._send_error(error)

    def _count_message(self) -> None:
        now = time.monotonic()
        self._messages_left = min(MESSAGES_AT_ONCE, self._messages_left + (now - self._counted_at) * MESSAGES_PER_S)
        self._counted_at = now
        if self._messages_left < 1:
            raise ApiError(
                f"At most {MESSAGES_PER_S:g} messages a second are read; this one wasn't.",
                status=429,
                kind="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after_s=1,
            )
        self._messages_left -= 1

    def _check_room(self) -> None:
        if len(self._tasks) >= MAX_RESPONSES:
            raise ApiError(
                f"At most {MAX_RESPONSES} responses run on one connection.",
                status=429,
                kind="rate_limit_error",
                code="concurrency_limit_exceeded",
                retry_after_s=1,
            )

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(self._safely(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _safely(self, work: Any) -> None:
        """One response's error is told and ends that response only."""
        try:
            await work
        except ApiError as error:
            await self._send_error(error)
        except generation.AdmissionRefused as error:
            await self._send_error(errors.refused(error.refused))
        except generation.Unavailable as error:
            await self._send_error(errors.unavailable(error.message, error.retry_after_s or 1.0))
        except generation.Invalid as error:
            await self._send_error(ApiError(error.message, param=error.param, code="invalid_value"))
        except generation.ResponseNotFound as error:
            await self._send_error(_not_found(error.message))
        except Exception:
            log.exception("a response on a WebSocket failed")
            await self._send_error(errors.internal_error("-"))

    async def _send_error(self, error: ApiError) -> None:
        """An `error` event: about a message, part of no response, and so always of number 0."""
        told = error.object
        event = {"type": "error", "sequence_number": 0, "status": error.status, "code": told.code, "message": told.message}
        await self.send(json.encode(event | {"param": told.param, "error": told}).decode())

    # --- responses -------------------------------------------------------------------------------------------------------------

    async def _create(self, create: Create) -> None:
        service = generation.service()
        card = served(service, create.model)
        messages = create.messages()
        try:
            prompt = await service.tokenizer(card.name).encode_chat(messages)
        except PromptRefused as error:
            raise ApiError(str(error), param="input", code=error.code) from error
        asked = AskedLimit(tokens=create.max_output_tokens, param="max_output_tokens", prompt_param="input")
        temperature = 1.0 if create.temperature is None else create.temperature
        top_p = 1.0 if create.top_p is None else create.top_p
        sampling = Sampling(
            max_tokens=token_limit(card, len(prompt), asked),
            temperature=temperature,
            top_k=create.top_k or 0,
            top_p=top_p,
            min_p=create.min_p or 0.0,
            seed=create.seed,
            ignore_eos=bool(create.ignore_eos),
        )
        description = Description(
            response_id=f"resp_{secrets.token_hex(16)}",
            created_at=int(time.time()),
            model=card.name,
            instructions=create.instructions,
            max_output_tokens=create.max_output_tokens,
            temperature=temperature,
            top_p=top_p,
            metadata=create.metadata or {},
        )
        request = GenerationRequest(
            digest=self._digest,
            request_id=description.response_id,
            endpoint=ENDPOINT,
            model=card.name,
            prompt=prompt,
            sampling=sampling,
            resumable=True,
        )
        running = await service.start(request, note=description.packed())
        await self._follow(running, description, after=-1)

    async def _resume(self, resume: Resume) -> None:
        self._resuming.add(resume.response_id)
        try:
            running = await generation.service().attach(resume.response_id, digest=self._digest)
        finally:
            self._resuming.discard(resume.response_id)
        sent = await self._follow(running, Description.unpacked(running.note), after=resume.starting_after)
        if not sent and not running.superseded:
            raise _not_found("The response has ended, and nothing in it comes after `starting_after`.", param="starting_after")

    async def _follow(self, running: Generation, description: Description, *, after: int) -> int:
        """Send the response's events past this number; returns how many."""
        response_id = description.response_id
        self._running[response_id] = running
        transcript = Transcript(description)
        sent = 0
        try:
            for number, text in transcript.opening():
                if number > after:
                    await self.send(text)
                    sent += 1
            async for event in running.events():
                if running.superseded and running.done.is_set() and not transcript.ended:
                    await self._tell_superseded(running, response_id)
                    break
                for number, text in transcript.read(event):
                    if number > after:
                        await self.send(text)
                        sent += 1
        except asyncio.CancelledError:
            raise  # the client has gone: it stays among the running, for `disconnect`
        except BaseException:
            running.detach()
            raise
        if self._running.get(response_id) is running:
            del self._running[response_id]
        return sent

    async def _tell_superseded(self, running: Generation, response_id: str) -> None:
        if response_id not in self._resuming and self._running.get(response_id) is running:
            await self._send_error(ApiError(f"{response_id} has been resumed on another connection.", status=409, code="resumed_elsewhere"))

    def _cancel(self, response_id: str) -> None:
        running = self._running.get(response_id)
        if running is None:
            raise _not_found("No response of this id runs on this connection.")
        running.stop()


def _not_found(message: str, *, param: str = "response_id") -> ApiError:
    return ApiError(message, status=404, code="response_not_found", param=param)
