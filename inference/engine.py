"""The engine: takes requests in, runs one step after another, gives tokens out.

One thread owns it. Between steps it is told what to do (submit, allow, cancel, pause); `step` does what can be done now and says what
came of it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

import torch
from torch import Tensor

from inference.accounting import Totals, counters_of, note_computed
from inference.batching import BatchBuilder, RowTables
from inference.blocks import BlockPool, BlockTable
from inference.config import EngineConfig
from inference.errors import RequestRejected
from inference.memory import cache_size, describe
from inference.models.base import KVCache, Model
from inference.prefix import PrefixIndex
from inference.protocol.frames import ChoiceEnd, Finish, Load, PromptLogprobs, Started, Submit, TokenOut
from inference.protocol.usage import Counters, FinishReason
from inference.request import ENDED, RUNNING, Request, Sequence
from inference.sampling import Sampled, Sampler, token_logprobs
from inference.scheduler import Scheduler
from inference.validation import check_fits, check_prompt, check_submit

__all__ = ["Engine", "RequestRejected", "StepOutput"]


@dataclass(slots=True)
class StepOutput:
    """What one step gave."""

    started: list[Started] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    tokens: list[TokenOut] = field(default_factory=list)
    ends: list[ChoiceEnd] = field(default_factory=list)
    finished: list[Finish] = field(default_factory=list)


@dataclass(slots=True)
class _Computed:
    """What the model gave for a step's work."""

    sampling: list[Sequence]
    sampled: Sampled
    """An entry for each of `sampling`."""
    told: list[PromptLogprobs | None]


class Engine:
    """A continuously batching engine over one model and one paged cache."""

    def __init__(self, model: Model, config: EngineConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.model = model
        self.config = config
        self._clock = clock
        self.cache_size = cache_size(config, model.cache_groups, model.device)
        blocks, block_size = self.cache_size.blocks, config.block_size
        self.caches = tuple(KVCache(group, blocks=blocks, block_size=block_size, device=model.device) for group in model.cache_groups)
        self.pool = BlockPool(blocks)
        self._index = PrefixIndex(self.pool, fingerprint=model.fingerprint, block_size=block_size, secret=config.prefix_secret)
        widest = -(-min(model.context_length, blocks * block_size) // block_size)
        tables = RowTables(config.max_sequences, widest=widest)
        self.scheduler = Scheduler(config, self.pool, self._index, tables)
        self._tables = tables
        self._builder = BatchBuilder(tables, block_size=block_size, step_tokens=config.step_tokens, device=model.device)
        self._sampler = Sampler(rows=config.max_sequences, vocab=model.vocab_size, device=model.device)
        self._requests: dict[str, Request] = {}
        self._queued: dict[str, Request] = {}
        self._finished: list[Finish] = []
        self._order = 0
        self._totals = Totals()

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt that can ever run."""
        return min(self.model.context_length, self.cache_size.tokens) - 1

    def describe(self) -> list[str]:
        """Lines for whoever starts it: the cache's size, why, and what it allows."""
        return describe(
            self.cache_size,
            self.model.cache_groups,
            context_length=self.model.context_length,
            max_sequences=self.config.max_sequences,
        ).splitlines()

    # --- what it is told -------------------------------------------------------------------------------------------------------

    def submit(self, submit: Submit) -> None:
        """Accept a request into the queue. Raises RequestRejected, having changed nothing."""
        config, model = self.config, self.model
        if submit.request_id in self._requests:
            raise RequestRejected("duplicate", f"request {submit.request_id!r} is known already")
        check_submit(submit, config, model.vocab_size)
        check_fits(
            len(submit.prompt),
            submit.sampling.max_tokens,
            context_length=model.context_length,
            blocks=self.pool.total,
            block_size=config.block_size,
        )
        prompt = check_prompt(submit.prompt, model.vocab_size)
        if len(self._queued) >= config.queue_limit:
            raise RequestRejected("queue_full", f"{config.queue_limit} requests wait already", retry_after_s=self._retry_after_s())
        tier = self.scheduler.tier(submit.tier)
        share = tier.fair.share(submit.share, submit.weight)
        reads = config.prefix_cache and submit.cache_domain is not None
        root = self._index.root(submit.cache_domain) if reads and submit.cache_domain is not None else None
        request = Request(submit, prompt, order=self._order, arrived_at=self._clock(), root=root, share=share, tier=tier)
        self._order += 1
        self._requests[submit.request_id] = self._queued[submit.request_id] = request
        self.scheduler.enqueue(self._create(request))

    def _create(self, request: Request) -> Sequence:
        """The next choice, waiting."""
        wishes = request.submit.sampling
        ending = frozenset(wishes.stop_token_ids) if wishes.ignore_eos else frozenset((*wishes.stop_token_ids, *self.model.eos_token_ids))
        limit = min(len(request.prompt) + wishes.max_tokens, self.model.context_length)
        sequence = Sequence(request, request.uncreated.pop(0), limit=limit, table=BlockTable(self.pool), stop_ids=ending)
        request.sequences.append(sequence)
        request.share.live += 1
        return sequence

    def allow(self, request_id: str, allowance: int) -> None:
        """Raise the cumulative number of tokens that may be generated. A smaller number and an unknown request are ignored."""
        request = self._requests.get(request_id)
        if request is not None and allowance > request.allowance:
            request.remaining += allowance - request.allowance
            request.allowance = allowance
            self._wake(request)

    def pause(self, request_id: str, paused: bool) -> None:
        """Stop a request where it is, or let it go on. An unknown one is ignored."""
        request = self._requests.get(request_id)
        if request is not None and request.paused != paused:
            request.paused = paused
            self._wake(request)

    def _wake(self, request: Request) -> None:
        for sequence in request.sequences:
            if request.stalled:
                self.scheduler.dequeue(sequence)
            elif sequence.state not in {RUNNING, ENDED}:
                self.scheduler.enqueue(sequence)

    def cancel(
        self,
        request_id: str,
        *,
        reason: FinishReason = FinishReason.CANCELLED,
        choice: int | None = None,
        delivered: dict[int, int] | None = None,
    ) -> None:
        """End a request or one choice: its blocks are free when this returns, the Finish comes with the next step.

        An unknown request is ignored. delivered: tokens of each choice that count; a running choice it doesn't name counts none.
        Without it all count.
        """
        request = self._requests.get(request_id)
        if request is None:
            return
        now = self._clock()
        if choice is not None and choice in request.uncreated:
            request.uncreated.remove(choice)
        for sequence in request.sequences:
            if choice not in {None, sequence.choice}:
                continue
            if delivered is not None and (sequence.state != ENDED or sequence.choice in delivered):
                sequence.delivered = max(0, delivered.get(sequence.choice, 0))
            self._end_sequence(sequence, now)
        if choice is None:
            request.uncreated.clear()
        self._go_on_or_finish(request, reason, now)

    # --- what it says ----------------------------------------------------------------------------------------------------------

    def counters(self, request_id: str) -> Counters:
        """The totals so far of a request that hasn't finished. Raises KeyError for any other."""
        return counters_of(self._requests[request_id], self._clock())

    def load(self) -> Load:
        totals = self._totals
        return Load(
            running=len(self.scheduler.running),
            waiting=len(self._queued),
            blocks_total=self.pool.total,
            blocks_free=self.pool.free,
            blocks_cached=self.pool.cached,
            draining=False,
            steps=totals.steps,
            preemptions=self.scheduler.capacity.preempted,
            tokens_computed=totals.computed,
            tokens_cached=totals.cached,
            tokens_generated=totals.generated,
            requests_failed=totals.failed,
            step_ms_mean=totals.step_s * 1000,
        )

    @property
    def has_work(self) -> bool:
        """The next step has something to do or to say."""
        return bool(self._finished) or self.scheduler.waiting or any(not one.request.stalled for one in self.scheduler.running)

    def next_deadline(self) -> float | None:
        """When the next step is due even if nothing can run, by the engine's clock."""
        oldest = next(iter(self._queued.values()), None)
        return None if oldest is None else oldest.arrived_at + self.config.queue_timeout_s

    # --- one step --------------------------------------------------------------------------------------------------------------

    def step(self) -> StepOutput:
        """Run what can run now. One request's fault ends that request with an error and no other."""
        now = self._clock()
        output = StepOutput()
        self._expire(now)
        work = self.scheduler.schedule(now)
        self._start_admitted(output, now)
        if work:
            self._run(work, output)
            self._totals.note_step(self._clock() - now)
        output.finished, self._finished = self._finished, output.finished
        return output

    def _expire(self, now: float) -> None:
        while (due := self.next_deadline()) is not None and due <= now:
            self._end_request(next(iter(self._queued.values())), FinishReason.TIMEOUT, now)

    def _start_admitted(self, output: StepOutput, now: float) -> None:
        for sequence in self.scheduler.admitted:
            if sequence.row < 0:
                continue
            self._sampler.add(sequence)
            request = sequence.request
            if request.started_at is None:
                request.started_at = request.block_s_at = now
                del self._queued[request.submit.request_id]
                cached = request.counters.cached_tokens
                output.started.append(Started(request.submit.request_id, cached, now - request.arrived_at))
                self._totals.note_start(now, cached)
        self.scheduler.admitted.clear()

    def _retry_after_s(self) -> float:
        """When a place in the queue is likely to be free."""
        return float(min(60, max(1, ceil(self._totals.start_every_s))))

    # --- running it ------------------------------------------------------------------------------------------------------------

    def _run(self, work: list[Sequence], output: StepOutput) -> None:
        try:
            computed = self._compute(work)
        except Exception as error:  # noqa: BLE001 - whatever the model raises, the others must go on
            if len(work) == 1:
                self._fail(work[0], f"{type(error).__name__}: {error}")
                return
            for sequence in work:  # whose fault it was shows when each runs alone; what was written to the cache is only written again
                if sequence.scheduled:
                    self._run([sequence], output)
        else:
            self._apply(work, computed, output)

    def _compute(self, work: list[Sequence]) -> _Computed:
        """Run the model and sample. Changes nothing but what the caches hold."""
        rows: list[int] = []
        sampling: list[Sequence] = []
        sample_rows: list[int] = []
        telling: list[tuple[Sequence, range, int]] = []
        start = 0
        for sequence in work:
            count = sequence.scheduled
            if sequence.request.tells_prompt:
                prompt_rows = sequence.prompt_rows(count)
                telling.append((sequence, prompt_rows, len(rows)))
                rows.extend(start + position - sequence.computed for position in prompt_rows)
            start += count
            if sequence.computed + count == sequence.length:
                sampling.append(sequence)
                sample_rows.append(len(rows))
                rows.append(start - 1)
        with torch.inference_mode():
            logits = self.model.forward(self._builder.build(work, rows), self.caches)
            told = [self._prompt_logprobs(*each, logits) for each in telling]
            if not sampling:
                return _Computed(sampling, Sampled([], []), told)
            wanted = logits if len(rows) == len(sampling) else logits[torch.tensor(sample_rows, device=logits.device)]
            return _Computed(sampling, self._sampler.sample(wanted, sampling), told)

    def _apply(self, work: list[Sequence], computed: _Computed, output: StepOutput) -> None:
        """Make the step part of the requests."""
        now = self._clock()
        block_size = self.config.block_size
        for sequence in work:
            end = sequence.computed + 1
            if sequence.scheduled == 1 and end > sequence.covered >= sequence.prompt_length:  # a plain decode
                sequence.computed = sequence.covered = end
                sequence.scheduled = 0
                if end % block_size == 0:
                    self._record_blocks(sequence, now)
            else:
                self._advance(sequence, now)
        self._builder.advance()
        output.prompt_logprobs.extend(one for one in computed.told if one is not None)
        sampled = computed.sampled
        if not computed.sampling:
            return
        self._tables.next_token[[sequence.row for sequence in computed.sampling]] = sampled.tokens
        failed = set(sampled.failed)
        for index, sequence in enumerate(computed.sampling):
            if index in failed:
                self._fail(sequence, "the model's logits weren't numbers")
            elif sequence.state == RUNNING:
                self._append(sequence, sampled.tokens[index], sampled.logprobs.get(index), output, now)

    def _prompt_logprobs(self, sequence: Sequence, rows: range, first: int, logits: Tensor) -> PromptLogprobs | None:
        """What this chunk tells of the prompt; rows: positions whose logits begin at row `first`."""
        request = sequence.request
        wanted = request.submit.sampling.prompt_logprobs
        assert wanted is not None
        begin = request.prompt_told
        logprobs: list[float | None] = []
        alternatives: list[list[tuple[int, float]] | None] = []
        if begin == 0:
            logprobs.append(None)
            alternatives.append(None)
        if rows:
            targets = torch.from_numpy(request.prompt[rows.start + 1 : rows.stop + 1]).long().to(logits.device)
            for own, top in token_logprobs(logits[first : first + len(rows)], targets, [wanted] * len(rows)):
                logprobs.append(own)
                alternatives.append(top)
        return PromptLogprobs(request.submit.request_id, begin, logprobs, alternatives) if logprobs else None

    def _advance(self, sequence: Sequence, now: float) -> None:
        """The scheduled tokens' K and V are in the cache."""
        request, end = sequence.request, sequence.computed + sequence.scheduled
        if request.tells_prompt:
            request.prompt_told = max(request.prompt_told, min(end, sequence.prompt_length - 1) + 1)
        self._totals.computed += note_computed(sequence, end)
        sequence.computed = end
        sequence.scheduled = 0
        if end < sequence.length:
            self._tables.next_token[sequence.row] = sequence.tokens[end]
        self._record_blocks(sequence, now)

    def _record_blocks(self, sequence: Sequence, now: float) -> None:
        """Put blocks that became full into the prefix index."""
        request = sequence.request
        full = sequence.computed // self.config.block_size
        if request.root is not None and full > sequence.named:
            self._index.extend(sequence.keys, request.root, sequence.tokens, full)
            for index in range(sequence.named, full):
                self._index.insert(sequence.table.blocks[index], sequence.keys[index], now + request.submit.cache_ttl_s)
            sequence.named = full

    def _append(
        self, sequence: Sequence, token: int, told: tuple[float, list[tuple[int, float]]] | None, output: StepOutput, now: float
    ) -> None:
        request = sequence.request
        request_id = request.submit.request_id
        sequence.tokens[sequence.length] = token
        index = sequence.generated
        sequence.length += 1
        sequence.generated += 1
        self._totals.generated += 1
        if told is None:
            output.tokens.append(TokenOut(request_id, sequence.choice, index, token))
        else:
            output.tokens.append(TokenOut(request_id, sequence.choice, index, token, told[0], told[1]))
        if request.first_token_at is None:
            request.first_token_at = now
            if request.uncreated:
                self._fork(request, now)
        if token in sequence.ending and sequence.generated > request.submit.sampling.min_tokens:
            self._end_choice(sequence, FinishReason.STOP, token, output, now)
        elif sequence.length >= sequence.limit:
            self._end_choice(sequence, FinishReason.LENGTH, None, output, now)

    def _fork(self, request: Request, now: float) -> None:
        """The prompt is computed: the other choices begin on its full blocks, as far as there is room; the rest wait for their turn."""
        while request.uncreated:
            sequence = self._create(request)
            if request.stalled or not self.scheduler.admit(sequence, now, may_preempt=False):
                self.scheduler.enqueue(sequence)

    # --- ends ------------------------------------------------------------------------------------------------------------------

    def _end_choice(self, sequence: Sequence, reason: FinishReason, stop_token: int | None, output: StepOutput, now: float) -> None:
        output.ends.append(ChoiceEnd(sequence.request.submit.request_id, sequence.choice, reason, stop_token))
        self._end_sequence(sequence, now)
        self._go_on_or_finish(sequence.request, reason, now)

    def _end_sequence(self, sequence: Sequence, now: float) -> None:
        if sequence.state != ENDED:
            self.scheduler.end(sequence, now)
            sequence.share.live -= 1

    def _go_on_or_finish(self, request: Request, reason: FinishReason, now: float) -> None:
        """After a choice ended: if nobody is left the next choice begins, or the request is over."""
        if request.live:
            return
        if request.uncreated:
            self.scheduler.enqueue(self._create(request))
        else:
            self._end_request(request, reason, now)

    def _end_request(self, request: Request, reason: FinishReason, now: float, error: str | None = None) -> None:
        for sequence in request.sequences:
            self._end_sequence(sequence, now)
        request_id = request.submit.request_id
        self._queued.pop(request_id, None)
        del self._requests[request_id]
        request.reason, request.ended_at, request.error = reason, now, error
        self._finished.append(Finish(request_id=request_id, reason=reason, counters=counters_of(request, now), error=error))

    def _fail(self, sequence: Sequence, error: str) -> None:
        """End a request whose fault something was, and let nobody reuse what it may have spoilt."""
        request = sequence.request
        if sequence.state == ENDED:
            return
        holds = Counter(block for each in request.sequences for block in each.table.blocks)
        for block, count in holds.items():
            if block.refs == count:
                self.pool.unname(block)
                for cache in self.caches:
                    cache.keys[:, block.index] = 0
                    cache.values[:, block.index] = 0
        for each in request.sequences:
            each.scheduled = 0
        self._totals.failed += 1
        self._end_request(request, FinishReason.ERROR, self._clock(), error)

    # --- checks ----------------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError unless every invariant holds."""
        self.pool.check()
        self.scheduler.check()
        running = self.scheduler.running
        holds: dict[int, int] = {}
        for request in self._requests.values():
            assert request.live
            assert request.remaining == request.allowance - sum(one.generated for one in request.sequences) >= 0
            for one in request.sequences:
                assert one.scheduled == 0
                assert (one.state == RUNNING) == (one in running)
                assert one.state == RUNNING or not one.table.blocks
                assert one.generated == one.length - one.prompt_length
                for block in one.table.blocks:
                    holds[block.index] = holds.get(block.index, 0) + 1
        assert all(block.refs == holds.get(block.index, 0) for block in self.pool.blocks), "a hold nobody knows of"
        for one in running:
            blocks = [block.index for block in one.table.blocks]
            assert self._tables.blocks[one.row, : len(blocks)].tolist() == blocks
            assert self._tables.computed[one.row] == one.computed
            assert self._tables.next_token[one.row] == one.tokens[one.computed]
            assert one.computed < one.length <= len(blocks) * self.config.block_size + 1
