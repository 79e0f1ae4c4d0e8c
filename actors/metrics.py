"""Every metric that a run emits: the one list. `docs/metrics.md` has its table from here.

Names read `area/thing/stat`; `<…>` stands for one part that the run fills in: a reward term, a check, a class. A value
that a step cannot have (no segment ran twice, nothing was masked) is null in `metrics.jsonl` and absent elsewhere.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class When(Enum):
    """At which events a metric is emitted."""

    step = "step"
    """Every learner step of `train` and `pretrain`."""
    train_step = "train step"
    """Every step of `train`."""
    evaluation = "evaluation"


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the list."""

    name: str
    unit: str
    when: When
    meaning: str
    """Formula or definition."""
    reading: str
    """Healthy range, and what a bad value means."""


_S, _T, _E = When.step, When.train_step, When.evaluation

# fmt: off
METRICS: tuple[Metric, ...] = (
    Metric("batch/success/mean", "share", _S, "episodes of the step's groups that solved their task",
           "rises; falls for long: lower the learning rate"),
    Metric("batch/reward/mean", "reward", _S, "mean over episodes of the sum of all terms",
           "rises"),
    Metric("batch/reward/std", "reward", _S, "standard deviation over episodes",
           "0: nothing to learn from"),
    Metric("batch/reward_term/<term>", "reward", _S, "mean over episodes of one term, added up over turns and outcome",
           "which part of the reward moves"),
    Metric("batch/check/<name>", "share", _S, "episodes at whose end the environment's true-or-false entry held",
           "`query_correct`: tool use apart from answer form"),
    Metric("batch/tokens/mean", "tokens", _S, "mean length of a trajectory",
           "sudden growth: rambling turns"),
    Metric("batch/sampled_tokens/mean", "tokens", _S, "mean tokens that the author of the turns wrote",
           "as above"),
    Metric("batch/turns/mean", "turns", _S, "mean model calls an episode",
           "above the task's need: detours"),
    Metric("batch/malformed/share", "share", _S, "episodes ended by a turn outside the grammar",
           "near 0; grows: the policy is falling apart"),
    Metric("batch/truncated/share", "share", _S, "episodes cut by length, turns or time",
           "near 0, else raise the budget"),
    Metric("batch/infrastructure/share", "share", _S,
           "episodes ended by sandbox, infrastructure or engine; never rewarded",
           "0; see `summary.json` for causes"),
    Metric("batch/replayed/share", "share", _S, "episodes that had to be played again",
           "0"),
    Metric("buffer/ready/groups", "groups", _S, "groups that wait for a step after this one",
           "0 at bound 0"),
    Metric("buffer/in_flight/groups", "groups", _S, "groups being played when the step ended",
           "0 at bound 0"),
    Metric("buffer/dropped/groups", "groups", _S, "groups dropped so far, for any reason",
           "near 0; reasons in `summary.json`"),
    Metric("loop/step/wall_s", "s", _S, "from the request for groups to the end of the step",
           "steady"),
    Metric("loop/wait/wall_s", "s", _S, "of it, waiting for groups",
           "near 0 with staleness at or above 1: the learner is the slow part"),
    Metric("loop/learn/wall_s", "s", _S, "of it, in the learner's step",
           "steady"),
    Metric("loop/eta/s", "s", _S, "steps left times the mean of the last ten",
           "falls"),
    Metric("usage/cpu/s", "s", _S, "CPU seconds of all the run's processes on this machine so far",
           "grows steadily"),
    Metric("usage/memory/bytes", "bytes", _S, "proportional set size of all of them",
           "flat; grows: a leak"),
    Metric("usage/memory/peak_bytes", "bytes", _S, "largest reading so far",
           "flat"),
    Metric("loop/publish/wall_s", "s", _T, "from the learner's put to the last rollout actor's copy",
           "small beside the step"),
    Metric("weights/update/bytes", "bytes", _T, "size of the published buffer",
           "constant"),
    Metric("rollout/prefill/tokens_per_s", "tokens/s", _T,
           "given tokens fed ÷ seconds spent feeding, all rollout actors",
           "steady"),
    Metric("rollout/decode/tokens_per_s", "tokens/s", _T, "tokens sampled ÷ seconds spent decoding, all rollout actors",
           "falls: fewer sessions decode together"),
    Metric("rollout/missed/sessions", "sessions", _T, "states rebuilt from tokens in this step",
           "0; else raise rollout.state_budget_mb"),
    Metric("staleness/age/mean_steps", "steps", _T,
           "learner step minus the step that sampled, mean over trained tokens",
           "at most train.max_staleness; 0 at bound 0"),
    Metric("staleness/age/max_steps", "steps", _T, "the oldest token that trained",
           "never above train.max_staleness"),
    Metric("staleness/masked/share", "share", _T, "trainable tokens beyond the bound, taken out of training",
           "near 0; grows: rollout is too slow for the bound"),
    Metric("eval/wall/s", "s", _E, "one evaluation of one mode",
           "steady"),
    Metric("eval/<mode>/success", "share", _E,
           "held-out episodes that solved their task; mode: sampled, greedy, or a variant",
           "rises"),
    Metric("eval/<mode>/reward", "reward", _E, "mean",
           "rises"),
    Metric("eval/<mode>/tokens", "tokens", _E, "mean length of a trajectory",
           "steady"),
    Metric("eval/<mode>/turns", "turns", _E, "mean model calls an episode",
           "steady"),
    Metric("eval/<mode>/check/<name>", "share", _E, "as batch/check",
           "`query_correct`: tool use apart from answer form"),
    Metric("eval/<mode>/class/<class>", "share", _E, "success of one question class",
           "which class lags; few episodes, so wide"),
)
# fmt: on


def pattern_of(name: str) -> str:
    """The listed name that an emitted one belongs to.

    Raises:
        KeyError: the list has no such metric.
    """
    parts = name.split("/")
    for metric in METRICS:
        wanted = metric.name.split("/")
        if len(wanted) == len(parts) and all(w == p or w[0] == "<" for w, p in zip(wanted, parts, strict=True)):
            return metric.name
    raise KeyError(f"metric {name} must stand in segue.actors.metrics")


def table(metrics: Iterable[Metric] = METRICS) -> str:
    """The list as the table of `docs/metrics.md`."""
    lines = ["| metric | unit | when | meaning | reading |", "|---|---|---|---|---|"]
    lines += [f"| `{m.name}` | {m.unit} | {m.when.value} | {m.meaning} | {m.reading} |" for m in metrics]
    return "\n".join(lines)
