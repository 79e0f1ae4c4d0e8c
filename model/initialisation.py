"""The weights' start values."""

import math

import torch
from torch import Tensor, nn

from segue.conf.model_config import ModelConfig

EMBEDDING_STD = 0.5
HEAD_STD = 0.02
DT_MIN, DT_MAX, DT_FLOOR = 1e-3, 1e-1, 1e-4
OUTPUT_PROJECTIONS = (".o_proj.weight", ".down_proj.weight", ".experts.w2", ".routed_expert_up_proj.weight")
PSEUDO_QUERIES = ("self_attention_res_proj.weight", "mlp_res_proj.weight", "output_attn_res_proj.weight")


@torch.no_grad()
def init_weights(model: nn.Module, config: ModelConfig, generator: torch.Generator) -> None:
    """Fill every parameter and the router biases.

    Matrices are normal with `config.initializer_range`; where that is null each has standard deviation
    1/sqrt(fan_in), divided by sqrt(2 · layers) where it writes to the residual, with `HEAD_STD` and `EMBEDDING_STD`.

    Source:
        K3 report sec. 2.1.1 (A = 0); step sizes of the decay as Mamba-2; zero pseudo-queries, arXiv 2603.15031;
        convolution taps uniform in ±1/sqrt(taps), the default of the Kimi Linear reference.
    """
    for name, parameter in model.named_parameters():
        parameter.copy_(_start_value(name, parameter, config, generator))
    for buffer in model.buffers():
        buffer.zero_()


def _start_value(name: str, parameter: Tensor, config: ModelConfig, generator: torch.Generator) -> Tensor:
    leaf = name.split(".")[-2] if name.endswith(".weight") else name.split(".")[-1]
    if name.endswith(PSEUDO_QUERIES) or leaf == "A_log":
        return torch.zeros_like(parameter)
    if leaf == "dt_bias":
        return _inverse_softplus_steps(_uniform(parameter, generator))
    if leaf.endswith("conv1d"):
        return (2 * _uniform(parameter, generator) - 1) / math.sqrt(parameter.shape[-1])
    if parameter.dim() == 1:
        return torch.ones_like(parameter)
    return _normal(parameter, generator) * _matrix_std(name, parameter, config)


def _matrix_std(name: str, parameter: Tensor, config: ModelConfig) -> float:
    if config.initializer_range is not None:
        return config.initializer_range
    if name.endswith("embed_tokens.weight"):
        return EMBEDDING_STD
    if name.endswith("lm_head.weight"):
        return HEAD_STD
    std = 1.0 / math.sqrt(parameter.shape[-1])
    return std / math.sqrt(2 * config.num_hidden_layers) if name.endswith(OUTPUT_PROJECTIONS) else std


def _inverse_softplus_steps(uniform: Tensor) -> Tensor:
    """dt_bias such that softplus(dt_bias) is log-uniform in [DT_MIN, DT_MAX]."""
    steps = torch.exp(uniform * (math.log(DT_MAX) - math.log(DT_MIN)) + math.log(DT_MIN)).clamp(min=DT_FLOOR)
    return steps + torch.log(-torch.expm1(-steps))


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, device=generator.device, dtype=torch.float32)


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(like.shape, generator=generator, device=generator.device, dtype=torch.float32)
