from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.blocks import BlockPool, BlockTable
from inference.fairness import FairShares
from inference.protocol.frames import Submit
from inference.protocol.sampling import Sampling
from inference.request import Request, Sequence
from inference.sampling import Sampler
from inference.scheduler import Tier
from tests.inference.driving import small_config

VOCAB = 300


def sequence(
    row: int, prompt: list[int], generated: list[int], *, ending: frozenset[int] = frozenset(), choice: int = 0, **wishes: Any
) -> Sequence:
    sampling = Sampling(**({"max_tokens": 50} | wishes))
    submit = Submit(request_id=f"r{row}", prompt=prompt, sampling=sampling, allowance=50, account="", share="")
    share = FairShares(quantum=1, step_tokens=1).share("", 1.0)
    tier = Tier(0, small_config())
    request = Request(submit, np.array(prompt, dtype=np.int32), order=row, arrived_at=0.0, root=None, share=share, tier=tier)
    made = Sequence(request, choice, limit=500, table=BlockTable(BlockPool(1)), stop_ids=ending)
    made.tokens[len(prompt) : len(prompt) + len(generated)] = generated
    made.length += len(generated)
    made.generated = len(generated)
    made.row = row
    return made


def sample(logits: Tensor, *sequences: Sequence) -> list[int]:
    sampler = Sampler(rows=len(sequences), vocab=logits.shape[1], device=logits.device)
    for each in sequences:
        sampler.add(each)
    return sampler.sample(logits, list(sequences)).tokens


def draws(logits: Tensor, count: int, **wishes: Any) -> np.ndarray:
    """How often each token comes, over `count` positions of one seeded stream."""
    sampler = Sampler(rows=1, vocab=len(logits), device=logits.device)
    made = sequence(0, [1], [], seed=42, **wishes)
    sampler.add(made)
    counts = np.zeros(len(logits), dtype=int)
    for position in range(count):
        made.generated = position
        counts[sampler.sample(logits.unsqueeze(0), [made]).tokens[0]] += 1
    return counts


def reference(logits: np.ndarray, *, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """Probabilities by the plain definition, in float64; tokens that tie with the last one kept are kept."""
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    weights[weights < min_p] = 0.0
    if top_k:
        weights[weights < np.sort(weights)[-min(top_k, len(weights))]] = 0.0
    if top_p < 1:
        ordered = np.sort(weights)[::-1]
        before = np.cumsum(ordered) - ordered
        least = ordered[before < top_p * ordered.sum()][-1]
        weights[weights < least] = 0.0
    return weights / weights.sum()


def test_temperature_zero_takes_the_most_likely() -> None:
    logits = torch.randn(5, VOCAB, generator=torch.manual_seed(0))
    made = [sequence(row, [1], [], temperature=0.0) for row in range(5)]
    assert sample(logits, *made) == logits.argmax(1).tolist()


@pytest.mark.parametrize(
    "wishes",
    [
        {"temperature": 1.0},
        {"temperature": 0.6},
        {"temperature": 1.7, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.7},
        {"temperature": 1.3, "min_p": 0.1},
        {"temperature": 1.2, "top_k": 20, "top_p": 0.8, "min_p": 0.02},
    ],
    ids=str,
)
def test_seeded_draws_follow_the_distribution(wishes: dict[str, Any]) -> None:
    logits = torch.randn(40, generator=torch.manual_seed(3)) * 2
    count = 4000
    expected = count * reference(logits.numpy(), **({"top_k": 0, "top_p": 1.0, "min_p": 0.0} | wishes))
    got = draws(logits, count, **wishes)
    assert got[expected == 0].sum() == 0, "nothing that was cut is ever drawn"
    rare = (expected > 0) & (expected < 5)
    bins = expected >= 5
    observed = np.append(got[bins], got[rare].sum())
    wanted = np.append(expected[bins], expected[rare].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    chi2 = float(((observed - wanted) ** 2 / wanted).sum())
    freedom = len(wanted) - 1
    # Wilson–Hilferty: the chi-squared quantile at 0.1 %
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert chi2 < limit


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    temperature=st.floats(0.2, 3.0),
    top_k=st.sampled_from([0, 1, 2, 7, 299, 300, 500]),
    top_p=st.sampled_from([0.001, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    scale=st.sampled_from([0.01, 1.0, 6.0]),
)
def test_only_kept_tokens_are_drawn_and_rows_do_not_depend_on_their_batch(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float, scale: float
) -> None:
    """A nearly flat row needs far more than the candidates that top_p looks at first."""
    logits = torch.randn(4, VOCAB, generator=torch.manual_seed(seed)) * scale
    wishes = [
        {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p},
        {"temperature": 0.0},
        {"temperature": 1.0, "top_p": 0.5},
        {"temperature": 1.0},
    ]
    made = [sequence(row, [1, 2], [], seed=seed + row, **each) for row, each in enumerate(wishes)]
    together = sample(logits, *made)
    allowed = reference(
        logits[0].numpy(), temperature=temperature, top_k=top_k, top_p=top_p * (1 + 1e-5) if top_p < 1 else 1.0, min_p=min_p * (1 - 1e-5)
    )
    assert allowed[together[0]] > 0
    for row, each in enumerate(made):
        each.row = 0
        assert sample(logits[row : row + 1], each) == [together[row]]


def test_penalties_follow_their_definitions() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.manual_seed(1))
    prompt, generated = [4, 5, 6, 6], [6, 7, 7, 7]
    plain = logits.numpy().astype(np.float64)
    expected = plain.copy()
    for token in {*prompt, *generated}:
        expected[0, token] = plain[0, token] / 1.5 if plain[0, token] > 0 else plain[0, token] * 1.5
    for token in set(generated):
        expected[0, token] -= 0.4 * generated.count(token) + 0.3
    for token in set(generated):
        expected[1, token] += 2.0
    made = [
        sequence(0, prompt, generated, temperature=0.0, repetition_penalty=1.5, frequency_penalty=0.4, presence_penalty=0.3),
        sequence(1, prompt, generated, temperature=0.0, presence_penalty=-2.0),
        sequence(2, prompt, generated, temperature=0.0),
    ]
    sampler = Sampler(rows=3, vocab=VOCAB, device=logits.device)
    for each in made:
        sampler.add(each)
    shaped = sampler._reshape(logits, np.arange(3), sampler._kinds, made)
    np.testing.assert_allclose(shaped.numpy(), expected, atol=1e-5)
    assert torch.equal(logits.double(), torch.from_numpy(plain)), "the model's logits stay as they are"


def test_penalties_count_what_is_generated_step_by_step() -> None:
    sampler = Sampler(rows=1, vocab=4, device=torch.device("cpu"))
    made = sequence(0, [0], [], temperature=0.0, frequency_penalty=1.0)
    sampler.add(made)
    logits = torch.tensor([[0.0, 3.0, 2.5, 1.4]])
    assert [sampler.sample(logits, [made]).tokens[0] for _ in range(6)] == [1, 2, 1, 2, 3, 1]


def test_a_row_handed_on_keeps_nothing_of_its_last_owner() -> None:
    sampler = Sampler(rows=1, vocab=4, device=torch.device("cpu"))
    logits = torch.tensor([[0.0, 3.0, 2.5, 1.4]])
    sampler.add(sequence(0, [1], [], temperature=0.0, presence_penalty=2.0, logit_bias={0: 100.0}, min_tokens=5, ending=frozenset({1})))
    sampler.add(plain := sequence(0, [1], [], temperature=0.0))
    assert sampler.sample(logits, [plain]).tokens == [1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logit_bias_forces_and_forbids(temperature: float) -> None:
    logits = torch.zeros(2, VOCAB)
    made = [
        sequence(0, [1], [], temperature=temperature, logit_bias={7: 100.0}),
        sequence(1, [1], [], temperature=temperature, logit_bias=dict.fromkeys(range(1, VOCAB), -100.0)),
    ]
    assert sample(logits, *made) == [7, 0]


def test_end_tokens_are_masked_only_until_min_tokens() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[:, 9] = 5.0
    logits[:, 8] = 4.0
    early = sequence(0, [1], [2], temperature=0.0, min_tokens=2, ending=frozenset({9}))
    late = sequence(1, [1], [2, 2], temperature=0.0, min_tokens=2, ending=frozenset({9}))
    assert sample(logits, early, late) == [8, 9]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "wishes", [{"temperature": 0.0}, {"temperature": 1.0, "top_p": 0.5}, {"temperature": 0.0, "presence_penalty": 1.0}], ids=str
)
def test_a_row_that_is_not_numbers_fails_alone(bad: float, wishes: dict[str, Any]) -> None:
    logits = torch.zeros(3, VOCAB)
    logits[:, 3] = 40.0
    logits[1, 100] = bad
    made = [sequence(row, [1], [], **wishes) for row in range(3)]
    sampler = Sampler(rows=3, vocab=VOCAB, device=logits.device)
    for each in made:
        sampler.add(each)
    sampled = sampler.sample(logits, made)
    assert sampled.failed == [1]
    assert (sampled.tokens[0], sampled.tokens[2]) == (3, 3)


def test_logprobs_come_for_those_who_asked() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.manual_seed(2))
    made = [
        sequence(0, [1], [], temperature=0.0, logprobs=0),
        sequence(1, [1], [], temperature=0.0),
        sequence(2, [1], [], temperature=1.0, seed=1, logprobs=3),
    ]
    sampler = Sampler(rows=3, vocab=VOCAB, device=logits.device)
    for each in made:
        sampler.add(each)
    sampled = sampler.sample(logits, made)
    own = logits.log_softmax(1)
    assert set(sampled.logprobs) == {0, 2}
    assert sampled.logprobs[0] == (pytest.approx(float(own[0].max())), [])
    logprob, top = sampled.logprobs[2]
    assert logprob == pytest.approx(float(own[2, sampled.tokens[2]]))
    assert [token for token, _ in top] == own[2].topk(3).indices.tolist()
    assert [value for _, value in top] == pytest.approx(own[2].topk(3).values.tolist())


def test_unseeded_requests_draw_differently() -> None:
    logits = torch.zeros(1, VOCAB)
    seen = {tuple(sample(logits.expand(4, -1), *(sequence(row, [1], []) for row in range(4)))) for _ in range(4)}
    assert len(seen) == 4
