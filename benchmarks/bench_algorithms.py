"""What parts of the algorithms are worth in a toy (toy_turns.py), three seeds each:

credit:     a critic's advantages of turns, and turn returns, against group means
advantages: the other advantages against group means
staleness:  K2.5's masked ratio against PPO's clip where what plays is four learner steps old, and where it is not
losses:     every loss where what plays is four learner steps old
balance:    router biases that move against frozen ones
reuse:      groups that train twice against groups that train once, at as many played groups

python benchmarks/bench_algorithms.py                     # forty minutes on one core; writes the report
python benchmarks/bench_algorithms.py --only reuse        # the report of these questions alone, which is named for them
python benchmarks/bench_algorithms.py --only balance --no-report
"""

from collections.abc import Mapping

import numpy as np
from report import Row
from toy_questions import put_questions
from toy_turns import Setting, learn

from segue.conf.schema import AdvantageConfig, AdvantageKind, GspoConfig, LossConfig, LossKind

_MEAN = AdvantageConfig(kind=AdvantageKind.group_mean)
_CLIP, _MASK = LossConfig(kind=LossKind.ppo_clip), LossConfig(kind=LossKind.masked_ratio)
# off policy the rate decides how far ratios drift
_FAST = 4e-3
_LOSSES = {
    "masked_ratio": _MASK,
    "ppo_clip": _CLIP,
    "cispo": LossConfig(kind=LossKind.cispo),
    # bounds of a mean over twelve tokens, and not over thousands
    "gspo": LossConfig(kind=LossKind.gspo, gspo=GspoConfig(clip_low=0.05, clip_high=0.05)),
    "reinforce": LossConfig(kind=LossKind.reinforce),
}
_ADVANTAGES = ("group_mean", "grpo", "rloo", "reinforce_pp", "token_gae")
QUESTIONS: Mapping[str, Mapping[str, Setting]] = {
    "credit": {
        "group_mean": Setting(advantage=_MEAN, loss=_CLIP),
        "turn_returns": Setting(advantage=AdvantageConfig(kind=AdvantageKind.turn_returns), loss=_CLIP),
        "turn_gae": Setting(advantage=AdvantageConfig(kind=AdvantageKind.turn_gae), loss=_CLIP),
    },
    "advantages": {
        name: Setting(advantage=AdvantageConfig(kind=AdvantageKind(name)), loss=_CLIP) for name in _ADVANTAGES
    },
    "staleness": {
        "ppo_clip, 0 steps": Setting(advantage=_MEAN, loss=_CLIP, lr=_FAST),
        "masked_ratio, 0 steps": Setting(advantage=_MEAN, loss=_MASK, lr=_FAST),
        "ppo_clip, 4 steps": Setting(advantage=_MEAN, loss=_CLIP, lr=_FAST, age=4),
        "masked_ratio, 4 steps": Setting(advantage=_MEAN, loss=_MASK, lr=_FAST, age=4),
    },
    "losses": {name: Setting(advantage=_MEAN, loss=loss, lr=_FAST, age=4) for name, loss in _LOSSES.items()},
    "balance": {
        "frozen": Setting(advantage=_MEAN, loss=_MASK),
        "live": Setting(advantage=_MEAN, loss=_MASK, is_balanced=True),
    },
    "reuse": {
        "once": Setting(advantage=_MEAN, loss=_MASK),
        "once, batches of half": Setting(advantage=_MEAN, loss=_MASK, num_groups=1),
        "twice": Setting(advantage=_MEAN, loss=_MASK, max_uses=2),
    },
}


def measure(label: str, setting: Setting, seed: int, num_groups: int) -> list[Row]:
    """Rows of one run."""
    learnt = learn(setting, seed, num_groups)
    tail = len(learnt.earned) // 6
    rows = [
        Row(name=f"{label}: earned, all steps", value=float(np.mean(learnt.earned)), unit="share"),
        Row(name=f"{label}: earned, last {tail}", value=float(np.mean(learnt.earned[-tail:])), unit="share"),
        Row(name=f"{label}: violation, last {tail}", value=float(np.mean(learnt.violation[-tail:])), unit=""),
    ]
    if learnt.explained:
        explained = float(np.mean(learnt.explained[-tail:]))
        rows.append(Row(name=f"{label}: explained variance, last {tail}", value=explained, unit=""))
    return rows


if __name__ == "__main__":
    put_questions("algorithms", __doc__, QUESTIONS, measure, length=("--groups", 240, "that each run plays"))
