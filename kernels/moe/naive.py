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
    """Weighted sum over the chosen experts, every expert computed for every token, at least fp32."""
    dtype = torch.promote_types(z_TL.dtype, torch.float32)
    z, w1, w3, w2 = z_TL.to(dtype), w1_EFL.to(dtype), w3_EFL.to(dtype), w2_ELF.to(dtype)
    dense_TE = z.new_zeros(z.shape[0], w1.shape[0]).scatter_add(1, expert_ids_Tk, weights_Tk.to(dtype))
    gate_TEF, up_TEF = torch.einsum("tl,efl->tef", z, w1), torch.einsum("tl,efl->tef", z, w3)
    if beta is None or linear_beta is None:
        hidden_TEF = naive_swiglu(gate_TEF, up_TEF)
    else:
        hidden_TEF = naive_situ_glu(gate_TEF, up_TEF, beta, linear_beta)
    return torch.einsum("te,tef,elf->tl", dense_TE, hidden_TEF, w2).to(z_TL.dtype)
