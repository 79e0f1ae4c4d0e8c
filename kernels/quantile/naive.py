"""Reference of quantile balancing: the exact quantile of every expert's margins.

Letters: T tokens, E experts.
"""

import torch
from torch import Tensor


def naive_quantile_bias(scores_TE: Tensor, cutoff_T: Tensor, top_k: int) -> Tensor:
    """Mean-centred bias that gives each expert its target load `q = T top_k / E` if cutoffs stay as they are.

    The margin `r = cutoff - score` says how much bias an expert lacks to be chosen; with a bias between the q-th and
    the (q+1)-th smallest margin exactly q tokens choose it. Taken is the (floor(q)+1)-th smallest.
    """
    num_tokens, num_experts = scores_TE.shape
    target = num_tokens * top_k // num_experts
    margin_TE = (cutoff_T.unsqueeze(1) - scores_TE).double()
    wanted_E = torch.sort(margin_TE, dim=0).values[target]
    return wanted_E - wanted_E.mean()
