"""What budgets of effort, a judge and normalisations do in a toy (toy_looks.py, toy_judge.py), three seeds each:

effort:        episodes beyond their budget of sampled tokens earn -1, against a right answer's 1 alone
judge:         what another model says of an episode is all that is earned, against the truth
normalisation: what a token weighs, where episodes are of many lengths

python benchmarks/bench_rewards.py               # a quarter of an hour on one core; writes the report
python benchmarks/bench_rewards.py --only effort           # the report of this question alone, which is named for it
python benchmarks/bench_rewards.py --only effort --no-report
"""

from collections.abc import Collection, Mapping

import numpy as np
from report import Row
from toy_judge import accuracy, make_judge
from toy_looks import Setting, learn, warm_start
from toy_questions import put_questions

from segue.conf.schema import EffortConfig, LossConfig, NormalisationKind
from segue.rollout.rewards.panel import RewardPanel

_BUDGETS = EffortConfig(episodes=64, percentile=0.25, anneal_steps=24)
# of a step: 16 episodes of about five
_STEP_TOKENS = 80
# to shorten there must be what is solved already, to learn from a judge what is not
_KNOWS, _ERRS = 0.95, 0.5
QUESTIONS: Mapping[str, Mapping[str, Setting]] = {
    "effort": {"no budgets": Setting(skill=_KNOWS), "budgets": Setting(skill=_KNOWS, effort=_BUDGETS)},
    "judge": {"truth": Setting(skill=_ERRS), "judge": Setting(skill=_ERRS, is_judged=True)},
    "normalisation": {
        kind.value: Setting(skill=_ERRS, loss=LossConfig(normalisation=kind, constant_tokens=_STEP_TOKENS))
        for kind in NormalisationKind
    },
}
WARM_STEPS, JUDGE_STEPS = 60, 160


class Bench:
    """Measures runs, with a judge that is made once."""

    def __init__(self) -> None:
        self._judge: RewardPanel | None = None

    def make_judge(self, chosen: Collection[str]) -> list[Row]:
        """Make it where a question asks for it; returns how good it is."""
        if "judge" not in chosen:
            return []
        self._judge = make_judge(0, JUDGE_STEPS)
        value = accuracy(self._judge, 256, seed=1)
        return [Row(name="judge: right about 256 episodes that it was not taught", value=value, unit="share")]

    def measure(self, label: str, setting: Setting, seed: int, num_steps: int) -> list[Row]:
        """Rows of one run."""
        judge = self._judge if setting.is_judged else None
        learnt = learn(setting, warm_start(seed, WARM_STEPS, setting.skill), seed, num_steps, judge)
        tail = num_steps // 6
        figures = {
            "success": (learnt.success, "share"),
            "sampled": (learnt.num_sampled, "tokens"),
            "judge is right": (learnt.agreement, "share"),
        }
        return [
            Row(name=f"{label}: {figure}, {part} {tail}", value=float(np.mean(span)), unit=unit)
            for figure, (values, unit) in figures.items()
            for part, span in (("first", values[:tail]), ("last", values[-tail:]))
            if span
        ]


if __name__ == "__main__":
    bench = Bench()
    put_questions(
        "rewards", __doc__, QUESTIONS, bench.measure, length=("--steps", 48, "of each run"), before=bench.make_judge
    )
