"""Gated MLP: the dense layer's and the shared experts'."""

import torch
from torch import Tensor, nn

from segue.conf.model_config import HiddenAct, ModelConfig
from segue.kernels.situ.op import situ_glu, swiglu
from segue.model.layers.linear import JointLinear, Linear


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

        self._joint_proj = JointLinear(self.gate_proj, self.up_proj)

    def forward(self, x: Tensor, *, incremental: bool) -> Tensor:
        """[T, D] to [T, D]; `incremental`: a decoding step, one token a sequence."""
        gate, up = self._joint_proj(x) if incremental else (self.gate_proj(x), self.up_proj(x))
        return self.activate(gate, up)

    def activate(self, gate: Tensor, up: Tensor) -> Tensor:
        """From both hidden projections [T, width] on."""
        if self.hidden_act is HiddenAct.silu:
            return self.down_proj(swiglu(gate, up))
        return self.down_proj(situ_glu(gate, up, self.beta, self.linear_beta))
