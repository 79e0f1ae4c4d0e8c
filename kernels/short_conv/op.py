"""Short causal depthwise convolution with SiLU over packed sequences with carried inputs: the public operator.

T tokens, C channels, W taps, N sequences.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from segue.kernels.short_conv.layout import ConvLayout, conv_layout

BLOCK_NUMBERS = 2**17
"""Numbers in one array of a block of tokens: a few such arrays fit a CPU core's second-level cache."""


def short_conv(x_TC: Tensor, weight_CW: Tensor, state_NWC: Tensor, offsets_N: Tensor) -> tuple[Tensor, Tensor]:
    """y_t = SiLU(sum_j weight_j x_(t-W+1+j)), per channel and within each sequence.

    Shapes:
        x_TC [T, C]; weight_CW [C, W]; state_NWC [N, W-1, C]; offsets_N [N+1]; returns y [T, C] and the new state.
    Args:
        x_TC: inputs; computed in at least fp32.
        weight_CW: the last tap multiplies the current token.
        state_NWC: the W-1 inputs before each sequence's first token here, oldest first; 0 at a document's start.
        offsets_N: int64, ascending from 0 to T; sequences shorter than W-1 push their inputs into the state.
    Returns:
        y in the dtype of `x_TC`, and the last W-1 inputs of each sequence in the dtype of `state_NWC`.
    Raises:
        ValueError: sizes disagree.
    """
    T, C = x_TC.shape
    num_taps = weight_CW.shape[1]
    bounds = tuple(offsets_N.tolist())
    if weight_CW.shape[0] != C or state_NWC.shape[1:] != (num_taps - 1, C):
        raise ValueError(
            f"weight and state must be [{C}, W] and [N, W-1, {C}], got {weight_CW.shape}, {state_NWC.shape}"
        )
    if bounds[0] != 0 or bounds[-1] != T or len(bounds) != state_NWC.shape[0] + 1:
        raise ValueError(f"offsets must rise from 0 to {T} over {state_NWC.shape[0]} sequences, got {bounds}")
    layout = conv_layout(bounds, num_taps, max(1, BLOCK_NUMBERS // C), x_TC.device)
    return _ShortConv.apply(x_TC, weight_CW, state_NWC, layout)


def short_conv_step(x_NC: Tensor, weight_CW: Tensor, state_NWC: Tensor) -> tuple[Tensor, Tensor]:
    """One token of every sequence; otherwise as `short_conv`.

    Shapes:
        x_NC [N, C]; weight_CW [C, W]; state_NWC [N, W-1, C]; returns y [N, C] and the new state.
    """
    window_NWC = torch.cat([state_NWC, x_NC[:, None].to(state_NWC.dtype)], 1)
    y_NC = silu((window_NWC * _taps(weight_CW, x_NC)).sum(1))
    return y_NC.to(x_NC.dtype), window_NWC[:, 1:]


class _ShortConv(torch.autograd.Function):
    """Shifted multiply-adds over all tokens; head tokens, whose windows begin in the state, apart."""

    @staticmethod
    def forward(
        ctx: Any, x_TC: Tensor, weight_CW: Tensor, state_NWC: Tensor, layout: ConvLayout
    ) -> tuple[Tensor, Tensor]:
        taps_WC = _taps(weight_CW, x_TC)
        y_TC = torch.empty_like(x_TC)
        for block in layout.blocks:
            y_TC[block.start : block.end] = silu(_convolve(x_TC, taps_WC, block.start, block.end), inplace=True)
        edge = _edge(x_TC, state_NWC, layout)
        head_MC = (edge[layout.windows] * taps_WC).sum(1)
        y_TC.index_copy_(0, layout.heads, silu(head_MC).to(y_TC.dtype))
        ctx.save_for_backward(x_TC, weight_CW, state_NWC)
        ctx.layout = layout
        return y_TC, edge[layout.states].view(state_NWC.shape).to(state_NWC.dtype)

    @staticmethod
    def backward(ctx: Any, d_y_TC: Tensor, d_new_state_NWC: Tensor) -> tuple[Tensor | None, ...]:
        x_TC, weight_CW, state_NWC = ctx.saved_tensors
        layout: ConvLayout = ctx.layout
        taps_WC = _taps(weight_CW, x_TC)
        num_before = len(taps_WC) - 1
        d_x_TC = x_TC.new_empty(x_TC.shape, dtype=taps_WC.dtype)
        d_x_TC[:num_before] = 0
        d_taps_WC = torch.zeros_like(taps_WC)
        for block in layout.blocks:
            z = _convolve(x_TC, taps_WC, block.start, block.end)
            d_z = torch.ops.aten.silu_backward(d_y_TC[block.start : block.end].to(z.dtype), z)
            d_z.index_fill_(0, block.heads, 0)
            torch.mul(d_z, taps_WC[-1], out=d_x_TC[block.start : block.end])
            for age in range(num_before + 1):
                seen = slice(block.start - age, block.end - age)
                if age > 0:
                    d_x_TC[seen].addcmul_(d_z, taps_WC[num_before - age])
                d_taps_WC[num_before - age] += torch.mul(d_z, x_TC[seen], out=z).sum(0)

        edge = _edge(x_TC, state_NWC, layout)
        windows_MWC = edge[layout.windows]
        d_y_MC = d_y_TC.index_select(0, layout.heads).to(edge.dtype)
        d_head_MC = torch.ops.aten.silu_backward(d_y_MC, (windows_MWC * taps_WC).sum(1))
        d_taps_WC += (d_head_MC[:, None] * windows_MWC).sum(0)
        d_edge = torch.zeros_like(edge)
        d_edge.index_add_(0, layout.windows.flatten(), (d_head_MC[:, None] * taps_WC).flatten(0, 1))
        d_edge.index_add_(0, layout.states, d_new_state_NWC.flatten(0, 1).to(edge.dtype))
        d_state, d_tokens = d_edge.split([len(layout.states), len(layout.edge_tokens)])
        d_x_TC.index_add_(0, layout.edge_tokens, d_tokens)
        return (
            d_x_TC.to(x_TC.dtype),
            d_taps_WC.T.to(weight_CW.dtype),
            d_state.view(state_NWC.shape).to(state_NWC.dtype),
            None,
        )


def _taps(weight_CW: Tensor, x: Tensor) -> Tensor:
    dtype = torch.promote_types(torch.promote_types(x.dtype, weight_CW.dtype), torch.float32)
    return weight_CW.T.to(dtype).contiguous()


def _convolve(x_TC: Tensor, taps_WC: Tensor, start: int, end: int) -> Tensor:
    """Tokens [start, end) without SiLU, as if the pack were one sequence."""
    num_before = len(taps_WC) - 1
    z = x_TC[start:end] * taps_WC[-1]
    for age in range(1, num_before + 1):
        z.addcmul_(x_TC[start - age : end - age], taps_WC[num_before - age])
    return z


def _edge(x_TC: Tensor, state_NWC: Tensor, layout: ConvLayout) -> Tensor:
    """States and edge tokens, as `ConvLayout` numbers them, in at least fp32."""
    tokens = x_TC.index_select(0, layout.edge_tokens)
    dtype = torch.promote_types(torch.promote_types(tokens.dtype, state_NWC.dtype), torch.float32)
    return torch.cat([state_NWC.flatten(0, 1).to(dtype), tokens.to(dtype)])
