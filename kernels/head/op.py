"""Output head for training: log-probability and entropy per token without the logits of all tokens.

Letters: T tokens, D model width, Y vocabulary; B tokens of a tile.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

TILE_BYTES = 1 << 21
"""Upper size of one logits tile; a few such tiles are alive at once."""


class _TokenLogprob(torch.autograd.Function):
    """Walks token tiles; keeps the inputs and the entropy, and computes the logits again in backward."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, label_ids: Tensor, temperature: Tensor) -> Any:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        weight_YD = weight.to(dtype)
        logprob_T = torch.empty(hidden.shape[0], dtype=dtype, device=hidden.device)
        entropy_T = torch.empty_like(logprob_T)
        for tile in _tiles(hidden.shape[0], weight_YD):
            logprob_BY = _tile_logprob(_cooled(hidden[tile], temperature[tile], dtype), weight_YD)
            torch.gather(logprob_BY, 1, label_ids[tile].unsqueeze(1), out=logprob_T[tile].unsqueeze(1))
            torch.linalg.vecdot(logprob_BY.exp(), logprob_BY, out=entropy_T[tile])
        entropy_T.neg_()
        ctx.save_for_backward(hidden, weight, label_ids, temperature, entropy_T)
        return logprob_T, entropy_T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_logprob_T, grad_entropy_T = grads
        hidden, weight, label_ids, temperature, entropy_T = ctx.saved_tensors
        dtype = entropy_T.dtype
        weight_YD = weight.to(dtype)
        grad_hidden = torch.empty_like(hidden)
        grad_weight_YD = torch.zeros_like(weight_YD)
        for tile in _tiles(hidden.shape[0], weight_YD):
            cooled_BD = _cooled(hidden[tile], temperature[tile], dtype)
            logprob_BY = _tile_logprob(cooled_BD, weight_YD)
            # with z the tempered logits: d logprob / dz = onehot - p, d entropy / dz = -p (log p + entropy)
            grad_logprob_B1, grad_entropy_B1 = grad_logprob_T[tile].unsqueeze(1), grad_entropy_T[tile].unsqueeze(1)
            p_BY = logprob_BY.exp()
            constant_B1 = -(grad_entropy_B1 * entropy_T[tile].unsqueeze(1)) - grad_logprob_B1
            dz_BY = logprob_BY.mul_(-grad_entropy_B1).add_(constant_B1).mul_(p_BY)
            dz_BY.scatter_add_(1, label_ids[tile].unsqueeze(1), grad_logprob_B1)
            grad_weight_YD.addmm_(dz_BY.t(), cooled_BD)
            grad_hidden[tile] = (dz_BY @ weight_YD).div_(temperature[tile].to(dtype).unsqueeze(1))
        return grad_hidden, grad_weight_YD.to(weight.dtype), None, None


def _tiles(num_tokens: int, weight_YD: Tensor) -> Iterator[slice]:
    size = max(1, TILE_BYTES // (weight_YD.shape[0] * weight_YD.element_size()))
    return (slice(start, start + size) for start in range(0, num_tokens, size))


def _cooled(hidden_BD: Tensor, temperature_B: Tensor, dtype: torch.dtype) -> Tensor:
    # dividing the hidden row costs D instead of Y operations a token
    return hidden_BD.to(dtype) / temperature_B.to(dtype).unsqueeze(1)


def _tile_logprob(cooled_BD: Tensor, weight_YD: Tensor) -> Tensor:
    return torch.log_softmax(cooled_BD @ weight_YD.t(), dim=-1)


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
