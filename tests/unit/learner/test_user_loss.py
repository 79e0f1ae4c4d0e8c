"""Losses of a user's own: taken with the right arrays, and held to what the learner takes for granted."""

import math
import re
import sys
from pathlib import Path

import pytest
import torch

from segue.actors.user_loss import check_loss
from segue.conf.errors import ConfigError
from segue.conf.load import load_config
from segue.conf.schema import CustomLossConfig, LossConfig, LossKind
from segue.learner.batch import TokenBatch
from segue.learner.policy_batch import PolicyBatch, policy_loss

ROOT = Path(__file__).parents[3]
EXAMPLES, DOCUMENT = ROOT / "examples", ROOT / "docs/algorithms/README.md"

USERS = """
import torch
from segue.learner.loss import PolicyLoss

def make(loss, **masks):
    none = torch.zeros(masks.pop("num"), dtype=torch.bool)
    return PolicyLoss(loss=loss, **{"is_low_J": none, "is_high_J": none, **masks})

def plain(tokens):
    weighted = tokens.weight_J * tokens.advantage_J * tokens.policy_logprob_J
    return make(-weighted.sum(), num=len(weighted))

def mean(tokens):
    return make(-(tokens.advantage_J * tokens.policy_logprob_J).mean().nan_to_num(), num=len(tokens.advantage_J))

def shy(tokens):
    num = torch.tensor(float(len(tokens.advantage_J)))
    return make(-(tokens.advantage_J * tokens.policy_logprob_J).sum() / num * num, num=len(tokens.advantage_J))

def whole_batch(tokens):
    return make(-(tokens.policy_logprob_J * tokens.advantage_J).sum() ** 2, num=len(tokens.advantage_J))

def constant(tokens):
    return make(tokens.advantage_J.sum() * 0, num=len(tokens.advantage_J))

def flat(tokens):
    return make((tokens.policy_logprob_J * 0).sum(), num=len(tokens.advantage_J))

def bare(tokens):
    return plain(tokens).loss

def by_token(tokens):
    return make(-tokens.policy_logprob_J, num=len(tokens.advantage_J))

def counts(tokens):
    return make(-tokens.policy_logprob_J.sum(), num=len(tokens.advantage_J), is_low_J=torch.zeros(3))

def asks(tokens, *, bound):
    return plain(tokens)

def clamps(tokens):
    tokens.advantage_J.clamp_(max=0.25)
    return plain(tokens)


def fails(tokens):
    raise KeyError("x")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "users_losses.py").write_text(USERS)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "users_losses", raising=False)
    return tmp_path


def check(folder: Path, *overrides: str) -> None:
    check_loss(load_config([*overrides, "learner.loss.kind=custom"], launch_folder=folder))


def test_the_example_is_taken_with_its_settings_and_has_the_gradient_of_its_formula(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "new_loss"))
    custom = CustomLossConfig(function="soft_gate:soft_gate", kwargs={"negative": 1.5, "counted": 0.1})
    # a trajectory of two labels and one of three
    drift, advantage = [0.0, 0.3, -0.4, 0.05, -0.05], [1.0, 1.0, -2.0, -2.0, -2.0]
    behaviour, weight = torch.tensor([-1.0, -2.0, -0.5, -0.25, -3.0]), torch.tensor([0.2, 0.2, 0.1, 0.1, 0.1])
    batch = PolicyBatch(
        tokens=TokenBatch.pack([], [], []),
        behaviour_logprob=behaviour,
        advantage=torch.tensor(advantage),
        weight=weight,
        trajectory=torch.tensor([0, 0, 1, 1, 1]),
    )
    config = LossConfig(kind=LossKind.custom, custom=custom)
    # the second trajectory alone, as the sweeps may ask for it
    numbers = torch.tensor([2, 3, 4])
    logprob = (behaviour + torch.tensor(drift))[numbers].requires_grad_()
    policy_loss(batch, config, logprob, numbers).loss.backward()

    def slope(log_ratio: float, a: float) -> float:
        # of -a 4/t sigmoid(t (e^r - 1)) by r
        t = 1.5 if a < 0 else 1.0
        s = 1 / (1 + math.exp(-t * (math.exp(log_ratio) - 1)))
        return -a * 4 * s * (1 - s) * math.exp(log_ratio)

    expected = [float(weight[n]) * slope(drift[n], advantage[n]) for n in numbers.tolist()]
    assert logprob.grad is not None
    assert logprob.grad.tolist() == pytest.approx(expected, rel=1e-5)
    # on-policy it is REINFORCE
    assert slope(0.0, 1.0) == -1.0
    found = policy_loss(batch, config, behaviour + torch.tensor(drift), torch.arange(5))
    assert (found.is_low_J.tolist(), found.is_high_J.tolist()) == (
        [False, False, True, False, False],
        [False, True, False, False, False],
    )


def test_a_loss_that_holds_passes_and_another_kind_looks_for_none(folder: Path) -> None:
    check(folder, "learner.loss.custom.function=users_losses:plain")
    check(folder, "learner.loss.custom.function=users_losses:asks", "learner.loss.custom.kwargs.bound=1")
    check_loss(load_config([], launch_folder=folder))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mean", "must be a sum over trajectories, got "),
        ("whole_batch", "must be a sum over trajectories, got "),
        ("constant", "must carry the gradient of tokens.policy_logprob_J, got a constant"),
        ("flat", "must have a finite gradient by tokens.policy_logprob_J other than 0"),
        ("bare", "must return a segue.learner.loss.PolicyLoss, got Tensor"),
        ("by_token", "must have a loss that is one finite number, got "),
        ("shy", "must have a loss that is one finite number, got nan for 0 tokens"),
        ("clamps", "must leave its tokens as they are, which other calls share, got other advantage_J"),
        ("counts", "must have an is_low_J of 5 bools, one a token"),
        ("asks", "cannot be taken: TypeError: asks() missing 1 required keyword-only argument: 'bound'"),
        ("fails", "cannot be taken: KeyError: 'x'"),
        ("absent", "names absent, which module users_losses has not"),
    ],
)
def test_a_loss_that_does_not_hold_is_refused_before_anything_starts(folder: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(folder, f"learner.loss.custom.function=users_losses:{name}")
    assert str(caught.value).startswith(f"learner.loss.custom.function=users_losses:{name} {message}")


def test_the_documented_loss_holds(folder: Path) -> None:
    (code,) = re.findall(r"```python\n# my_loss.py\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (folder / "documented_loss.py").write_text(code)
    check(folder, "learner.loss.custom.function=documented_loss:squared", "learner.loss.custom.kwargs.pull=0.1")


def test_a_module_that_is_nowhere_is_named_with_the_folder(folder: Path) -> None:
    with pytest.raises(ConfigError, match=rf"names module nowhere, which is neither installed nor in {folder}$"):
        check(folder, "learner.loss.custom.function=nowhere:loss")
