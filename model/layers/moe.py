"""Stable latent mixture of experts: routed experts work in a latent, shared experts at full width.

Legend: T tokens, D model width, L latent width, E experts, F hidden width of an expert.
"""

import torch
from torch import Tensor, nn

from segue.conf.model_config import HiddenAct, ModelConfig
from segue.kernels.common.wide_linear import wide_linear
from segue.kernels.moe.op import experts, route
from segue.model.layers.linear import JointLinear, Linear, RmsNorm
from segue.model.layers.mlp import GatedMlp
from segue.model.routing import Routing


class Gate(nn.Module):
    """The router: logits per expert, and the bias that balances the selection."""

    e_score_correction_bias: Tensor

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size, dtype=dtype))
        wide = torch.promote_types(dtype, torch.float32)
        self.register_buffer("e_score_correction_bias", torch.zeros(config.num_experts, dtype=wide))

    def forward(self, x: Tensor) -> Tensor:
        """[T, D] to logits [T, E], at least float32 whatever surrounds it."""
        with torch.autocast(x.device.type, enabled=False):
            return wide_linear(x, self.weight)


class RoutedExperts(nn.Module):
    """The experts' matrices, stacked: gate w1 and up w3 [E, F, L], down w2 [E, L, F]."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        outer, inner = config.expert_input_size, config.moe_intermediate_size
        self.w1 = nn.Parameter(torch.empty(config.num_experts, inner, outer, dtype=dtype))
        self.w3 = nn.Parameter(torch.empty(config.num_experts, inner, outer, dtype=dtype))
        self.w2 = nn.Parameter(torch.empty(config.num_experts, outer, inner, dtype=dtype))


class SparseMoe(nn.Module):
    """Routed and shared experts of one layer; `moe_index` is its place among such layers.

    Source:
        Kimi K3 technical report, arXiv 2607.24653, sec. 2.3.
    """

    def __init__(self, config: ModelConfig, moe_index: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.moe_index = moe_index
        self.top_k = config.num_experts_per_token
        self.renormalize = config.moe_renormalize
        self.scaling = config.routed_scaling_factor
        is_situ = config.hidden_act is HiddenAct.situ
        self.beta = config.activation_situ_beta if is_situ else None
        self.linear_beta = config.activation_situ_linear_beta if is_situ else None
        self.has_latent = config.routed_expert_hidden_size is not None
        self.has_latent_norm = self.has_latent and config.latent_moe_use_norm

        self.gate = Gate(config, dtype)
        self.experts = RoutedExperts(config, dtype)
        if self.has_latent:
            self.routed_expert_down_proj = Linear(config.hidden_size, config.expert_input_size, dtype)
            self.routed_expert_up_proj = Linear(config.expert_input_size, config.hidden_size, dtype)
        if self.has_latent_norm:
            self.routed_expert_norm = RmsNorm(config.expert_input_size, config.rms_norm_eps, dtype)
        self.shared_experts = GatedMlp(config, config.num_shared_experts * config.moe_intermediate_size, dtype)

        latent_proj = (self.routed_expert_down_proj,) if self.has_latent else ()
        shared = self.shared_experts
        self._joint_proj = JointLinear(self.gate, shared.gate_proj, shared.up_proj, *latent_proj)

    def forward(self, x: Tensor, routing: Routing, *, incremental: bool) -> Tensor:
        """[T, D] to [T, D]; writes the record of this forward. `incremental`: a decoding step, one token a sequence."""
        if incremental:
            logits, gate, up, *latent = self._joint_proj(x)
            shared = self.shared_experts.activate(gate, up)
        else:
            logits = self.gate(x)
            latent = [self.routed_expert_down_proj(x)] if self.has_latent else []
            shared = self.shared_experts(x, incremental=False)
        z = latent[0] if latent else x
        bias = self.gate.e_score_correction_bias
        routes = route(
            logits,
            bias,
            top_k=self.top_k,
            renormalize=self.renormalize,
            scaling=self.scaling,
            replay_ids=routing.ids_to_replay(self.moe_index),
        )
        routing.record(self.moe_index, routes, bias)

        w = self.experts
        u = experts(
            z, routes.expert_ids, routes.weights, w.w1, w.w3, w.w2, beta=self.beta, linear_beta=self.linear_beta
        )
        if self.has_latent_norm:
            u = self.routed_expert_norm(u)
        if self.has_latent:
            u = self.routed_expert_up_proj(u)
        return u + shared
