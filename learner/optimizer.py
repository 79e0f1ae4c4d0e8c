"""The optimiser of the model's parameters: AdamW, or Muon for matrices with AdamW for the rest."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from segue.conf.schema import OptimizerConfig, OptimizerKind
from segue.learner.muon import MOMENTUM, Muon
from segue.learner.muon_plan import Blocks
from segue.model.layers.kda import KimiDeltaAttention
from segue.model.layers.mla import GatedMla
from segue.model.network import SegueModel

MOMENTS = ("exp_avg", "exp_avg_sq")
"""What AdamW keeps of each parameter, beside the count of its updates."""

UNDECAYED = ("embed_tokens.weight", "conv1d.weight", "res_proj.weight")
"""Endings of parameters with two axes or more that weight decay leaves alone; vectors are left alone anyway."""

_HEAD = "lm_head.weight"


def build_optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig, blocks: Mapping[str, Blocks]
) -> torch.optim.AdamW:
    """The optimiser that `config.kind` names, with groups as ZeRO wants them: of one dtype, the narrowest first.

    Weight decay reaches matrices only. Norms, decay parameters (A_log, dt_bias), convolution taps, pseudo-queries and
    embeddings are not decayed: shrinking them moves the network's scales and memory, not its capacity.

    Args:
        named_parameters: all that is trained.
        config: numbers of the first update; `configure` sets those of later ones.
        blocks: `muon_blocks`; the others' parameters are AdamW's, as all are without Muon.
    """
    has_muon = config.kind is OptimizerKind.muon
    names: dict[torch.Tensor, str] = {}
    groups: dict[tuple[bool, bool, torch.dtype], list[nn.Parameter]] = {}
    for name, parameter in named_parameters:
        is_decayed = parameter.dim() >= 2 and not name.endswith(UNDECAYED)
        is_muon = has_muon and name in blocks
        groups.setdefault((is_muon, is_decayed, parameter.dtype), []).append(parameter)
        names[parameter] = name
    # the narrowest dtype first: ZeRO decides by the first group whether gradients are summed in a wider one
    ordered = sorted(groups.items(), key=lambda item: item[0][2].itemsize)
    dictionaries = [
        {"params": parameters, "is_decayed": is_decayed, "is_muon": is_muon}
        for (is_muon, is_decayed, _), parameters in ordered
    ]
    optimizer = Muon(dictionaries, names, blocks) if has_muon else torch.optim.AdamW(dictionaries)
    configure(optimizer.param_groups, config, config.lr)
    return optimizer


def configure(groups: Iterable[dict[str, Any]], config: OptimizerConfig, lr: float) -> None:
    """Set the numbers of the next update on groups that `build_optimizer` made."""
    for group in groups:
        group["lr"] = lr
        group["betas"] = (config.beta1, config.beta2)
        group["eps"] = config.eps
        group["weight_decay"] = config.weight_decay if group["is_decayed"] else 0.0
        if group["is_muon"]:
            group["momentum"] = config.muon.momentum
            group["ns_steps"] = config.muon.ns_steps


def moments_of(optimizer: torch.optim.Optimizer, name: str) -> tuple[str, ...]:
    """What an optimiser of `build_optimizer` keeps of a parameter."""
    return (MOMENTUM,) if isinstance(optimizer, Muon) and name in optimizer.blocks else MOMENTS


def muon_blocks(model: SegueModel) -> dict[str, Blocks]:
    """The matrices that Muon moves, and the blocks in which it does.

    Queries, keys and values of attention by head: KDA's maps, and in latent attention the queries' and the expansion
    of the latent to a head's key and value together. Stacked experts by expert. Any other matrix whole. Not embeddings,
    the head, convolution taps and pseudo-queries.

    Source:
        Kimi K3 report, arXiv 2607.24653, sec. 2.5, for the heads; the rest is convention.
    """
    num_heads: dict[str, int] = {}
    for path, module in model.named_modules():
        if isinstance(module, KimiDeltaAttention):
            num_heads |= {f"{path}.{name}.weight": module.num_heads for name in ("q_proj", "k_proj", "v_proj")}
        elif isinstance(module, GatedMla):
            num_heads |= {f"{path}.{name}.weight": module.num_heads for name in ("q_proj", "q_b_proj", "kv_b_proj")}
    blocks: dict[str, Blocks] = {}
    for name, parameter in model.named_parameters():
        if name == _HEAD or name.endswith(UNDECAYED) or parameter.dim() < 2:
            continue
        *stacked, num_rows, num_columns = parameter.shape
        num_blocks = num_heads.get(name, 1)
        blocks[name] = (stacked[0] if stacked else num_blocks, num_rows // num_blocks, num_columns)
    return blocks
