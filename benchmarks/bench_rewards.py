"""What budgets of effort, a judge and normalisations do in a toy (toy_looks.py, toy_judge.py), three seeds each:

effort:        episodes beyond their budget of sampled tokens earn -1, against a right answer's 1 alone
judge:         what another model says of an episode is all that is earned, against the truth
normalisation: what a token weighs, where episodes are of many lengths

python benchmarks/bench_rewards.py               # a quarter of an hour on one core; writes the report
python benchmarks/bench_rewards.py --only effort           # the report of this question alone, which is named for it
python benchmarks/bench_rewards.py --only effort --no-report
"""

import argparse
import time
from collections.abc import Mapping

import numpy as np
import torch
from report import Row, refuse_changes, topic_of, write_report
from toy_judge import accuracy, make_judge
from toy_looks import Setting, learn, warm_start

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


def measure(question: str, name: str, seed: int, num_steps: int, judge: RewardPanel | None) -> list[Row]:
    """Rows of one run."""
    begun = time.process_time()
    setting = QUESTIONS[question][name]
    learnt = learn(
        setting, warm_start(seed, WARM_STEPS, setting.skill), seed, num_steps, judge if setting.is_judged else None
    )
    tail = num_steps // 6
    figures = {
        "success": (learnt.success, "share"),
        "sampled": (learnt.num_sampled, "tokens"),
        "judge is right": (learnt.agreement, "share"),
    }
    rows = [
        Row(name=f"{question}: {name}, seed {seed}: {figure}, {part} {tail}", value=float(np.mean(span)), unit=unit)
        for figure, (values, unit) in figures.items()
        for part, span in (("first", values[:tail]), ("last", values[-tail:]))
        if span
    ]
    print(f"{question}: {name}, seed {seed}: {time.process_time() - begun:.0f} CPU s", flush=True)
    return rows


def main() -> None:
    """Learn, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=48, help="of each run (48)")
    parser.add_argument("--seeds", type=int, default=3, help="of each setting (3)")
    parser.add_argument("--only", nargs="+", choices=list(QUESTIONS), default=list(QUESTIONS))
    parser.add_argument("--no-report", action="store_true", help="print the rows and write nothing")
    args = parser.parse_args()
    if not args.no_report:
        refuse_changes()
    torch.set_num_threads(1)
    rows = []
    judge = None
    if "judge" in args.only:
        judge = make_judge(0, JUDGE_STEPS)
        value = accuracy(judge, 256, seed=1)
        rows.append(Row(name="judge: right about 256 episodes that it was not taught", value=value, unit="share"))
    rows += [
        row
        for question in args.only
        for seed in range(args.seeds)
        for name in QUESTIONS[question]
        for row in measure(question, name, seed, args.steps, judge)
    ]
    if args.no_report:
        for row in rows:
            print(f"{row.name:64} {row.value:8.3f}")
    else:
        print(write_report(topic_of("rewards", args.only, QUESTIONS), rows))


if __name__ == "__main__":
    main()
