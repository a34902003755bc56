"""From a step's logits to its tokens, all rows at once.

The order, for each row: penalties; logit bias; end tokens masked while `min_tokens` isn't reached; temperature; min_p; top_k; top_p over
what top_k left. Tokens that tie with the last one kept are kept too. Log-probabilities are of the model's own distribution, before any
of this, as OpenAI's are.

Every row draws from a counter-based stream (inference.random_stream): a seeded one from (seed, choice), any other from a start drawn at
its admission.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from inference.penalties import Penalties
from inference.random_stream import exponential, keys, stream
from inference.request import Sequence

GREEDY_BELOW = 1e-5
"""Temperatures under this are 0."""

RANDOM, TOP_K, TOP_P, MIN_P, PENALTY, BIAS, MIN_TOKENS, LOGPROBS = (1 << bit for bit in range(8))
_RESHAPES = PENALTY | BIAS | MIN_TOKENS

_CANDIDATES = 256
"""How many of the most likely tokens top_p looks at before it sorts the whole row."""


@dataclass(slots=True)
class Sampled:
    """One entry for each row, in the order of the logits."""

    tokens: list[int]
    failed: list[int]
    """Rows whose logits weren't numbers: their tokens mean nothing."""
    logprobs: dict[int, tuple[float, list[tuple[int, float]]]] = field(default_factory=dict)
    """For rows that asked: the token's log-probability, and the most likely tokens with theirs."""


class Sampler:
    """Knows every running row's wishes, so that a step only looks them up."""

    def __init__(self, *, rows: int, vocab: int, device: torch.device) -> None:
        self._device = device
        self._kinds = np.zeros(rows, dtype=np.int32)
        self._streams = np.zeros(rows, dtype=np.uint64)
        self._shape = np.ones((rows, 4), dtype=np.float32)  # temperature, top_k, top_p, log min_p
        self._logprobs = np.zeros(rows, dtype=np.int32)
        self._min_tokens = np.zeros(rows, dtype=np.int64)
        self._bias: dict[int, tuple[Tensor, Tensor]] = {}
        self._ending: dict[int, Tensor] = {}
        self._penalties = Penalties(vocab=vocab, device=device)
        self._vocabulary = torch.arange(vocab, dtype=torch.int32, device=device)
        self._vocab = vocab

    def add(self, sequence: Sequence) -> None:
        """A sequence has got its row; whoever had it before is forgotten."""
        row, wishes = sequence.row, sequence.request.submit.sampling
        self._penalties.remove(row)
        kinds = 0
        if wishes.temperature >= GREEDY_BELOW:
            kinds |= RANDOM
            kinds |= TOP_K if 0 < wishes.top_k < self._vocab else 0
            kinds |= TOP_P if wishes.top_p < 1 else 0
            kinds |= MIN_P if wishes.min_p > 0 else 0
            seed = secrets.randbits(64) if wishes.seed is None else wishes.seed
            self._streams[row] = stream(seed, sequence.choice)
            least = np.log(wishes.min_p) if wishes.min_p > 0 else -np.inf
            top_k = wishes.top_k if 0 < wishes.top_k < self._vocab else self._vocab
            self._shape[row] = (wishes.temperature, top_k, wishes.top_p, least)
        if wishes.presence_penalty or wishes.frequency_penalty or wishes.repetition_penalty != 1:
            kinds |= PENALTY
            known = sequence.tokens[: sequence.length]
            self._penalties.add(row, wishes, known[: sequence.prompt_length], known[sequence.prompt_length :])
        if wishes.logit_bias:
            kinds |= BIAS
            values = torch.tensor(list(wishes.logit_bias.values()), dtype=torch.float32, device=self._device)
            self._bias[row] = torch.tensor(list(wishes.logit_bias), device=self._device), values
        if sequence.generated < wishes.min_tokens and sequence.ending:
            kinds |= MIN_TOKENS
            self._min_tokens[row] = wishes.min_tokens
            self._ending[row] = torch.tensor(sorted(sequence.ending), device=self._device)
        if wishes.logprobs is not None:
            kinds |= LOGPROBS
            self._logprobs[row] = wishes.logprobs
        self._kinds[row] = kinds

    def sample(self, logits: Tensor, sequences: list[Sequence]) -> Sampled:
        """logits: [rows, vocab], float32, a row for each sequence; it isn't changed."""
        rows = np.array([sequence.row for sequence in sequences], dtype=np.int64)
        kinds = self._kinds[rows]
        every = int(np.bitwise_or.reduce(kinds))
        shaped = self._reshape(logits, rows, kinds, sequences) if every & _RESHAPES else logits
        best, chosen = shaped.max(dim=1)
        if every & RANDOM:
            random = np.flatnonzero(kinds & RANDOM)
            positions = np.array([sequences[index].generated for index in random], dtype=np.uint64)
            if len(random) == len(rows):
                chosen = self._draw(shaped, best, rows, kinds, positions)
            else:
                where = self._on_device(random)
                chosen[where] = self._draw(shaped[where], best[where], rows[random], kinds[random], positions)
        fine = torch.isfinite(best)
        if shaped is not logits:
            fine &= torch.isfinite(logits.amax(dim=1))
        sampled = Sampled(chosen.tolist(), torch.nonzero(~fine).flatten().tolist())
        if every & LOGPROBS:
            asked = np.flatnonzero(kinds & LOGPROBS)
            where = self._on_device(asked)
            told = token_logprobs(logits[where], chosen[where], self._logprobs[rows[asked]].tolist())
            sampled.logprobs = dict(zip(asked.tolist(), told, strict=True))
        if every & PENALTY:  # last: a step that fails before is sampled again
            counted = np.flatnonzero(kinds & PENALTY)
            self._penalties.count(rows[counted].tolist(), chosen[self._on_device(counted)])
        return sampled

    def _on_device(self, array: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _reshape(
        self,
        logits: Tensor,
        rows: np.ndarray[tuple[int], np.dtype[np.int64]],
        kinds: np.ndarray[tuple[int], np.dtype[np.int32]],
        sequences: list[Sequence],
    ) -> Tensor:
        """Penalties, bias and masked end tokens, on a copy."""
        shaped = logits.clone()
        penalised = np.flatnonzero(kinds & PENALTY)
        if len(penalised):
            where = self._on_device(penalised)
            shaped[where] = self._penalties.apply(shaped[where], rows[penalised].tolist())
        for index in np.flatnonzero(kinds & BIAS).tolist():
            tokens, values = self._bias[int(rows[index])]
            shaped[index, tokens] += values
        for index in np.flatnonzero(kinds & MIN_TOKENS).tolist():
            row = int(rows[index])
            if sequences[index].generated < self._min_tokens[row]:
                shaped[index, self._ending[row]] = -torch.inf
            else:
                self._kinds[row] &= ~MIN_TOKENS
        return shaped

    def _draw(
        self,
        logits: Tensor,
        best: Tensor,
        rows: np.ndarray[tuple[int], np.dtype[np.int64]],
        kinds: np.ndarray[tuple[int], np.dtype[np.int32]],
        positions: np.ndarray[tuple[int], np.dtype[np.uint64]],
    ) -> Tensor:
        """One token for each row, at random. best: the rows' largest logits."""
        shape = torch.from_numpy(self._shape[rows]).to(self._device)
        scaled = (logits - best.unsqueeze(1)) / shape[:, :1]  # log-weights, 0 for the most likely
        key = keys(self._streams[rows], positions).to(self._device)
        every = int(np.bitwise_or.reduce(kinds))
        if every & MIN_P:
            scaled = scaled.masked_fill(scaled < shape[:, 3:], -torch.inf)
        if every & (TOP_K | TOP_P):
            top_k = self._shape[rows, 1].astype(np.int64)
            widest = int(top_k[kinds & TOP_K != 0].max(initial=1))
            least = _least_kept(scaled, top_k=self._on_device(top_k), top_p=shape[:, 2], widest=widest, nucleus=bool(every & TOP_P))
            scaled = scaled.masked_fill(scaled < least.unsqueeze(1), -torch.inf)
        return scaled.exp_().div_(exponential(key, self._vocabulary)).argmax(dim=1)


def _least_kept(scaled: Tensor, *, top_k: Tensor, top_p: Tensor, widest: int, nucleus: bool) -> Tensor:
    """[rows]: the smallest log-weight that top_k and then top_p keep. Looks at the most likely tokens first, and sorts whole rows only if
    these don't suffice. widest: the largest top_k that limits anything; nucleus: some row has a top_p."""
    vocab = scaled.shape[1]
    least = torch.full((len(scaled),), -torch.inf, device=scaled.device)
    open_rows = torch.arange(len(scaled), device=scaled.device)
    limited = top_k < vocab
    width = min(vocab, max(widest, _CANDIDATES if nucleus else 1))
    totals = torch.where(limited, torch.zeros_like(top_p), scaled.exp().sum(dim=1)) if nucleus else top_p
    while len(open_rows):
        values = scaled[open_rows].topk(width, dim=1).values
        row_k, row_p = top_k[open_rows], top_p[open_rows]
        kth = values.gather(1, (row_k.clamp(max=width) - 1).unsqueeze(1))
        bounded = (row_k <= width).unsqueeze(1)
        floor = torch.where(bounded & (row_k < vocab).unsqueeze(1), kth, torch.full_like(kth, -torch.inf))
        if not nucleus:
            least[open_rows] = floor.squeeze(1)
            break
        weights = values.exp()
        kept = torch.where(values >= floor, weights, torch.zeros_like(weights))
        total = torch.where(limited[open_rows], kept.sum(dim=1), totals[open_rows])
        reached = kept.cumsum(dim=1)
        before = reached - kept
        inside = (before < (row_p * total).unsqueeze(1)) & (values >= floor)
        inside[:, 0] = True
        last = inside.sum(dim=1) - 1
        enough = (last < width - 1) | limited[open_rows] | torch.tensor(width == vocab, device=scaled.device) | (row_p >= 1)
        cut = values.gather(1, last.unsqueeze(1)).squeeze(1)
        cut = torch.where((row_p >= 1), floor.squeeze(1), cut)
        least[open_rows[enough]] = cut[enough]
        open_rows, width = open_rows[~enough], vocab
    return least


def token_logprobs(logits: Tensor, tokens: Tensor, alternatives: list[int]) -> list[tuple[float, list[tuple[int, float]]]]:
    """For each row the token's log-probability, and that of the most likely tokens. logits: [rows, vocab]; tokens: [rows]."""
    logprobs = logits.log_softmax(dim=1)
    own = logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1).tolist()
    widest = max(alternatives)
    if not widest:
        return [(logprob, []) for logprob in own]
    top = logprobs.topk(widest, dim=1)
    values, ids = top.values.tolist(), top.indices.tolist()
    return [
        (own[row], list(zip(ids[row][:count], values[row][:count], strict=True)) if count else []) for row, count in enumerate(alternatives)
    ]
