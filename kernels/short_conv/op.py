"""Short causal depthwise convolution with SiLU over packed sequences with carried inputs: the public operator.

T tokens, C channels, W taps, N sequences.
"""

from typing import Any

import torch
from torch import Tensor

from segue.kernels.common.rows import add_rows
from segue.kernels.common.sigmoid import silu, silu_into
from segue.kernels.short_conv.layout import ConvLayout, conv_layout

BLOCK_NUMBERS = 2**15
"""Numbers of a block of tokens: with its windows it fits a CPU core's second-level cache."""
BLOCK_NUMBERS_GPU = 2**27
"""On a GPU, where blocks only bound the temporaries."""


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
    layout = conv_layout(bounds, num_taps, x_TC.device)
    return _ShortConv.apply(x_TC.contiguous(), weight_CW, state_NWC, layout)


def short_conv_step(x_NC: Tensor, weight_CW: Tensor, state_NWC: Tensor) -> tuple[Tensor, Tensor]:
    """One token of every sequence; otherwise as `short_conv`.

    Shapes:
        x_NC [N, C]; weight_CW [C, W]; state_NWC [N, W-1, C]; returns y [N, C] and the new state.
    """
    window_NWC = torch.cat([state_NWC, x_NC[:, None].to(state_NWC.dtype)], 1)
    y_NC = silu((window_NWC * _taps(weight_CW, x_NC)).sum(1))
    return y_NC.to(x_NC.dtype), window_NWC[:, 1:]


class _ShortConv(torch.autograd.Function):
    """One convolution over the whole pack; then the head tokens, whose windows begin in the state, apart."""

    @staticmethod
    def forward(
        ctx: Any, x_TC: Tensor, weight_CW: Tensor, state_NWC: Tensor, layout: ConvLayout
    ) -> tuple[Tensor, Tensor]:
        taps_WC = _taps(weight_CW, x_TC)
        y_TC = x_TC.new_empty(x_TC.shape, dtype=taps_WC.dtype)
        if len(x_TC) >= len(taps_WC):
            silu_into(_convolve(x_TC.to(taps_WC.dtype), taps_WC), y_TC[len(taps_WC) - 1 :])
        edge = _edge(x_TC, state_NWC, layout)
        head_MC = (edge[layout.windows] * taps_WC).sum(1)
        y_TC.index_copy_(0, layout.heads, silu(head_MC))
        ctx.save_for_backward(x_TC, weight_CW, state_NWC)
        ctx.layout = layout
        return y_TC.to(x_TC.dtype), edge[layout.states].view(state_NWC.shape).to(state_NWC.dtype)

    @staticmethod
    def backward(ctx: Any, d_y_TC: Tensor, d_new_state_NWC: Tensor) -> tuple[Tensor | None, ...]:
        x_TC, weight_CW, state_NWC = ctx.saved_tensors
        layout: ConvLayout = ctx.layout
        taps_WC = _taps(weight_CW, x_TC)
        d_y_TC, wide_x_TC = d_y_TC.to(taps_WC.dtype), x_TC.to(taps_WC.dtype)
        if len(x_TC) >= len(taps_WC):
            num_before = len(taps_WC) - 1
            z = _convolve(wide_x_TC, taps_WC)
            d_z = torch.ops.aten.silu_backward(d_y_TC[num_before:], z)
            d_z.index_fill_(0, layout.late_heads, 0)
            d_x_TC = _convolve_backward(d_z, wide_x_TC, taps_WC)
            d_taps_WC = _windowed_sum(d_z, wide_x_TC, num_before + 1)
        else:
            d_x_TC, d_taps_WC = torch.zeros_like(wide_x_TC), torch.zeros_like(taps_WC)

        edge = _edge(x_TC, state_NWC, layout)
        windows_MWC = edge[layout.windows]
        d_y_MC = d_y_TC.index_select(0, layout.heads)
        d_head_MC = torch.ops.aten.silu_backward(d_y_MC, (windows_MWC * taps_WC).sum(1))
        d_taps_WC += (d_head_MC[:, None] * windows_MWC).sum(0)
        d_edge = torch.zeros_like(edge)
        add_rows(d_edge, layout.windows.flatten(), (d_head_MC[:, None] * taps_WC).flatten(0, 1))
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


def _image(x_TC: Tensor) -> Tensor:
    """[T, C] seen as a channels-last image of one row [1, C, 1, T]: depthwise convolutions take it as it lies."""
    return x_TC[None, None].permute(0, 3, 1, 2)


def _convolve(x_TC: Tensor, taps_WC: Tensor) -> Tensor:
    """Tokens from W-1 on, without SiLU, as if the pack were one sequence."""
    z = torch.nn.functional.conv2d(_image(x_TC), taps_WC.T[:, None, None], groups=taps_WC.shape[1])
    return z[0, :, 0].T


def _convolve_backward(d_z: Tensor, x_TC: Tensor, taps_WC: Tensor) -> Tensor:
    num_channels = taps_WC.shape[1]
    weight = taps_WC.T[:, None, None]
    options = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], num_channels, [True, False, False])
    d_image, _, _ = torch.ops.aten.convolution_backward(_image(d_z), _image(x_TC), weight, *options)
    return d_image[0, :, 0].T


def _windowed_sum(d_z: Tensor, x_TC: Tensor, num_taps: int) -> Tensor:
    """Gradient of the taps [W, C]: sum over tokens of d_z times the input that each tap saw, by blocks of tokens."""
    sums_WC = d_z.new_zeros(num_taps, d_z.shape[1])
    block = max(1, (BLOCK_NUMBERS_GPU if d_z.is_cuda else BLOCK_NUMBERS) // d_z.shape[1])
    windows_TWC = x_TC.unfold(0, num_taps, 1).mT
    for d_T1C, window_TWC in zip(d_z[:, None].split(block), windows_TWC.split(block), strict=True):
        sums_WC += (d_T1C * window_TWC).sum(0)
    return sums_WC


def _edge(x_TC: Tensor, state_NWC: Tensor, layout: ConvLayout) -> Tensor:
    """States and edge tokens, as `ConvLayout` numbers them, in at least fp32."""
    tokens = x_TC.index_select(0, layout.edge_tokens)
    dtype = torch.promote_types(torch.promote_types(tokens.dtype, state_NWC.dtype), torch.float32)
    return torch.cat([state_NWC.flatten(0, 1).to(dtype), tokens.to(dtype)])
