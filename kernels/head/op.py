"""Output head for training: log-probability and entropy per token without the logits of all tokens.

Letters: T tokens, D model width, Y vocabulary; B tokens of a tile.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

TILE_BYTES = 1 << 20
"""Upper size of one logits tile; a few such tiles are alive at once."""
TILE_BYTES_GPU = 1 << 28
"""On a GPU, where calls cost more and there is more memory."""
LOG2_E = math.log2(math.e)


class _TokenLogprob(torch.autograd.Function):
    """Walks token tiles; keeps the inputs and two numbers a token, and computes the logits again in backward.

    Logits are in units of log 2: torch's exp2, unlike its exp, takes no slow path on CPU where a result underflows.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, label_ids: Tensor, temperature: Tensor) -> Any:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        weight_YD = weight.to(dtype)
        label_T1 = label_ids.unsqueeze(1)
        logprob_T1, entropy_T1, lse_T1 = torch.empty(3, hidden.shape[0], 1, dtype=dtype, device=hidden.device)
        for tile in _tiles(hidden.shape[0], weight_YD):
            logits_BY = _cooled(hidden[tile], temperature[tile], dtype) @ weight_YD.t()
            max_B1 = logits_BY.amax(1, keepdim=True)
            logits_BY -= max_B1
            label_logit_B1 = logits_BY.gather(1, label_T1[tile])
            p_BY = torch.exp2(logits_BY)
            sum_B1 = p_BY.sum(1, keepdim=True)
            log_sum_B1 = sum_B1.log2()
            lse_T1[tile] = max_B1 + log_sum_B1
            logprob_T1[tile] = label_logit_B1 - log_sum_B1
            # entropy = log sum - sum p logit
            entropy_T1[tile] = log_sum_B1 - p_BY.mul_(logits_BY).sum(1, keepdim=True).div_(sum_B1)
        logprob_T1 /= LOG2_E
        entropy_T1 /= LOG2_E
        ctx.save_for_backward(hidden, weight, label_ids, temperature, lse_T1, entropy_T1)
        return logprob_T1.squeeze(1), entropy_T1.squeeze(1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_logprob_T1, grad_entropy_T1 = (grad.unsqueeze(1) for grad in grads)
        hidden, weight, label_ids, temperature, lse_T1, entropy_T1 = ctx.saved_tensors
        dtype = entropy_T1.dtype
        weight_YD = weight.to(dtype)
        label_T1 = label_ids.unsqueeze(1)
        grad_hidden = torch.empty(hidden.shape, dtype=hidden.dtype, device=hidden.device)
        grad_weight_YD = torch.zeros_like(weight_YD)
        # d logprob / d logit = onehot - p and d entropy / d logit = -p (log p + entropy), with log p = log2 p / log2 e
        slope_T1 = grad_entropy_T1 * (-1.0 / LOG2_E)
        offset_T1 = -grad_logprob_T1 - grad_entropy_T1 * entropy_T1
        for tile in _tiles(hidden.shape[0], weight_YD):
            cooled_BD = _cooled(hidden[tile], temperature[tile], dtype)
            log2_p_BY = (cooled_BD @ weight_YD.t()).sub_(lse_T1[tile])
            p_BY = torch.exp2(log2_p_BY)
            dlogits_BY = log2_p_BY.mul_(slope_T1[tile]).add_(offset_T1[tile]).mul_(p_BY)
            dlogits_BY.scatter_add_(1, label_T1[tile], grad_logprob_T1[tile])
            grad_weight_YD.addmm_(dlogits_BY.t(), cooled_BD)
            grad_hidden[tile] = (dlogits_BY @ weight_YD).div_(temperature[tile].to(dtype).unsqueeze(1))
        # the cooled rows carry the factor log2 e
        return grad_hidden, grad_weight_YD.div_(LOG2_E).to(weight.dtype), None, None


def _tiles(num_tokens: int, weight_YD: Tensor) -> Iterator[slice]:
    tile_bytes = TILE_BYTES_GPU if weight_YD.is_cuda else TILE_BYTES
    size = max(1, tile_bytes // (weight_YD.shape[0] * weight_YD.element_size()))
    return (slice(start, start + size) for start in range(0, num_tokens, size))


def _cooled(hidden_BD: Tensor, temperature_B: Tensor, dtype: torch.dtype) -> Tensor:
    """Hidden rows whose products with the weight are tempered logits in units of log 2."""
    # scaling a row costs D instead of Y operations a token
    return hidden_BD.to(dtype) * (LOG2_E / temperature_B.to(dtype)).unsqueeze(1)


def token_logprob(hidden: Tensor, weight: Tensor, label_ids: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of each label and entropy under `softmax(hidden weightᵀ / temperature)`.

    Args:
        hidden: [T, D], after the final norm; carries gradient.
        weight: [Y, D], the output head; carries gradient.
        label_ids: [T] int64 in [0, Y); a label whose token does not count may be any valid id.
        temperature: [T], > 0; no gradient.
    Returns:
        logprob [T] and entropy [T] of the tempered distribution, in nats, at least fp32.
    Raises:
        ValueError: shapes that do not fit.
    Invariants:
        No tensor holds T x Y numbers for all T; a token's result does not depend on other tokens' values.
        Both: tests/reference/test_head.py.
    """
    num_tokens = hidden.shape[0]
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(f"hidden [T, D] and weight [Y, D] must fit, got {tuple(hidden.shape)}, {tuple(weight.shape)}")
    if label_ids.shape != (num_tokens,) or temperature.shape != (num_tokens,):
        raise ValueError(
            f"label_ids and temperature must be [{num_tokens}], got {tuple(label_ids.shape)} and "
            f"{tuple(temperature.shape)}"
        )
    return _TokenLogprob.apply(hidden, weight, label_ids, temperature)
