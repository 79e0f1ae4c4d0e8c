"""QK-clip: heads of latent attention whose scores grow beyond a bound have their query and key weights scaled back.

Legend: M MLA layers, H heads; Dn and R widths of a query's two parts, Dv of a value.
"""

import torch
from torch import Tensor

from segue.conf.model_config import ModelConfig
from segue.learner.measure import Metrics


def clip_factors(max_logits_MH: Tensor, bound: float, config: ModelConfig) -> dict[str, Tensor]:
    """Factors of the rows of the query and key maps, to be applied after the update that these scores came before.

    With gamma = min(1, bound / largest score) of a head: the part of its queries that meets expanded keys takes
    sqrt(gamma), and so does its expansion of the latent to keys; the part that meets the shared key takes gamma, since
    the shared key belongs to the other heads too and stays. Every score of the head so takes gamma. Values stay.

    Args:
        max_logits_MH: largest score before the softmax, over all tokens of the step on all ranks; minus infinity where
            there was none.
        bound: above 0.
        config: of the model.
    Returns:
        Name of a parameter to a factor for each of its rows; only layers with a head beyond the bound.
    Example:
        Bound 100, largest scores 50 and 400: gamma 1 and 0.25, so rows take 1 and 0.5, those for the shared key 1 and
        0.25.
    Source:
        Kimi K2, arXiv 2507.20534, algorithm 1.
    """
    query_map = "q_proj" if config.q_lora_rank is None else "q_b_proj"
    factors: dict[str, Tensor] = {}
    for layer, max_logits_H in zip(config.mla_layers, max_logits_MH, strict=True):
        gamma_H1 = bound / max_logits_H.clamp(min=bound).unsqueeze(1)
        if bool((gamma_H1 == 1.0).all()):
            continue
        root_HK = gamma_H1.sqrt().expand(-1, config.qk_nope_head_dim)
        query_HK = torch.cat([root_HK, gamma_H1.expand(-1, config.qk_rope_head_dim)], dim=1)
        key_value_HX = torch.cat([root_HK, gamma_H1.new_ones(len(gamma_H1), config.v_head_dim)], dim=1)
        path = f"model.layers.{layer}.self_attn"
        factors[f"{path}.{query_map}.weight"] = query_HK.flatten()
        factors[f"{path}.kv_b_proj.weight"] = key_value_HX.flatten()
    return factors


def logit_metrics(max_logits_MH: Tensor | None, bound: float | None, config: ModelConfig) -> Metrics:
    """Largest score of each head, and how many heads are beyond the bound.

    Args:
        max_logits_MH: of the step's tokens on all ranks; None where it was not measured.
        bound: above 0; None where nothing is clipped.
        config: of the model.
    """
    metrics: Metrics = {"attention/clipped/heads": None}
    if max_logits_MH is None:
        return metrics
    for layer, max_logits_H in zip(config.mla_layers, max_logits_MH.tolist(), strict=True):
        metrics |= {f"attention/max_logit/{layer}/{head}": logit for head, logit in enumerate(max_logits_H)}
    if bound is not None:
        metrics["attention/clipped/heads"] = float((max_logits_MH > bound).sum())
    return metrics
