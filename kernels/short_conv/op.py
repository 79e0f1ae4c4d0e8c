"""Short causal depthwise convolution with SiLU, packed, with carried inputs.

Legend: T tokens, C channels, W taps, N sequences, A = W - 1 carried inputs, L tokens of one sequence.

The packed row is convolved as if it were one sequence, W shifted multiply-adds over all tokens. Only the first A tokens
of a sequence reach beyond it; these *heads* are computed again from the carried inputs and overwrite the row.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


def short_conv(x_TC: Tensor, weight_CW: Tensor, state_NAC: Tensor, offsets_N: Tensor) -> tuple[Tensor, Tensor]:
    """Convolve each channel with its W taps, then SiLU; sequences continue from their carried inputs.

    Shapes:
        x_TC [T, C]; weight_CW [C, W], the last tap multiplies the current token; state_NAC [N, W-1, C], oldest first;
        offsets_N [N+1] int64. Returns y [T, C] in x's dtype and the new state [N, W-1, C] in the state's.
    Invariants:
        A sequence's results are bit-identical whatever its neighbours hold: tests/reference/test_short_conv.py.
    Source:
        Kimi Linear report, arXiv 2510.26692, sec. 4; computed in at least float32.
    """
    y_TC, new_state_NAC = _ShortConv.apply(x_TC, weight_CW, state_NAC, offsets_N)
    return y_TC, new_state_NAC


def short_conv_step(x_NC: Tensor, weight_CW: Tensor, state_NAC: Tensor) -> tuple[Tensor, Tensor]:
    """One token of every sequence.

    Shapes:
        x_NC [N, C]; weight_CW [C, W]; state_NAC [N, W-1, C], oldest first. Returns y [N, C] and the new state.
    """
    history_NWC = torch.cat([state_NAC.to(x_NC.dtype), x_NC[:, None]], 1)
    y_NC = functional.silu((history_NWC * weight_CW.T).sum(1)).to(x_NC.dtype)
    return y_NC, history_NWC[:, 1:].to(state_NAC.dtype)


class _Heads:
    """Where the first A tokens of every sequence stand, and the last A inputs."""

    def __init__(self, offsets_N: Tensor, num_carried: int) -> None:
        start_N1, length_N1 = offsets_N[:-1, None], offsets_N.diff()[:, None]
        place_1A = torch.arange(num_carried, device=offsets_N.device)[None]
        self.rows = (start_N1 + place_1A)[place_1A < length_N1]
        """Rows of the head tokens that exist."""
        self.sequence, self.place = torch.nonzero(place_1A < length_N1, as_tuple=True)
        """Sequence and place in the head of each of them."""
        last_NA = length_N1 + place_1A - num_carried
        self.last_is_new = last_NA >= 0
        """[N, A]: which of the last A inputs come from this call's tokens."""
        self.last_rows = (start_N1 + last_NA)[self.last_is_new]
        self.last_carried = (torch.nonzero(~self.last_is_new)[:, 0], (last_NA + num_carried)[~self.last_is_new])
        """Sequence and carried place of the others."""


class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_TC: Tensor, weight_CW: Tensor, state_NAC: Tensor, offsets_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        num_taps = weight_CW.shape[1]
        heads = _Heads(offsets_N, num_taps - 1)
        wide = torch.promote_types(torch.promote_types(x_TC.dtype, weight_CW.dtype), torch.float32)
        x, taps_WC = x_TC.to(wide), weight_CW.T.to(wide).contiguous()
        z_TC = x * taps_WC[-1]
        for back in range(1, num_taps):
            z_TC[back:].addcmul_(x[:-back], taps_WC[-1 - back])
        # [N, 2A, C]: carried inputs, then the head tokens (zeros where a sequence is shorter)
        inputs = _head_inputs(x, state_NAC.to(wide), heads)
        z_heads = inputs[:, num_taps - 1 :] * taps_WC[-1]
        for back in range(1, num_taps):
            z_heads.addcmul_(inputs[:, num_taps - 1 - back : inputs.shape[1] - back], taps_WC[-1 - back])
        z_TC[heads.rows] = z_heads[heads.sequence, heads.place]
        new_state = state_NAC.new_empty(state_NAC.shape)
        new_state[heads.last_is_new] = x_TC[heads.last_rows].to(state_NAC.dtype)
        new_state[~heads.last_is_new] = state_NAC[heads.last_carried]
        ctx.save_for_backward(x_TC, weight_CW, state_NAC, z_TC)
        ctx.heads = heads
        return functional.silu(z_TC).to(x_TC.dtype), new_state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TC: Tensor, dnew_state: Tensor) -> tuple[Tensor | None, ...]:
        x_TC, weight_CW, state_NAC, z_TC = ctx.saved_tensors
        heads, num_taps = ctx.heads, weight_CW.shape[1]
        num_carried, wide = num_taps - 1, z_TC.dtype
        x, taps_WC = x_TC.to(wide), weight_CW.T.to(wide).contiguous()
        dz = torch.ops.aten.silu_backward(dy_TC.to(wide), z_TC)
        dtaps_WC = torch.empty_like(taps_WC)

        # carried inputs reach the heads only
        dz_heads = dz.new_zeros(*state_NAC.shape)
        dz_heads[heads.sequence, heads.place] = dz[heads.rows]
        state = state_NAC.to(wide)
        dstate = torch.zeros_like(dz_heads)
        for back in range(num_taps):
            # place p of a head reads carried input p + A - back
            reached = dz_heads[:, :back]
            dstate[:, num_carried - back :].addcmul_(reached, taps_WC[-1 - back])
            dtaps_WC[-1 - back] = (reached * state[:, num_carried - back :]).sum((0, 1))

        # tokens of this call: a tap that looks back must not reach from a sequence's head into its neighbour
        dx = dz * taps_WC[-1]
        dtaps_WC[-1] += (dz * x).sum(0)
        for back in range(1, num_taps):
            dz.index_fill_(0, heads.rows[heads.place == back - 1], 0.0)
            dx[:-back].addcmul_(dz[back:], taps_WC[-1 - back])
            dtaps_WC[-1 - back] += (dz[back:] * x[:-back]).sum(0)

        dx.index_add_(0, heads.last_rows, dnew_state[heads.last_is_new].to(wide))
        dstate.index_put_(heads.last_carried, dnew_state[~heads.last_is_new].to(wide), accumulate=True)
        return dx.to(x_TC.dtype), dtaps_WC.T.to(weight_CW.dtype), dstate.to(state_NAC.dtype), None


def _head_inputs(x: Tensor, state: Tensor, heads: _Heads) -> Tensor:
    """Carried inputs and head tokens of every sequence, [N, 2A, C]."""
    head_tokens = torch.zeros_like(state)
    head_tokens[heads.sequence, heads.place] = x[heads.rows]
    return torch.cat([state, head_tokens], 1)
