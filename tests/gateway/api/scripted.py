"""A `Generations` that does what a test says, behind the interface of gateway.generation."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from gateway import generation
from gateway.admission.outcomes import Caller, LimitState, Refused
from gateway.events import ChoiceFinished, Event, Failed, Finished, GenerationRequest, PromptScored, Started, TokenLogprob
from gateway.text import TextStream, Tokenizer
from inference.protocol.frames import ModelCard
from inference.protocol.usage import Counters
from tests.gateway.text.cards import byte_tokenizer_json, card

KEY = "lg-test"
AUTHORIZATION = {"authorization": f"Bearer {KEY}"}
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()
NO_LIMITS = LimitState(
    limit_requests=None, remaining_requests=None, reset_requests_s=None, limit_tokens=None, remaining_tokens=None, reset_tokens_s=None
)
CALLER = Caller(key_id="k", project_id="p", tenant_id="t", share="s", weight=1.0, tier=0, cache_domain=None, allowed_models=frozenset())
BAD_KEY = Refused(code="invalid_api_key", message="Incorrect API key provided.")

Script = Callable[[GenerationRequest, Tokenizer], Iterable[Event | asyncio.Event]]


def says(text: str, *, cached: int = 0) -> Script:
    """Every choice generates these tokens, cut as the request says."""

    def script(request: GenerationRequest, tokenizer: Tokenizer) -> Iterable[Event]:
        sampling = request.sampling
        yield Started(prompt_tokens=len(request.prompt), cached_tokens=cached)
        if request.echo:
            yield PromptScored(tokens=(None, *(scored(tokenizer, token) for token in request.prompt[1:])))
        tokens = tokenizer.encode_now(text)
        billed = 0
        for choice in range(sampling.n):
            stream = TextStream(tokenizer, choice=choice, prompt=request.prompt, stop=request.stop, include_stop=request.include_stop)
            for place, token in enumerate(tokens[: sampling.max_tokens]):
                alternatives = [(token, -0.5), (256, -1.5), (65, -2.0)]
                scored_so = sampling.logprobs is not None
                stream.push(token, -float(place) if scored_so else None, alternatives[: sampling.logprobs or 0] if scored_so else None)
                if (delta := stream.take()) is not None:
                    yield delta
                if stream.cut is not None:
                    break
            if (delta := stream.finish()) is not None:
                yield delta
            billed += stream.next_index
            if stream.cut is not None:
                yield ChoiceFinished(choice=choice, cause="stop", stop_reason=stream.cut.stop)
            else:
                yield ChoiceFinished(choice=choice, cause="stop" if len(tokens) <= sampling.max_tokens else "length")
        yield Finished(
            counters=Counters(
                prompt_tokens=len(request.prompt),
                computed_tokens=len(request.prompt) - cached,
                cached_tokens=cached,
                generated_tokens=billed,
                billed_tokens=billed,
            )
        )

    return script


def scored(tokenizer: Tokenizer, token: int) -> TokenLogprob:
    return TokenLogprob(
        token=token,
        text=tokenizer.token_text(token),
        raw=tokenizer.token_bytes(token),
        logprob=-0.25,
        top=((token, tokenizer.token_text(token), tokenizer.token_bytes(token), -0.25),),
    )


class ScriptedGeneration:
    """Follows its script; an asyncio.Event in it is waited for. An abort ends it with Failed, as the real one does."""

    def __init__(self, steps: Iterable[Event | asyncio.Event], limits: LimitState) -> None:
        self._steps = steps
        self.limits = limits
        self.aborted = asyncio.Event()
        self.abort_seen = threading.Event()
        """For tests that run in another thread than the application."""
        self.ended = False

    async def events(self) -> AsyncIterator[Event]:
        for step in self._steps:
            if isinstance(step, asyncio.Event):
                waits = [asyncio.ensure_future(event.wait()) for event in (step, self.aborted)]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for wait in waits:
                    wait.cancel()
            if self.aborted.is_set():
                break
            if not isinstance(step, asyncio.Event):
                self.ended = isinstance(step, Finished | Failed)
                yield step
        if not self.ended:
            self.ended = True
            yield Failed(code="cancelled", message="The request was cancelled.")

    async def abort(self) -> None:
        self.aborted.set()
        self.abort_seen.set()


class ScriptedGenerations:
    """One model, one key."""

    def __init__(self) -> None:
        self.cards: list[ModelCard] = [card(byte_tokenizer_json(), name="tiny/model")]
        self.script: Script = says("Hello!")
        self.limits = NO_LIMITS
        self.caller: Caller = CALLER
        self.refusal: Refused | None = None
        self.error: Exception | None = None
        self.requests: list[GenerationRequest] = []
        self.generations: list[ScriptedGeneration] = []
        self.looked_up: list[str] = []
        self.choices = 8
        self._tokenizers: dict[str, Tokenizer] = {}

    async def start_all(self, requests: Sequence[GenerationRequest]) -> list[ScriptedGeneration]:
        return [await self._start(request) for request in requests]

    async def _start(self, request: GenerationRequest) -> ScriptedGeneration:
        self.requests.append(request)
        if request.digest != DIGEST:
            raise generation.AdmissionRefused(BAD_KEY)
        if self.refusal is not None:
            raise generation.AdmissionRefused(self.refusal)
        if self.error is not None:
            raise self.error
        started = ScriptedGeneration(self.script(request, self.tokenizer(request.model)), self.limits)
        self.generations.append(started)
        return started

    def card(self, model: str) -> ModelCard | None:
        return next((one for one in self.cards if one.name == model), None)

    def models(self) -> list[ModelCard]:
        return self.cards

    def tokenizer(self, model: str) -> Tokenizer:
        if model not in self._tokenizers:
            found = self.card(model)
            assert found is not None
            self._tokenizers[model] = Tokenizer(found)
        return self._tokenizers[model]

    def max_choices(self, model: str) -> int:
        return self.choices

    async def authenticate(self, digest: str) -> Caller | Refused:
        self.looked_up.append(digest)
        return self.caller if digest == DIGEST else BAD_KEY
