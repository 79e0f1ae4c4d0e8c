"""From logits and noise to tokens and the log-probabilities of the distribution that they were drawn from.

Dimensions: N sequences, Y vocabulary. Logits are already divided by their sequence's temperature; they are worked on in
at least float32. A row's result depends on that row alone.
"""

import torch
from torch import Tensor


def sample(logits_NY: Tensor, noise_N: Tensor) -> tuple[Tensor, Tensor]:
    """Draw a token a row by inverting the distribution function at the row's noise.

    Shapes:
        returns token ids [N] int64 and their log-probabilities [N], at least float32.
    Args:
        logits_NY: any float dtype; -inf excludes a token.
        noise_N: float64 in [0, 1).
    """
    shifted_NY = _shift(logits_NY)
    cumulative_NY = shifted_NY.exp().cumsum(-1, dtype=torch.float64)
    total_N1 = cumulative_NY[:, -1:]
    # the first entry above the target has mass of its own, so a token of probability zero is never drawn
    ids_N1 = torch.searchsorted(cumulative_NY, noise_N[:, None] * total_N1, right=True)
    # logits that are not finite have no such entry: their log-probability is not finite, and callers refuse it
    ids_N1.clamp_(max=logits_NY.shape[-1] - 1)
    return ids_N1[:, 0], _logprob(shifted_NY, ids_N1, total_N1)


def take_best(logits_NY: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token a row and its log-probability; shapes as `sample`."""
    shifted_NY = _shift(logits_NY)
    ids_N1 = shifted_NY.argmax(-1, keepdim=True)
    return ids_N1[:, 0], _logprob(shifted_NY, ids_N1, shifted_NY.exp().sum(-1, keepdim=True, dtype=torch.float64))


def draw(logits_NY: Tensor, noise_N: Tensor, is_greedy_N: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of both kinds at once, as `sample` and `take_best`: what rows ask for changes no launch."""
    shifted_NY = _shift(logits_NY)
    cumulative_NY = shifted_NY.exp().cumsum(-1, dtype=torch.float64)
    total_N1 = cumulative_NY[:, -1:]
    ids_N1 = torch.searchsorted(cumulative_NY, noise_N[:, None] * total_N1, right=True)
    ids_N1.clamp_(max=logits_NY.shape[-1] - 1)
    ids_N1 = torch.where(is_greedy_N[:, None], shifted_NY.argmax(-1, keepdim=True), ids_N1)
    return ids_N1[:, 0], _logprob(shifted_NY, ids_N1, total_N1)


def truncate(logits_NY: Tensor, *, top_p: float, top_k: int | None) -> Tensor:
    """Exclude unlikely tokens: -inf outside the `top_k` likeliest and outside the smallest set of mass `top_p`.

    The mass is counted among the `top_k`. The likeliest token always stays.
    """
    order_NY = logits_NY.argsort(stable=True, dim=-1, descending=True)
    ranked_NY = _shift(logits_NY).gather(-1, order_NY)
    if top_k is not None:
        ranked_NY[:, top_k:] = -torch.inf
    mass_NY = ranked_NY.softmax(-1)
    # the mass of likelier tokens decides, so the token that crosses the border is still in
    excluded_NY = (mass_NY.cumsum(-1) - mass_NY >= top_p) | ranked_NY.isneginf()
    excluded_NY[:, 0] = False
    return logits_NY.masked_fill(torch.zeros_like(excluded_NY).scatter_(-1, order_NY, excluded_NY), -torch.inf)


def _shift(logits_NY: Tensor) -> Tensor:
    """At least float32, the largest of a row at 0."""
    working_NY = logits_NY.to(torch.promote_types(logits_NY.dtype, torch.float32))
    return working_NY - working_NY.amax(-1, keepdim=True)


def _logprob(shifted_NY: Tensor, ids_N1: Tensor, total_N1: Tensor) -> Tensor:
    return (shifted_NY.gather(-1, ids_N1) - total_N1.log().to(shifted_NY.dtype))[:, 0]
