"""Reference of routing and experts: every expert runs on its tokens through plain autograd.

Letters: T tokens, E experts, k chosen experts, L expert input width, F expert hidden width.
"""

import torch
from torch import Tensor

from segue.kernels.situ.naive import naive_situ_glu, naive_swiglu


def naive_route(
    logits_TE: Tensor, bias_E: Tensor, top_k: int, renormalize: bool, scaling: float, replay_ids_Tk: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores, ids, weights and cutoff from a full sort."""
    dtype = torch.promote_types(logits_TE.dtype, torch.float32)
    scores_TE = torch.sigmoid(logits_TE.to(dtype))
    sorted_TE, order_TE = torch.sort(scores_TE.detach() + bias_E.to(dtype), dim=1, descending=True)
    ids_Tk = order_TE[:, :top_k] if replay_ids_Tk is None else replay_ids_Tk
    weights_Tk = scores_TE.gather(1, ids_Tk)
    if renormalize:
        weights_Tk = weights_Tk / (weights_Tk.sum(1, keepdim=True) + 1e-20)
    return scores_TE, ids_Tk, weights_Tk * scaling, sorted_TE[:, top_k]


def naive_experts(
    z_TL: Tensor, expert_ids_Tk: Tensor, weights_Tk: Tensor, w1_EFL: Tensor, w3_EFL: Tensor, w2_ELF: Tensor,
    beta: float | None, linear_beta: float | None,
) -> Tensor:  # fmt: skip
    """Weighted sum over the chosen experts; products in the dtype of `z`, weighting and sum in at least fp32."""
    dtype = torch.promote_types(z_TL.dtype, torch.float32)
    u_TL = torch.zeros_like(z_TL, dtype=dtype)
    for expert in range(w1_EFL.shape[0]):
        gate_TF, up_TF = z_TL @ w1_EFL[expert].t(), z_TL @ w3_EFL[expert].t()
        if beta is None or linear_beta is None:
            hidden_TF = naive_swiglu(gate_TF, up_TF)
        else:
            hidden_TF = naive_situ_glu(gate_TF, up_TF, beta, linear_beta)
        out_TL = hidden_TF @ w2_ELF[expert].t()
        weight_T = (weights_Tk * (expert_ids_Tk == expert)).sum(1)
        u_TL = u_TL + weight_T.to(dtype).unsqueeze(1) * out_TL.to(dtype)
    return u_TL.to(z_TL.dtype)
