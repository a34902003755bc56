# ruff: noqa: PLR0917
"""Matrix products over weights in panels of 16 outputs, for any number of rows.

One layout and one inner loop serve every row count. At few rows the weights stream through once, in order, at the speed of memory; at
many, six rows of x at a time share a panel that stays in the second-level cache. Milliseconds for all linear layers of SmolLM2-135M
(134.5 M float32 weights, 538 MB), two cores with AVX2:

    rows                    1     2     4     8    16    32   128    512
    this kernel            31    33    32    41    51    81   273   1099     17 GB/s at one row, 125 GFLOP/s at 512
    oneDNN, packed         52               65         119
    torch (MKL)            64               95         147

The first line is this inner loop on torch's OpenMP threads, the better of two panel groupings, best of 12 runs (2 from 128 rows on), on a
nearly idle machine; the others were measured earlier on the same machine, not side by side. To repeat: benchmarks/linear.py --torch.

It wins at every count that was measured, so there is no threshold and no second copy of the weights; and as each output is summed over
the inputs in order whatever the batch, a row's result has the same bits alone and in company.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels import vectors as v
from kernels.compiled import ADDRESS, COUNT, arguments, claim, fields, float32s, kernel, subroutine
from kernels.threads import team_size

PANEL = v.PANEL
X_BLOCK_BYTES = 256 * 1024
"""Rows of x that are worked on together: half of a second-level cache of 512 KiB, the other half is the panel's."""


def supports(*dtypes: torch.dtype) -> bool:
    """The weight's type. bfloat16 weights are widened as they are read: the same bits as float32 weights, half the traffic."""
    return all(dtype in {torch.float32, torch.bfloat16} for dtype in dtypes)


def pack(weight: Tensor) -> Tensor:
    """[out, in] to [panels, in, 16], the last panel filled up with zeros."""
    outputs, inputs = weight.shape
    panels = -(-outputs // PANEL)
    packed = torch.zeros(panels, inputs, PANEL, dtype=weight.dtype)
    whole = outputs // PANEL
    packed[:whole] = weight[: whole * PANEL].view(whole, PANEL, inputs).transpose(1, 2)
    if whole < panels:
        packed[whole, :, : outputs - whole * PANEL] = weight[whole * PANEL :].T
    return packed


def pack_bias(bias: Tensor | None, weight: Tensor) -> Tensor:
    """[panels · 16], float32: where each sum starts."""
    outputs = weight.shape[0]
    packed = torch.zeros(-(-outputs // PANEL) * PANEL)
    if bias is not None:
        packed[:outputs] = bias
    return packed


@subroutine
def _tile(rows: Any, x: Any, x_stride: Any, panel: Any, depth: Any, bias: Any, out: Any, out_stride: Any) -> None:
    if rows == 6:
        v.tile_6(x, x_stride, panel, 16, depth, bias, 0, out, out_stride)
    elif rows == 5:
        v.tile_5(x, x_stride, panel, 16, depth, bias, 0, out, out_stride)
    elif rows == 4:
        v.tile_4(x, x_stride, panel, 16, depth, bias, 0, out, out_stride)
    elif rows == 3:
        v.tile_3(x, x_stride, panel, 16, depth, bias, 0, out, out_stride)
    elif rows == 2:
        v.tile_2(x, x_stride, panel, 16, depth, bias, 0, out, out_stride)
    else:
        v.tile_1(x, x_stride, panel, 16, depth, bias, 0, out, out_stride)


@subroutine
def _tile_bfloat16(rows: Any, x: Any, x_stride: Any, panel: Any, depth: Any, bias: Any, out: Any, out_stride: Any) -> None:
    if rows == 6:
        v.tile_6_bfloat16(x, x_stride, panel, 16, depth, bias, 0, out, out_stride)
    elif rows == 5:
        v.tile_5_bfloat16(x, x_stride, panel, 16, depth, bias, 0, out, out_stride)
    elif rows == 4:
        v.tile_4_bfloat16(x, x_stride, panel, 16, depth, bias, 0, out, out_stride)
    elif rows == 3:
        v.tile_3_bfloat16(x, x_stride, panel, 16, depth, bias, 0, out, out_stride)
    elif rows == 2:
        v.tile_2_bfloat16(x, x_stride, panel, 16, depth, bias, 0, out, out_stride)
    else:
        v.tile_1_bfloat16(x, x_stride, panel, 16, depth, bias, 0, out, out_stride)


_Arguments = arguments(
    x=ADDRESS,
    x_stride=COUNT,
    panels=ADDRESS,
    weight_bytes=COUNT,
    bias=ADDRESS,
    out=ADDRESS,
    rows=COUNT,
    inputs=COUNT,
    outputs=COUNT,
    row_block=COUNT,
    panel_block=COUNT,
)


@kernel(_Arguments)
def _linear(pointer: Any) -> None:
    a = fields(pointer)
    panels = (a.outputs + 15) // 16
    row_blocks = (a.rows + a.row_block - 1) // a.row_block
    panel_blocks = (panels + a.panel_block - 1) // a.panel_block
    edge = np.empty(6 * 16, np.float32)
    while True:
        piece = claim(pointer)
        if piece >= row_blocks * panel_blocks:
            break
        first_row = piece // panel_blocks * a.row_block
        rows = min(a.row_block, a.rows - first_row)
        first_panel = piece % panel_blocks * a.panel_block
        tiles = (rows + 5) // 6
        for panel in range(first_panel, min(panels, first_panel + a.panel_block)):
            weights = a.panels + panel * a.inputs * 16 * a.weight_bytes
            bias = a.bias + panel * 64
            for tile in range(tiles):
                top = first_row + rows * tile // tiles
                height = first_row + rows * (tile + 1) // tiles - top
                x = a.x + top * a.x_stride * 4
                out, out_stride = a.out + (top * a.outputs + panel * 16) * 4, a.outputs
                inside = panel * 16 + 16 <= a.outputs
                if not inside:
                    out, out_stride = edge.ctypes.data, 16
                if a.weight_bytes == 4:
                    _tile(height, x, a.x_stride, weights, a.inputs, bias, out, out_stride)
                else:
                    _tile_bfloat16(height, x, a.x_stride, weights, a.inputs, bias, out, out_stride)
                if not inside:
                    for row in range(height):
                        line = float32s(a.out + ((top + row) * a.outputs + panel * 16) * 4, 16)
                        for column in range(a.outputs - panel * 16):
                            line[column] = edge[row * 16 + column]


def linear(x: Tensor, packed: Tensor, bias: Tensor, outputs: int) -> Tensor:
    """x: [rows, in]; packed, bias: from `pack` and `pack_bias`."""
    if x.dtype != torch.float32:
        return linear(x.float(), packed, bias, outputs).to(x.dtype)
    if x.stride(1) != 1:
        x = x.contiguous()
    rows = x.shape[0]
    panels, inputs, _ = packed.shape
    out = torch.empty(rows, outputs)
    row_block = max(v.TILE_ROWS, X_BLOCK_BYTES // (4 * inputs) // v.TILE_ROWS * v.TILE_ROWS)
    panel_block = min(8, max(1, panels // (8 * team_size())))
    _linear(
        x.data_ptr(),
        x.stride(0),
        packed.data_ptr(),
        packed.element_size(),
        bias.data_ptr(),
        out.data_ptr(),
        rows,
        inputs,
        outputs,
        row_block,
        panel_block,
    )
    return out
