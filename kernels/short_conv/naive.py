"""Reference short convolution: one token at a time.

T tokens, C channels, W taps, N sequences.
"""

import itertools

import torch
from torch import Tensor


def naive_short_conv(x_TC: Tensor, weight_CW: Tensor, state_NWC: Tensor, offsets_N: Tensor) -> tuple[Tensor, Tensor]:
    """Causal depthwise convolution with carried inputs, then SiLU; in the dtype given.

    Shapes:
        x_TC [T, C]; weight_CW [C, W], the last tap multiplies the current token; state_NWC [N, W-1, C], oldest first;
        offsets_N [N+1]. Returns y [T, C] and the new state [N, W-1, C].
    """
    bounds = offsets_N.tolist()
    num_taps = weight_CW.shape[1]
    y, new_state = [x_TC[:0]], [state_NWC[:0]]
    for n, (start, end) in enumerate(itertools.pairwise(bounds)):
        history = torch.cat([state_NWC[n].to(x_TC.dtype), x_TC[start:end]])
        for t in range(end - start):
            z_C = (history[t : t + num_taps] * weight_CW.T).sum(0)
            y.append((z_C * torch.sigmoid(z_C)).to(x_TC.dtype)[None])
        new_state.append(history[history.shape[0] - (num_taps - 1) :][None])
    return torch.cat(y), torch.cat(new_state).to(state_NWC.dtype)
