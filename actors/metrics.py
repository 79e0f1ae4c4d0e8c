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
    stage = "curriculum"
    """Every measurement of a run in stages (`pretrain.curriculum`)."""


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


_S, _T, _E, _C = When.step, When.train_step, When.evaluation, When.stage

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
    Metric("batch/environment_error/share", "share", _S, "episodes whose own call broke their environment; trained on",
           "0; else mend the environment: the cause stands in `info` of the episode's file in `groups/`"),
    Metric("batch/infrastructure/share", "share", _S,
           "episodes ended by sandbox, infrastructure or engine; never rewarded",
           "0; each cause stands in `info` of the episode's file in `groups/`"),
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
    Metric("loop/faults/count", "faults", _S, "what went wrong and was mended in this launch; `summary.json` lists it",
           "0; grows steadily: see who it is"),
    Metric("update/loss/total", "nats", _S,
           "loss of the step over all ranks, as normalised; imitation: mean cross-entropy",
           "imitation: falls; reinforcement: near 0, no trend to expect"),
    Metric("update/learning_rate/value", "", _S, "learning rate of the step",
           "rises, then goes as learner.optimizer.schedule says"),
    Metric("update/gradient/norm", "", _S, "global gradient norm before clipping",
           "spikes: look at the batch's longest trajectories"),
    Metric("update/gradient/norm/<component>", "", _S,
           "the same of one part (embedding, head, residual, norm, kda, mla, dense, router, experts, shared, critic)",
           "one part spikes alone: look there; router or residual above all others: lower the learning rate"),
    Metric("policy/entropy/mean_nats", "nats", _S, "entropy of the distribution at trained tokens, mean",
           "falls slowly; to 0 early: the policy stops exploring"),
    Metric("router/violation/max", "over the mean", _S,
           "load of the busiest expert ÷ mean load − 1, largest over layers",
           "falls while the balance is live"),
    Metric("router/violation/mean", "over the mean", _S, "the same, mean over layers",
           "as above"),
    Metric("router/bias_kl/mean_nats", "nats", _S,
           "what the step's move of the router biases alone changes: estimate of KL(before ‖ after), mean over tokens",
           "small beside policy/kl_estimate; null where frozen, and in nine steps of ten"),
    Metric("attention/max_logit/<layer>/<head>", "", _S,
           "largest score before the softmax of a head of latent attention over the step's tokens, layers and heads "
           "from 0; with learner.measure_max_logits or qk_clip only",
           "level; grows without end: set qk_clip near its height"),
    Metric("attention/clipped/heads", "heads", _S, "heads, over all layers, that qk_clip scaled back in this step",
           "0 most of the time; null without qk_clip"),
    Metric("learner/gauge/max_nats", "nats", _S,
           "largest difference between the log-probabilities of a segment's two runs",
           "0 exactly; null where no segment ran twice"),
    Metric("update/applied/count", "updates", _S, "whether the step had anything to train and updated the weights",
           "1; 0 for long: every group is solved or hopeless"),
    Metric("learner/trajectories/run", "trajectories", _S, "trajectories that went through the model",
           "small share of the batch: most groups carry no advantage"),
    Metric("learner/tokens/run", "tokens", _S, "tokens of these, prompts and observations included",
           "steady"),
    Metric("learner/tokens/counted", "tokens", _S, "trained tokens: the denominator of the loss",
           "steady"),
    Metric("learner/tokens/per_s", "tokens/s", _S, "learner/tokens/run ÷ seconds of the update",
           "steady"),
    Metric("learner/micro_steps/swept", "micro-steps", _S, "micro-steps of segments that run twice, on rank 0",
           "0 while trajectories fit a segment"),
    Metric("learner/micro_steps/last", "micro-steps", _S, "micro-steps of last segments, on rank 0",
           "tokens ÷ learner.micro_step_tokens, rounded up"),
    Metric("learner/trajectories/skipped", "trajectories", _T, "trajectories of groups without advantage, not run",
           "near all: tasks are too easy or too hard"),
    Metric("learner/trajectories/infrastructure", "trajectories", _T,
           "trajectories masked after infrastructure failures",
           "0"),
    Metric("learner/tokens/stale", "tokens", _T, "tokens masked because they are older than the bound",
           "0 at bound 0"),
    Metric("policy/ratio/mean", "", _T, "policy ÷ behaviour probability of trained tokens, mean",
           "near 1"),
    Metric("policy/clipped_low/share", "share", _T,
           "trained tokens whose ratio (gspo: their trajectory's) was too low for the loss: masked, or held at a bound",
           "near 0 at bound 0; grows with staleness, soonest in gspo"),
    Metric("policy/clipped_high/share", "share", _T, "likewise too high",
           "as above"),
    Metric("policy/logprob_gap/mean_nats", "nats", _T, "|policy − behaviour log-probability|, mean over trained tokens",
           "at bound 0 rounding only: below 1e-4 in fp32"),
    Metric("policy/logprob_gap/max_nats", "nats", _T, "the same, largest",
           "jumps at a flipped route"),
    Metric("policy/kl_estimate/mean_nats", "nats", _T,
           "mean of ratio − 1 − log ratio: estimate of KL(behaviour ‖ policy)",
           "near 0; grows with staleness"),
    Metric("critic/loss/mean", "reward²", _T,
           "half the squared distance of values from their targets, as normalised, before its coefficient; "
           "this and the next four null without a critic",
           "falls at first, then follows the rewards"),
    Metric("critic/explained_variance/share", "share", _T,
           "1 − variance of (target − value) ÷ variance of targets, over decisions weighted as in the loss; "
           "null where targets are equal",
           "rises from 0; negative: worse than their mean, lower learner.critic.lr_ratio"),
    Metric("critic/value/mean", "reward", _T, "values before trained decisions, mean weighted as in the loss",
           "near critic/target/mean after the warm-up"),
    Metric("critic/target/mean", "reward", _T, "what these should have been: returns with target_lambda 1, likewise",
           "rises with the reward"),
    Metric("critic/clipped/share", "share", _T,
           "trained decisions whose value had gone learner.critic.clip towards its target since the group's first use",
           "small; 0 without a clip and at first uses"),
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
    Metric("rollout/decode/tokens_per_s", "tokens/s", _T,
           "tokens fed one at a time ÷ seconds spent decoding, all rollout actors",
           "falls: fewer sessions decode together"),
    Metric("rollout/missed/sessions", "sessions", _T, "states rebuilt from tokens in this step",
           "0; else raise rollout.state_budget_mb"),
    Metric("env/episodes/begun", "episodes", _S,
           "episodes begun on env workers since the step before, evaluations included; as all env/…, over all actors",
           "steady"),
    Metric("env/episodes/failed", "episodes", _S, "of these or earlier ones, ended by their environment's fault",
           "0; a call that raised, ran past its deadline or took its worker along"),
    Metric("env/episodes/restored", "episodes", _S,
           "carried over to a new worker: a neighbour took theirs along, or they have a journal",
           "0; else look at env/calls/expired and env/workers/died"),
    Metric("env/episodes/lost", "episodes", _S,
           "ended by infrastructure (not carried over, no worker, or what they rely on failed) and played again",
           "0; else look at env/workers/died, and whether the environment repeats itself from its seed"),
    Metric("env/calls/answered", "calls", _S, "calls answered: resets, steps and demonstrators' turns",
           "steady"),
    Metric("env/calls/expired", "calls", _S, "calls past env.call_timeout_s",
           "0; else the environment hangs, or raise the deadline"),
    Metric("env/workers/died", "workers", _S, "env workers found dead",
           "0; else the environment crashes, or the machine is out of memory"),
    Metric("env/workers/replaced", "workers", _S, "env workers started beyond the first ones",
           "0"),
    Metric("reward/terms/computed", "terms", _S,
           "values of rollout.reward_terms since the step before, evaluations included; "
           "as all reward/…, over all actors",
           "terms times episodes"),
    Metric("reward/terms/failed", "terms", _S,
           "tries of terms that raised or gave no number within bounds; after the third their episode is played again",
           "0; each cause stands in the log, and in `info` of an episode that was masked for it"),
    Metric("reward/terms/expired", "terms", _S, "tries that gave nothing within their timeout_s; likewise",
           "0; else raise timeout_s, or ask less of the judge"),
    Metric("reward/term/wall_s", "s", _S,
           "mean seconds of one term of one episode, waits for a place in the engine included",
           "steady; grows: the judge is the slow part"),
    Metric("effort/budget/mean_tokens", "tokens", _T,
           "tokens that an episode may sample, mean over those with a budget; null while there are none",
           "falls from train.effort.tau_start to tau_end times what tasks take"),
    Metric("effort/over_budget/share", "share", _T, "of these, sampled more and earned -1",
           "small, and falls while budgets stay; rises with success falling: budgets fall too fast or too far"),
    Metric("staleness/age/mean_steps", "steps", _T,
           "learner step minus the step that sampled, mean over trained tokens",
           "at most train.max_staleness; 0 at bound 0"),
    Metric("staleness/age/max_steps", "steps", _T, "the oldest token that trained",
           "never above train.max_staleness"),
    Metric("staleness/masked/share", "share", _T, "trainable tokens beyond the bound, taken out of training",
           "0; above it only after a restore, or where a group trains again"),
    Metric("eval/wall/s", "s", _E, "one evaluation of one mode",
           "steady"),
    Metric("eval/<mode>/success", "share", _E,
           "held-out episodes that solved their task; mode: sampled, greedy, or a variant; "
           "null where infrastructure ended every one",
           "rises"),
    Metric("eval/<mode>/reward", "reward", _E, "mean",
           "rises"),
    Metric("eval/<mode>/tokens", "tokens", _E, "mean length of a trajectory",
           "steady"),
    Metric("eval/<mode>/turns", "turns", _E, "mean model calls an episode",
           "steady"),
    Metric("eval/<mode>/malformed", "share", _E, "as batch/malformed/share",
           "near 0 once the policy has learnt the grammar"),
    Metric("eval/<mode>/truncated", "share", _E, "as batch/truncated/share",
           "near 0, else raise the budget"),
    Metric("eval/<mode>/environment_error", "share", _E, "as batch/environment_error/share; failures of the policy",
           "0; else mend the environment: a fault of the evaluation names the first cause"),
    Metric("eval/<mode>/infrastructure", "share", _E, "as batch/infrastructure/share; no verdict on the policy",
           "as above"),
    Metric("eval/<mode>/check/<name>", "share", _E, "as batch/check",
           "`query_correct`: tool use apart from answer form"),
    Metric("eval/<mode>/class/<class>", "share", _E, "success of one question class",
           "which class lags; few episodes, so wide"),
    Metric("curriculum/stage/number", "", _C, "the stage that has been trained, from 1",
           "ends when the loss below is flat"),
    Metric("curriculum/loss/nats", "nats", _C, "held-out cross-entropy a token on the stage's own mix",
           "falls; another mix begins another curve"),
    Metric("curriculum/slope/share", "share", _C,
           "slope of the straight line through the stage's last flat_evals losses, from one to the next, over their "
           "mean",
           "negative; above -flat_slope the stage ends"),
    Metric("curriculum/short_loss/nats", "nats", _C, "held-out cross-entropy on the first stage's mix",
           "must not rise by more than max_short_rise over its lowest"),
    Metric("curriculum/short/share", "share", _C, "share of the coming steps' tokens in the first stage's lengths",
           "as configured; higher where the loss above has risen"),
    Metric("curriculum/longest/tokens", "tokens", _C, "longest length trained so far",
           "recall beyond it is extrapolation"),
    Metric("curriculum/wall/s", "s", _C, "measuring the held-out losses",
           "steady; else raise eval_every or lower held_out_tokens"),
    Metric("held_out/<part>/nats", "nats", _C, "held-out cross-entropy a token of one source and length",
           "falls"),
    Metric("recall/<length>/<quarter>/probability", "probability", _C,
           "mean probability of the turn that quotes a fact in one quarter of archives of one length, and answers; "
           "quarter 1 is nearest to the question",
           "rises to 1; falls with distance where the state forgets"),
    Metric("recall/<length>/<quarter>/logprob_nats", "nats", _C, "mean of its logarithm",
           "as above; also where the probability is near 0"),
    Metric("recall/<length>/<quarter>/distance_tokens", "tokens", _C, "mean distance between fact and question",
           "the same at every measurement"),
)
# fmt: on


def without_values(*events: When) -> dict[str, None]:
    """Every metric that is emitted at these events under one name, without a value.

    Example:
        A step that had nothing to train still has `update/loss/total`: null.
    """
    return {metric.name: None for metric in METRICS if metric.when in events and "<" not in metric.name}


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
