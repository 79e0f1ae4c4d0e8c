"""Gated MLP: the dense layer's and the shared experts'."""

import torch
from torch import Tensor, nn

from segue.conf.model_config import HiddenAct, ModelConfig
from segue.kernels.situ.op import situ_glu, swiglu
from segue.model.layers.linear import Linear


class GatedMlp(nn.Module):
    """SiTU-GLU or SwiGLU of `width` hidden channels."""

    def __init__(self, config: ModelConfig, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.hidden_act = config.hidden_act
        self.beta = config.activation_situ_beta
        self.linear_beta = config.activation_situ_linear_beta
        self.gate_proj = Linear(config.hidden_size, width, dtype)
        self.up_proj = Linear(config.hidden_size, width, dtype)
        self.down_proj = Linear(width, config.hidden_size, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[T, D] to [T, D]."""
        gate, up = self.gate_proj(x), self.up_proj(x)
        if self.hidden_act is HiddenAct.silu:
            return self.down_proj(swiglu(gate, up))
        return self.down_proj(situ_glu(gate, up, self.beta, self.linear_beta))
