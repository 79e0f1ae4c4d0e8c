"""Quantile balancing of the router: margins counted into a histogram, and the bias that it asks for.

Letters: T tokens, E experts, B bins.
"""

import math

import torch
from torch import Tensor

COUNTED_AT_ONCE = 1 << 20
"""Margins binned together; bounds the temporaries, not the result."""


def margin_histogram(scores: Tensor, cutoff: Tensor, bias: Tensor, num_bins: int) -> Tensor:
    """Counts of the margins `cutoff - score`, the bias that an expert lacks to be chosen by a token.

    Args:
        scores: [T, E] sigmoid scores without bias; at least fp32.
        cutoff: [T]; the (k+1)-th largest of score + bias.
        bias: [E]; the bias that made the cutoffs. The bins span [min(bias) - 1, max(bias) + 1].
        num_bins: B; the bin width is the error bound of the bias.
    Returns:
        int64 [E, B]. Histograms of parts of a batch add up to that of the batch. NaN counts in the first bin.
    Raises:
        ValueError: shapes that do not fit, or fewer than one bin.
    """
    num_tokens, num_experts = scores.shape
    if cutoff.shape != (num_tokens,) or bias.shape != (num_experts,):
        raise ValueError(
            f"cutoff and bias must be [{num_tokens}] and [{num_experts}], got {tuple(cutoff.shape)} and "
            f"{tuple(bias.shape)}"
        )
    if num_bins < 1:
        raise ValueError(f"num_bins must be at least 1, got {num_bins}")
    low, width = _bin_range(bias, num_bins)
    first_bin_E = torch.arange(0, num_experts * num_bins, num_bins, device=scores.device)
    counts = torch.zeros(num_experts * num_bins, dtype=torch.int64, device=scores.device)
    tokens_at_once = max(1, COUNTED_AT_ONCE // num_experts)
    for start in range(0, num_tokens, tokens_at_once):
        part = slice(start, start + tokens_at_once)
        position_TE = (cutoff[part].unsqueeze(1) - scores[part]).sub_(low).div_(width)
        # a margin that is no number is for the loss to report, and must not break the count
        bins_TE = position_TE.nan_to_num_(nan=0.0).clamp_(0, num_bins - 1).long().add_(first_bin_E)
        counts += torch.bincount(bins_TE.view(-1), minlength=counts.numel())
    return counts.view(num_experts, num_bins)


def quantile_bias(histogram: Tensor, bias: Tensor, top_k: int) -> Tensor:
    """Bias under which every expert would be chosen by `q = m top_k / E` of the m counted tokens.

    Args:
        histogram: int64 [E, B] from `margin_histogram`, summed over micro-steps and ranks.
        bias: [E]; the bias that the histogram was counted under.
        top_k: experts a token.
    Returns:
        [E] in the dtype of `bias`, mean-centred; `bias` itself, copied, when nothing was counted. Within a bin of the
        exact quantile.
    Raises:
        ValueError: shapes that do not fit.
    Source:
        Kimi K3 report, section 2.3.3, appendices C and D.
    """
    num_experts, num_bins = histogram.shape
    if bias.shape != (num_experts,):
        raise ValueError(f"bias must be [{num_experts}], got {tuple(bias.shape)}")
    num_tokens = int(histogram[0].sum())
    if num_tokens == 0:
        return bias.clone()
    target = num_tokens * top_k / num_experts
    low, width = _bin_range(bias, num_bins)
    cumulative_EB = histogram.cumsum(1)
    # first bin at which the count reaches the target; compared as integers, which stay exact
    bin_E1 = (cumulative_EB < math.ceil(target)).sum(1, keepdim=True)
    inside_E1 = histogram.gather(1, bin_E1)
    before_E1 = cumulative_EB.gather(1, bin_E1) - inside_E1
    fraction_E1 = ((target - before_E1.double()) / inside_E1).clamp_(0.0, 1.0)
    wanted_E = (low + (bin_E1 + fraction_E1) * width).squeeze(1)
    return (wanted_E - wanted_E.mean()).to(bias.dtype)


def _bin_range(bias_E: Tensor, num_bins: int) -> tuple[float, float]:
    low, high = float(bias_E.min()) - 1.0, float(bias_E.max()) + 1.0
    return low, (high - low) / num_bins
