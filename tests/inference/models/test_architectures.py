"""Every architecture against transformers' forward, in float32, however the work is cut."""

import random

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.inference.models.conftest import Pair
from tests.inference.paged_run import PagedRun, Step
from tests.inference.tiny_models import TINY, VOCAB_SIZE, WINDOW

TOLERANCE = 1e-4
LENGTHS = [37, 3 * WINDOW + 1, 5, 1]


def drawn(lengths: list[int]) -> list[list[int]]:
    generator = random.Random(7)
    return [[generator.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]


def expected(reference: PreTrainedModel, sequence: list[int]) -> Tensor:
    with torch.no_grad():
        return reference(torch.tensor([sequence])).logits[0]


def chunks(length: int, size: int) -> list[Step]:
    return [[(0, min(size, length - start))] for start in range(0, length, size)]


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_whole_prompt_has_the_reference_logits(pair: Pair, name: str, block_size: int) -> None:
    loaded, reference = pair(name)
    [sequence] = drawn([37])
    [logits] = PagedRun(loaded.model, [sequence], block_size=block_size).run([[(0, 37)]])
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected(reference, sequence), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("size", [1, 5, 16])
def test_chunks_over_shuffled_blocks_have_the_reference_logits(pair: Pair, name: str, size: int) -> None:
    loaded, reference = pair(name)
    [sequence] = drawn([37])
    [logits] = PagedRun(loaded.model, [sequence], seed=size).run(chunks(37, size))
    torch.testing.assert_close(logits, expected(reference, sequence), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("seed", [0, 1])
def test_mixed_batches_of_prefill_and_decode_have_the_reference_logits(pair: Pair, name: str, seed: int) -> None:
    loaded, reference = pair(name)
    sequences = drawn(LENGTHS)
    generator = random.Random(seed)
    left, schedule = list(LENGTHS), []
    while any(left):
        candidates = [index for index, count in enumerate(left) if count]
        chosen = generator.sample(candidates, generator.randint(1, len(candidates)))
        work = [(index, min(left[index], generator.choice([1, 1, 3, 9]))) for index in chosen]
        for index, count in work:
            left[index] -= count
        schedule.append(work)
    for sequence, logits in zip(sequences, PagedRun(loaded.model, sequences, seed=seed).run(schedule), strict=True):
        torch.testing.assert_close(logits, expected(reference, sequence), atol=TOLERANCE, rtol=0)


def test_only_wanted_rows_come_back_in_the_order_asked(pair: Pair) -> None:
    loaded, reference = pair("llama")
    [sequence] = drawn([9])
    logits = PagedRun(loaded.model, [sequence]).step([(0, 9)], rows=[8, 2])
    torch.testing.assert_close(logits, expected(reference, sequence)[[8, 2]], atol=TOLERANCE, rtol=0)


def test_a_step_that_wants_no_logits_still_fills_the_cache(pair: Pair) -> None:
    loaded, reference = pair("qwen2-sliding-past-first-layer")
    [sequence] = drawn([20])
    run = PagedRun(loaded.model, [sequence])
    assert run.step([(0, 19)], rows=[]).shape == (0, VOCAB_SIZE)
    torch.testing.assert_close(run.step([(0, 1)]), expected(reference, sequence)[-1:], atol=TOLERANCE, rtol=0)


def test_layers_that_slide_have_a_cache_group_of_their_own(pair: Pair) -> None:
    loaded, _ = pair("qwen2-sliding-past-first-layer")
    assert [(group.layers, group.window) for group in loaded.model.cache_groups] == [(1, None), (2, WINDOW)]
    assert [group.window for group in pair("mistral")[0].model.cache_groups] == [WINDOW]


def test_logits_may_be_changed_in_place(pair: Pair) -> None:
    loaded, _ = pair("llama")
    PagedRun(loaded.model, drawn([3])).step([(0, 3)]).div_(2.0)
