"""One step's work, flattened: no padding, no phases."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of all sequences of a step, one after the other. A decoding sequence brings one token, a prefilling one a chunk."""

    tokens: Tensor  # [tokens], int64
    positions: Tensor  # [tokens], int64
    slots: Tensor  # [tokens], int64: block · block_size + offset, where the token's K and V go
    query_starts: Tensor  # [sequences + 1], int32: sequence i owns tokens query_starts[i] … query_starts[i + 1] - 1
    context_lengths: Tensor  # [sequences], int32: tokens in the cache once this step is written, the step's own included
    block_tables: Tensor  # [sequences, widest], int32: rows padded with 0 past their end
    logit_rows: Tensor  # [rows], int64: the tokens whose logits are wanted
