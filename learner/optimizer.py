"""AdamW over the model's parameters."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from segue.conf.schema import OptimizerConfig

MOMENTS = ("exp_avg", "exp_avg_sq")
"""What AdamW keeps of each parameter, beside the count of its updates."""

UNDECAYED = ("embed_tokens.weight", "conv1d.weight", "res_proj.weight")
"""Endings of parameters with two axes or more that weight decay leaves alone; vectors are left alone anyway."""


def build_adamw(named_parameters: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW whose weight decay reaches matrices only.

    Norms, decay parameters (A_log, dt_bias), convolution taps, pseudo-queries and embeddings are not decayed: shrinking
    them moves the network's scales and memory, not its capacity. A group holds parameters of one dtype, as ZeRO wants.
    """
    groups: dict[tuple[bool, torch.dtype], list[nn.Parameter]] = {}
    for name, parameter in named_parameters:
        is_decayed = parameter.dim() >= 2 and not name.endswith(UNDECAYED)
        groups.setdefault((is_decayed, parameter.dtype), []).append(parameter)
    # the narrowest dtype first: ZeRO decides by the first group whether gradients are summed in a wider one
    ordered = sorted(groups.items(), key=lambda item: item[0][1].itemsize)
    optimizer = torch.optim.AdamW(
        [{"params": parameters, "is_decayed": is_decayed} for (is_decayed, _), parameters in ordered], lr=config.lr
    )
    configure_adamw(optimizer.param_groups, config, config.lr)
    return optimizer


def configure_adamw(groups: Iterable[dict[str, Any]], config: OptimizerConfig, lr: float) -> None:
    """Set the numbers of the next update on groups that `build_adamw` made."""
    for group in groups:
        group["lr"] = lr
        group["betas"] = (config.beta1, config.beta2)
        group["eps"] = config.eps
        group["weight_decay"] = config.weight_decay if group["is_decayed"] else 0.0
