"""What a step tells about its tokens: sums on each rank, joined over ranks, then metrics.

Legend: J labels of this rank, L layers with routed experts, E experts.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from segue.conf.schema import LossConfig
from segue.learner.balance import load_violation
from segue.learner.policy_batch import PolicyBatch, policy_loss

Metrics = dict[str, float | None]


def policy_sums(logprob_J: Tensor, entropy_J: Tensor, batch: PolicyBatch, config: LossConfig) -> dict[str, Tensor]:
    """Sums over this rank's labels, which are those of `batch`."""
    loss = policy_loss(batch, config, logprob_J, torch.arange(len(logprob_J)))
    log_ratio_J = (logprob_J - batch.behaviour_logprob).double()
    ratio_J = log_ratio_J.exp()
    return {
        "tokens": torch.tensor(float(len(logprob_J)), dtype=torch.float64),
        "ratio": ratio_J.sum(),
        "low": loss.is_low_J.double().sum(),
        "high": loss.is_high_J.double().sum(),
        "gap": log_ratio_J.abs().sum(),
        # non-negative estimate of KL(behaviour || policy) from samples of the behaviour
        "kl": (ratio_J - 1.0 - log_ratio_J).sum(),
        "entropy": entropy_J.double().sum(),
    }


def policy_metrics(sums: Mapping[str, float], max_gap: float) -> Metrics:
    """Means over the trained tokens of all ranks."""
    num_tokens = sums["tokens"]
    return {
        "policy/ratio/mean": sums["ratio"] / num_tokens,
        "policy/clipped_low/share": sums["low"] / num_tokens,
        "policy/clipped_high/share": sums["high"] / num_tokens,
        "policy/logprob_gap/mean_nats": sums["gap"] / num_tokens,
        "policy/logprob_gap/max_nats": max_gap,
        "policy/kl_estimate/mean_nats": sums["kl"] / num_tokens,
        "policy/entropy/mean_nats": sums["entropy"] / num_tokens,
    }


def router_metrics(expert_load_LE: Tensor) -> Metrics:
    """Balance of the step's tokens."""
    violation = load_violation(expert_load_LE)
    return {
        "router/violation/max": max(violation),
        "router/violation/mean": sum(violation) / len(violation),
    }


def join_sums(sums: Mapping[str, Tensor], sum_over_ranks: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """The same sums over all ranks, in one collective."""
    joined = sum_over_ranks(torch.stack([value.double() for value in sums.values()])).tolist()
    return dict(zip(sums, joined, strict=True))
