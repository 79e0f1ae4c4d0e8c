"""Short causal depthwise convolution with SiLU, packed, with carried inputs."""

import torch
from torch import Tensor

from segue.kernels.short_conv.naive import naive_short_conv as short_conv

__all__ = ["short_conv", "short_conv_step"]


def short_conv_step(x_NC: Tensor, weight_CW: Tensor, state_NWC: Tensor) -> tuple[Tensor, Tensor]:
    """One token of every sequence.

    Shapes:
        x_NC [N, C]; weight_CW [C, W]; state_NWC [N, W-1, C], oldest first. Returns y [N, C] and the new state.
    """
    history_NWC = torch.cat([state_NWC.to(x_NC.dtype), x_NC[:, None]], 1)
    y_NC = torch.nn.functional.silu((history_NWC * weight_CW.T).sum(1)).to(x_NC.dtype)
    return y_NC, history_NWC[:, 1:].to(state_NWC.dtype)
