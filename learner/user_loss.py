"""Losses of a user's own: what they are given, how they are found, and what they must hold.

    # my_loss.py
    from segue.learner.loss import PolicyLoss

    def squared(tokens):
        ...
        return PolicyLoss(loss=…, is_low_J=…, is_high_J=…)

    segue train learner.loss.kind=custom learner.loss.custom.function=my_loss:squared

Legend: J trained tokens, of any number of whole trajectories.
"""

import importlib
from dataclasses import dataclass, fields
from typing import Protocol

import torch
from torch import Tensor

from segue.conf.schema import CustomLossConfig
from segue.learner.loss import PolicyLoss

# of a sum over trajectories, by its parts, as a share of the largest
_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedTokens:
    """What a loss is a function of: whole trajectories, one after another. All but the first is constant."""

    policy_logprob_J: Tensor
    """[J] float32, nats, under the weights in training; carries the gradient."""
    behaviour_logprob_J: Tensor
    """[J] float32, nats, of the distribution sampled from."""
    advantage_J: Tensor
    """[J] float32, reward units; `learner.advantage`."""
    weight_J: Tensor
    """[J] float32: each token's share in the loss of the whole step; `learner.loss.normalisation`."""
    trajectory_J: Tensor
    """[J] int64: which trajectory a token belongs to; those of one stand together."""


class UserLoss(Protocol):
    """A loss: pure, and a sum over trajectories, so that any split of a batch into whole ones gives the same total."""

    def __call__(self, tokens: TrainedTokens, **settings: object) -> PolicyLoss:
        """The loss of these tokens; there may be none."""


def user_loss(tokens: TrainedTokens, config: CustomLossConfig) -> PolicyLoss:
    """The loss that the configuration names, of these tokens.

    Args:
        config: names a function of a module that can be imported: who starts the learner sees to the path.
    """
    assert config.function is not None
    module, _, name = config.function.partition(":")
    function: UserLoss = getattr(importlib.import_module(module), name)
    return function(tokens, **config.kwargs)


def check_user_loss(config: CustomLossConfig) -> None:
    """Hold a loss to what the learner takes for granted, on a few tokens of two trajectories.

    Raises:
        ValueError: it does not hold; the message says what must.
        Exception: whatever the loss raises.
    """
    tokens, untouched = _example(), _example()
    whole = _checked(tokens, config)
    changed = [field.name for field in fields(tokens) if not _same(tokens, untouched, field.name)]
    if changed:
        raise ValueError(f"must leave its tokens as they are, which other calls share, got other {', '.join(changed)}")
    numbers = [torch.nonzero(tokens.trajectory_J == n).flatten() for n in (0, 1)]
    total, *parts = (loss.item() for loss in (whole, *(_checked(_part(tokens, chosen), config) for chosen in numbers)))
    apart = sum(parts)
    if abs(apart - total) > _TOLERANCE * max(map(abs, (total, *parts))):
        got = f"got {total:g} for two and {apart:g} for both taken one at a time"
        raise ValueError(f"must be a sum over trajectories, {got}")
    if not whole.requires_grad:
        raise ValueError("must carry the gradient of tokens.policy_logprob_J, got a constant")
    (gradient_J,) = torch.autograd.grad(whole, tokens.policy_logprob_J, allow_unused=True)
    if gradient_J is None or not gradient_J.isfinite().all() or not gradient_J.any():
        raise ValueError("must have a finite gradient by tokens.policy_logprob_J other than 0")
    # a rank may have nothing to train
    _checked(_part(tokens, numbers[0][:0]), config)


def _same(tokens: TrainedTokens, others: TrainedTokens, name: str) -> bool:
    return torch.equal(getattr(tokens, name), getattr(others, name))


def _checked(tokens: TrainedTokens, config: CustomLossConfig) -> Tensor:
    found = user_loss(tokens, config)
    if not isinstance(found, PolicyLoss):
        raise ValueError(f"must return a segue.learner.loss.PolicyLoss, got {type(found).__name__}")
    num_tokens = len(tokens.policy_logprob_J)
    if not isinstance(found.loss, Tensor) or found.loss.shape != () or not found.loss.isfinite():
        raise ValueError(f"must have a loss that is one finite number, got {found.loss} for {num_tokens} tokens")
    for name, mask in (("is_low_J", found.is_low_J), ("is_high_J", found.is_high_J)):
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != (num_tokens,):
            raise ValueError(f"must have an {name} of {num_tokens} bools, one a token")
    return found.loss


def _example() -> TrainedTokens:
    behaviour_J = torch.tensor([-0.5, -1.0, -2.0, -0.25, -1.5])
    drift_J = torch.tensor([0.0, 0.05, -0.4, 0.6, -0.05])
    return TrainedTokens(
        policy_logprob_J=(behaviour_J + drift_J).requires_grad_(),
        behaviour_logprob_J=behaviour_J,
        advantage_J=torch.tensor([0.5, 0.5, 0.5, -0.5, -0.5]),
        weight_J=torch.full((5,), 0.2),
        trajectory_J=torch.tensor([0, 0, 0, 1, 1]),
    )


def _part(tokens: TrainedTokens, numbers_J: Tensor) -> TrainedTokens:
    return TrainedTokens(
        policy_logprob_J=tokens.policy_logprob_J[numbers_J],
        behaviour_logprob_J=tokens.behaviour_logprob_J[numbers_J],
        advantage_J=tokens.advantage_J[numbers_J],
        weight_J=tokens.weight_J[numbers_J],
        trajectory_J=tokens.trajectory_J[numbers_J],
    )
