"""The way of a request into the engine, and back to a response that still runs."""

import asyncio
import itertools
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway import metrics
from gateway.admission.outcomes import Call, Caller, Granted, LimitState, Refused
from gateway.dispatch.errors import LinkDown
from gateway.dispatch.link import Link, LinkTiming
from gateway.dispatch.registry import WorkerRegistry
from gateway.dispatch.routing import Router
from gateway.events import GenerationRequest
from gateway.generation.admissions import Admissions
from gateway.generation.allowance import Allowance
from gateway.generation.catalogue import Catalogue, ServedModel
from gateway.generation.errors import AdmissionRefused, Invalid, ResponseNotFound, Unavailable
from gateway.generation.responses import TAIL_TOKENS, KeptResponse, ResponseRecord, Responses
from gateway.generation.running import Generation, Patience
from gateway.text import Tokenizer
from inference.protocol.frames import ModelCard, Reject, Submit

log = logging.getLogger(__name__)

_RETRY_S = 1.0
_ATTACH_LINK_S = 5.0
"""A process that has just started may not have linked to the response's worker yet."""
_QUIET_S = 2.0
_LAST_WORDS_S = 3.0
_NO_LIMITS = LimitState(
    limit_requests=None, remaining_requests=None, reset_requests_s=None, limit_tokens=None, remaining_tokens=None, reset_tokens_s=None
)
_SHUTTING_DOWN = "The gateway is shutting down. Send the request again."
_CLOSED = "The gateway isn't taking requests now."

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Admitted:
    request: GenerationRequest
    model: ServedModel
    granted: Granted

    @property
    def most(self) -> int:
        return _most(self.request)


class Generations:
    """Everything that runs in this process. Belongs to one event loop, between `open` and `close`."""

    def __init__(
        self,
        redis: Redis,
        admissions: Admissions,
        *,
        secret: bytes | None = None,
        patience: Patience | None = None,
        timing: LinkTiming | None = None,
    ) -> None:
        self.gateway_id = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._admissions = admissions
        self._patience = patience or Patience()
        self._catalogue = Catalogue()
        self._registry = WorkerRegistry(redis, gateway_id=self.gateway_id, secret=secret, greeted=self._greeted, timing=timing)
        self._router = Router()
        self._responses = Responses(redis)
        self._running: dict[str, Generation] = {}
        self._numbers = itertools.count()
        self._holders: dict[str, str] = {}
        self._watching: asyncio.Task[None] | None = None
        self._taking = False

    # --- life ------------------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Find the workers and keep links to them."""
        await self._registry.open()
        self._watching = asyncio.create_task(self._watch_holders(), name="holders of responses")
        self._taking = True

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new; let what runs come to its end, and fail what hasn't in time. Resumable responses stay with their workers."""
        self._taking = False
        remaining = [one for one in self._running.values() if not one.resumable]
        await _all_done(remaining, timeout_s)
        for one in remaining:
            one.cancel("cancelled", _SHUTTING_DOWN)
        await _all_done(remaining, _LAST_WORDS_S)

    async def close(self) -> None:
        """Break the links. What runs without being resumable ends."""
        self._taking = False
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for one in list(self._running.values()):
            if one.resumable:
                one.supersede()
            else:
                one.cancel("cancelled", _SHUTTING_DOWN)
        await _all_done(self._running.values(), _LAST_WORDS_S)
        self._catalogue.close()
        await self._registry.close()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def links(self) -> Iterable[Link]:
        return self._registry.links

    def _greeted(self, link: Link) -> None:
        self._catalogue.keep(self._registry.links)
        self._catalogue.greeted(link)

    # --- models ----------------------------------------------------------------------------------------------------------------

    def models(self) -> list[ModelCard]:
        """The models that can be asked now, in order of name."""
        return [model.card for model in self._catalogue.models()]

    def card(self, model: str) -> ModelCard | None:
        """None: no worker serves it now."""
        served = self._catalogue.model(model)
        return None if served is None else served.card

    def tokenizer(self, model: str) -> Tokenizer:
        """Raises Unavailable when no worker serves it any more."""
        return self._served(model).tokenizer

    def chat_template(self, model: str) -> str | None:
        """The model's own template. Raises Unavailable when no worker serves it any more."""
        return self._served(model).card.chat_template

    def max_choices(self, model: str) -> int:
        """The largest `n`. Raises Unavailable when no worker serves it any more."""
        return min(link.max_choices for link in self._catalogue.links(self._served(model)))

    def _served(self, model: str) -> ServedModel:
        served = self._catalogue.model(model)
        if served is None:
            raise Unavailable(f"No worker serves the model `{model[:200]}` now.", _RETRY_S)
        return served

    # --- callers ---------------------------------------------------------------------------------------------------------------

    async def authenticate(self, digest: str) -> Caller | Refused:
        """Who this key belongs to; nothing is counted. Raises Unavailable."""
        return await _reachable(self._admissions.authenticate(digest))

    # --- requests --------------------------------------------------------------------------------------------------------------

    async def start(self, request: GenerationRequest, *, note: bytes = b"") -> Generation:
        """Admit and submit; returns when the worker has taken it.

        Raises AdmissionRefused, Unavailable, Invalid; then nothing is held.
        """
        [generation] = await self.start_all([request], note=note)
        return generation

    async def start_all(self, requests: Sequence[GenerationRequest], *, note: bytes = b"") -> list[Generation]:
        """Admit all of these, then submit all; they are one call, so one that isn't let in leaves nothing charged for the others.

        Raises AdmissionRefused, Unavailable, Invalid; then nothing is held. What a worker had begun when another refused is billed.
        """
        try:
            return await self._submit_all(await self._admit_all(requests), note)
        except AdmissionRefused:
            self._not_run(requests[0], "refused")
            raise
        except Unavailable:
            self._not_run(requests[0], "unavailable")
            raise
        except Invalid:
            self._not_run(requests[0], "invalid")
            raise

    async def _admit_all(self, requests: Sequence[GenerationRequest]) -> list[_Admitted]:
        admitted: list[_Admitted] = []
        try:
            for request in requests:
                admitted.append(await self._admit(request))
        except BaseException:
            for one in admitted:
                await asyncio.shield(self._release(one.request))
            raise
        return admitted

    async def _submit_all(self, admitted: Sequence[_Admitted], note: bytes) -> list[Generation]:
        tasks = [asyncio.create_task(self._submit(one, note)) for one in admitted]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()  # one that waits for its worker withdraws or cancels what it has sent
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Generation):
                    await outcome.abort()
            raise
        return [task.result() for task in tasks]

    async def _admit(self, request: GenerationRequest) -> _Admitted:
        if not self._taking:
            raise Unavailable(_CLOSED, _RETRY_S)
        model = self._served(request.model)
        self._check(request, model)
        if not self._takers(model):
            raise Unavailable("All workers of this model are being shut down.", _RETRY_S)
        admission = await _reachable(
            self._admissions.admit(
                Call(
                    digest=request.digest,
                    request_id=request.request_id,
                    model=model.card.name,
                    endpoint=request.endpoint,
                    prompt_tokens=len(request.prompt),
                    max_tokens=_most(request),
                )
            )
        )
        if isinstance(admission, Refused):
            raise AdmissionRefused(admission)
        return _Admitted(request=request, model=model, granted=admission)

    def _check(self, request: GenerationRequest, model: ServedModel) -> None:
        card = model.card
        if request.sampling.n > (most := self.max_choices(card.name)):
            raise Invalid(f"At most {most} choices can be asked for at once.", "n")
        if len(request.prompt) > card.max_prompt_tokens:
            raise Invalid(f"The prompt has {len(request.prompt)} tokens; this model takes at most {card.max_prompt_tokens}.", "prompt")
        if request.resumable and request.sampling.prompt_logprobs is not None:
            raise Invalid("A response that can be resumed tells no log-probabilities of its prompt.", "prompt_logprobs")

    def _takers(self, model: ServedModel, refused_by: Iterable[Link] = ()) -> list[Link]:
        return [link for link in self._catalogue.links(model) if link.takes_requests and link not in refused_by]

    async def _submit(self, admitted: _Admitted, note: bytes) -> Generation:
        """Find a worker that takes it. The hold is released unless one does."""
        request, model, granted = admitted.request, admitted.model, admitted.granted
        refused_by: set[Link] = set()
        generation: Generation | None = None
        try:
            while links := self._takers(model, refused_by):
                link = self._router.choose(links, request.prompt, granted.caller.cache_domain)
                generation = Generation(
                    request,
                    model=model,
                    link=link,
                    allowance=Allowance(granted.allowance, most=admitted.most),
                    admissions=self._admissions,
                    patience=self._patience,
                    ended=self._ended,
                    limits=granted.limits,
                    responses=self._responses if request.resumable else None,
                    note=note,
                )
                if request.resumable:
                    await self._remember(generation, granted.caller)
                reject = await self._offer(generation, granted)
                if reject is None:
                    return generation
                if reject.code != "draining":  # then it wasn't claimed, and another worker may have it
                    raise _refusal(reject)
                refused_by.add(link)
            raise Unavailable("No worker can take the request now.", _RETRY_S)
        except BaseException:
            if generation is not None and self._running.get(request.request_id) is generation:
                generation.cancel("cancelled")  # its Finish settles it
            else:
                if generation is not None:
                    generation.withdraw()
                await asyncio.shield(self._release(request))
            raise

    async def _offer(self, generation: Generation, granted: Granted) -> Reject | None:
        """Submit to its worker; the refusal, or None once it is taken."""
        request, caller = generation.request, granted.caller
        submit = Submit(
            request_id=request.request_id,
            prompt=request.prompt,
            sampling=request.sampling,
            allowance=granted.allowance,
            account=granted.account,
            share=caller.share,
            weight=caller.weight,
            tier=caller.tier,
            cache_domain=caller.cache_domain,
            lease=granted.lease,
            resumable=request.resumable,
        )
        try:
            generation.link.submit(submit, generation)
        except LinkDown as error:
            log.warning("request %s wasn't sent: %s", request.request_id, error)
            reject = Reject(request_id=request.request_id, code="draining", message="The worker can't be reached.")
            generation.withdraw()
            return reject
        self._running[request.request_id] = generation
        return await generation.first_word()

    async def _remember(self, generation: Generation, caller: Caller) -> None:
        request, link = generation.request, generation.link
        assert link.epoch is not None, "it was up once"
        record = ResponseRecord(
            request_id=request.request_id,
            key_id=caller.key_id,
            worker_id=link.worker_id,
            epoch=link.epoch,
            endpoint=request.endpoint,
            model=request.model,
            prompt_tail=request.prompt[-TAIL_TOKENS:],
            prompt_tokens=len(request.prompt),
            sampling=request.sampling,
            stop=request.stop,
            include_stop=request.include_stop,
            note=generation.note,
        )
        await _reachable(self._responses.save(record, holder=self._new_holder(request.request_id), allowance=generation.allowance))

    async def _release(self, request: GenerationRequest) -> None:
        try:
            await self._admissions.release(request.request_id)
            if request.resumable:
                await self._responses.drop(request.request_id)
        except (RedisError, OSError) as error:
            log.warning("request %s isn't released, its hold will expire: %s", request.request_id, error)

    def _not_run(self, request: GenerationRequest, outcome: str) -> None:
        served = self._catalogue.model(request.model)
        metrics.not_run("none" if served is None else served.card.name, request.endpoint, outcome)

    def _ended(self, generation: Generation) -> None:
        if self._running.get(generation.request_id) is generation:
            del self._running[generation.request_id]
            self._holders.pop(generation.request_id, None)

    # --- responses that still run ----------------------------------------------------------------------------------------------

    async def attach(self, request_id: str, *, digest: str, next_index: Mapping[int, int] | None = None) -> Generation:
        """Take over a resumable generation, wherever it runs. Deltas up to `next_index` (tokens of each choice) are left out.

        Raises ResponseNotFound (also for anybody but the key that started it), AdmissionRefused, Unavailable.
        """
        if not self._taking:
            raise Unavailable(_CLOSED, _RETRY_S)
        caller = await self.authenticate(digest)
        if isinstance(caller, Refused):
            raise AdmissionRefused(caller)
        kept = await _reachable(self._responses.load(request_id))
        if kept is None or kept.record.key_id != caller.key_id:
            raise ResponseNotFound("No response of this id can be resumed.")
        link, model = await self._find(kept)
        holder = self._new_holder(request_id)
        await _reachable(self._responses.hold(request_id, holder))
        sampling = kept.record.sampling
        generation = Generation(
            kept.record.request(digest),
            model=model,
            link=link,
            allowance=Allowance(kept.allowance, most=sampling.max_tokens * sampling.n),
            admissions=self._admissions,
            patience=self._patience,
            ended=self._ended,
            limits=_NO_LIMITS,
            responses=self._responses,
            prompt_tokens=kept.record.prompt_tokens,
            note=kept.record.note,
            counted=not kept.ended,
        )
        generation.skip(next_index or {})
        # From here to its place among the running without a wait: of several who attach at once each lets go of the one before.
        if (here := self._running.get(request_id)) is not None:
            here.supersede()
        try:
            link.attach(request_id, generation)
        except LinkDown as error:
            generation.withdraw()
            raise Unavailable("The response's worker can't be reached now.", _RETRY_S) from error
        self._running[request_id] = generation
        self._holders[request_id] = holder
        if await generation.first_word() is not None:
            raise ResponseNotFound("The response is over.")
        return generation

    async def _find(self, kept: KeptResponse) -> tuple[Link, ServedModel]:
        """The link to the worker that has it. Raises ResponseNotFound when that process is gone, Unavailable when it can't be reached."""
        record = kept.record
        deadline = asyncio.get_running_loop().time() + _ATTACH_LINK_S
        while True:
            link = self._registry.link(record.worker_id)
            if link is not None and link.up:
                if link.epoch != record.epoch:
                    raise ResponseNotFound("The engine process that ran this response is gone; send the request again.")
                model = self._catalogue.of(link)
                if model is not None:
                    return link, model
            if asyncio.get_running_loop().time() > deadline:
                raise Unavailable("The response's worker can't be reached now.", _RETRY_S)
            await asyncio.sleep(0.05)

    def terminate(self, request_ids: Iterable[str]) -> None:
        """End these, where they run here: their key or tenant may no longer call."""
        for request_id in request_ids:
            if (generation := self._running.get(request_id)) is not None:
                generation.cancel("revoked")

    def _new_holder(self, request_id: str) -> str:
        holder = f"{self.gateway_id}/{next(self._numbers)}"
        self._holders[request_id] = holder
        return holder

    async def _watch_holders(self) -> None:
        """Let go of responses that another process has attached to: their worker says nothing here any more."""
        while True:
            await asyncio.sleep(_QUIET_S / 2)
            now = time.monotonic()
            quiet = [one for one in self._running.values() if one.resumable and not one.over and now - one.quiet_since > _QUIET_S]
            if not quiet:
                continue
            try:
                holders = await self._responses.holders([one.request_id for one in quiet])
            except (RedisError, OSError) as error:
                log.warning("holders of responses can't be read, trying again: %s", error)
                continue
            for one, holder in zip(quiet, holders, strict=True):
                if holder is not None and holder != self._holders.get(one.request_id) and self._running.get(one.request_id) is one:
                    one.supersede()


def _most(request: GenerationRequest) -> int:
    """Tokens that all its choices may generate together."""
    return request.sampling.max_tokens * request.sampling.n


async def _all_done(generations: Iterable[Generation], timeout_s: float) -> None:
    waits = [asyncio.create_task(one.done.wait()) for one in generations if not one.done.is_set()]
    if waits:
        _, late = await asyncio.wait(waits, timeout=timeout_s)
        for task in late:
            task.cancel()


async def _reachable(asked: Awaitable[T]) -> T:
    """The answer. Raises Unavailable when Redis doesn't give one."""
    try:
        return await asked
    except (RedisError, OSError) as error:
        log.warning("Redis can't be reached: %s", error)
        raise Unavailable("The gateway can't check its limits now.", _RETRY_S) from error


def _refusal(reject: Reject) -> Invalid | Unavailable:
    if reject.code in ("cannot_fit", "invalid"):
        return Invalid(reject.message[:1].upper() + reject.message[1:] + ".", reject.param)
    return Unavailable(f"The engine can't take the request now: {reject.message}.", reject.retry_after_s or _RETRY_S)
