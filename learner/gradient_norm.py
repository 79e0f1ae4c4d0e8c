"""The norm of a step's gradient for each part of the model."""

from collections.abc import Callable, Mapping

from torch import Tensor

from segue.conf.model_config import LayerKind, ModelConfig
from segue.learner.measure import Metrics, join_sums

# what a parameter's name holds, and the part that it then belongs to; the first that fits decides
_PARTS = (
    ("embed_tokens.", "embedding"),
    ("lm_head.", "head"),
    ("value_head.", "critic"),
    ("_res_norm.", "residual"),
    ("_res_proj.", "residual"),
    ("norm.", "norm"),
    (".gate.weight", "router"),
    (".shared_experts.", "shared"),
    (".block_sparse_moe.", "experts"),
    (".mlp.", "dense"),
)


def component_of(name: str, config: ModelConfig) -> str:
    """The part of the model that a parameter belongs to.

    `embedding`, `head`, `residual` (mixing of blocks), `norm` (every other norm), `kda` and `mla` (attention without
    norms), `dense` (dense MLPs), `router`, `experts` (routed, with the maps to and from their latent), `shared`,
    `critic` (where there is one).
    """
    for mark, component in _PARTS:
        if mark in name:
            return component
    _, _, layer, block, _ = name.split(".", 4)
    assert block == "self_attn", name
    return "kda" if config.layer_kinds[int(layer)] is LayerKind.kda else "mla"


def component_norms(
    squares: Mapping[str, Tensor], config: ModelConfig, sum_over_ranks: Callable[[Tensor], Tensor]
) -> Metrics:
    """Norm of the gradient of each part, over all ranks.

    Args:
        squares: of each parameter, the sum of squares of this rank's share of the gradient; scalars.
        config: of the model.
        sum_over_ranks: elementwise, in place; called once.
    Returns:
        `update/gradient/norm/<component>`; their squares add up to the square of the global norm.
    Example:
        Shares (3, 0) and (0, 4) of one part's gradient on two ranks: squares 9 and 16, norm 5.
    """
    sums: dict[str, Tensor] = {}
    for name, square in squares.items():
        component = component_of(name, config)
        sums[component] = sums[component] + square if component in sums else square
    joined = join_sums(sums, sum_over_ranks)
    return {f"update/gradient/norm/{component}": total**0.5 for component, total in joined.items()}
