"""Quantile balancing: once a step the router's bias moves so that on that step's tokens all experts are chosen equally.

Legend: L layers with routed experts, E experts, B bins.
"""

import torch
from torch import Tensor

from segue.kernels.quantile.op import quantile_bias
from segue.model.layers.moe import Gate
from segue.model.network import SegueModel


def router_biases(model: SegueModel) -> list[Tensor]:
    """The bias of each layer with routed experts, [E] each, in order of depth; the model's own tensors."""
    return [module.e_score_correction_bias for module in model.modules() if isinstance(module, Gate)]


@torch.no_grad()
def update_biases(biases: list[Tensor], histogram_LEB: Tensor, top_k: int) -> None:
    """Move the biases in place to the quantiles of a step.

    Args:
        biases: `router_biases`, which the step's tokens were routed with.
        histogram_LEB: int64, margins of the tokens of all micro-steps and ranks.
        top_k: experts a token.
    Invariants:
        Any split of the tokens into micro-steps and ranks gives the same bias: tests/reference/test_balance.py.
    Source:
        Kimi K3 report, arXiv 2607.24653, sec. 2.3.3, appendices C and D.
    """
    for bias, histogram_EB in zip(biases, histogram_LEB, strict=True):
        bias.copy_(quantile_bias(histogram_EB, bias, top_k))


def load_violation(expert_load_LE: Tensor) -> list[float]:
    """For each layer the load of its busiest expert over the mean load, less 1; 0 is balance.

    Args:
        expert_load_LE: times that each expert was chosen; at least one token.
    """
    load_LE = expert_load_LE.double()
    return (load_LE.amax(1) / load_LE.mean(1) - 1.0).tolist()
