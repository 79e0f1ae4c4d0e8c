"""Reference of the output head: all logits at once.

Letters: T tokens, D model width, Y vocabulary.
"""

import torch
from torch import Tensor


def naive_token_logprob(
    hidden_TD: Tensor, weight_YD: Tensor, label_ids_T: Tensor, temperature_T: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probability of the labels and entropy of `softmax(hidden weightᵀ / temperature)`, at least fp32."""
    dtype = torch.promote_types(hidden_TD.dtype, torch.float32)
    logits_TY = hidden_TD.to(dtype) @ weight_YD.to(dtype).t() / temperature_T.to(dtype).unsqueeze(-1)
    logprob_TY = torch.log_softmax(logits_TY, dim=-1)
    entropy_T = -(logprob_TY.exp() * logprob_TY).sum(-1)
    return logprob_TY.gather(-1, label_ids_T.unsqueeze(-1)).squeeze(-1), entropy_T
