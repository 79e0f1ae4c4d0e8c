"""What a configuration must hold beyond each value's type: ranges, and rules that join several fields.

Each rule is one function of the whole configuration that raises `ConfigError` naming the path, the rule, the value
and, where there is one, the remedy. `check_rules` runs them all, before anything starts.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any

from segue.conf.errors import ConfigError
from segue.conf.judge import read_judge
from segue.conf.reward_term import JUDGE_TERM, read_reward_terms
from segue.conf.schema import (
    SEGMENT_MULTIPLE,
    AdvantageConfig,
    AdvantageKind,
    BalanceConfig,
    CriticConfig,
    CurriculumConfig,
    EffortConfig,
    Logger,
    LossConfig,
    LossKind,
    MuonConfig,
    NormalisationKind,
    OnSwap,
    OptimizerConfig,
    OptimizerKind,
    Precision,
    PretrainConfig,
    ScheduleKind,
    SegueConfig,
    ZeroVariance,
)
from segue.conf.secret import MASK, holds_secret

SAMPLED_MODE, GREEDY_MODE = EVALUATION_MODES = ("sampled", "greedy")

# sections of `simulate`
_SPREADS = ("turns", "prompt_tokens", "turn_tokens", "observation_tokens", "reset_s", "call_s")

# dotted path, lowest value that makes sense
_AT_LEAST: tuple[tuple[str, float], ...] = (
    ("seed", 0),
    ("env.workers", 1),
    ("env.max_observation_chars", 1),
    ("rollout.max_sessions", 1),
    ("rollout.prefill_chunk_tokens", 1),
    ("rollout.page_tokens", 1),
    ("rollout.state_budget_mb", 1),
    ("rollout.max_turns", 1),
    ("rollout.max_turn_tokens", 1),
    ("rollout.max_attempts", 1),
    ("rollout.journal_tokens", 0),
    ("learner.balance.num_bins", 2),
    ("learner.critic.warmup_steps", 0),
    ("learner.loss.constant_tokens", 1),
    ("train.steps", 0),
    ("train.groups_per_step", 1),
    ("train.group_size", 1),
    ("train.max_staleness", 0),
    ("train.max_uses", 1),
    ("train.effort.episodes", 0),
    ("train.effort.anneal_steps", 1),
    ("train.eval_every", 0),
    ("train.checkpoint_every", 1),
    ("train.keep_checkpoints", 1),
    ("eval.episodes", 1),
    ("pretrain.steps", 0),
    ("pretrain.episodes_per_step", 1),
    ("pretrain.eval_every", 0),
    ("pretrain.curriculum.held_out_documents", 1),
    ("pretrain.curriculum.held_out_tokens", 1),
    ("pretrain.curriculum.flat_slope", 0),
    ("pretrain.curriculum.flat_evals", 2),
    ("pretrain.curriculum.max_short_rise", 0),
    ("pretrain.curriculum.recall.episodes", 1),
    ("cluster.rollout_actors", 1),
    ("cluster.learner_ranks", 1),
    ("cluster.threads", 1),
    ("cluster.max_losses", 0),
    ("simulate.decode_session_s", 0),
    ("simulate.learner_step_s", 0),
    ("simulate.publish_s", 0),
    *((f"simulate.{name}.tail", 1) for name in _SPREADS),
)

_ABOVE_ZERO = (
    "learner.advantage.std_epsilon",
    "learner.critic.coefficient",
    "learner.critic.lr_ratio",
    "simulate.prefill_tokens_per_s",
    "simulate.learner_tokens_per_s",
    "simulate.decode_step_s",
    *(f"simulate.{name}.median" for name in _SPREADS),
)

# dotted path, highest value that is not a slip of the hand: beyond it memory runs out, or a clock overflows
_AT_MOST: tuple[tuple[str, float], ...] = (
    ("seed", 2**62),
    ("eval.seed_start", 2**62),
    ("env.workers", 1024),
    # a reply has to fit a frame, in which a character may take 12 bytes
    ("env.max_observation_chars", 300_000),
    ("rollout.max_sessions", 65_536),
    ("learner.balance.num_bins", 1_000_000),
    ("train.groups_per_step", 65_536),
    ("train.group_size", 65_536),
    ("train.max_staleness", 1024),
    ("pretrain.episodes_per_step", 65_536),
    ("train.effort.episodes", 1_000_000),
    ("pretrain.curriculum.held_out_tokens", 2**40),
    ("pretrain.curriculum.recall.episodes", 65_536),
    ("eval.episodes", 1_000_000),
    ("cluster.rollout_actors", 65_536),
    ("cluster.learner_ranks", 65_536),
    ("cluster.threads", 1024),
    *((f"simulate.{name}.median", 1e9) for name in _SPREADS),
    *((f"simulate.{name}.tail", 1e6) for name in _SPREADS),
    *((f"simulate.{name}", 1e6) for name in ("decode_step_s", "decode_session_s", "learner_step_s", "publish_s")),
)

_SECONDS = (
    "env.call_timeout_s",
    "env.start_timeout_s",
    "rollout.max_episode_s",
    "eval.timeout_s",
    "learner.step_timeout_s",
    "train.wait_timeout_s",
    "cluster.start_timeout_s",
    "cluster.answer_timeout_s",
)
_MAX_SECONDS = 1e9

# shares are written by hand, in decimals
_SHARE_ERROR = 1e-6

# logits are divided by it in single precision
_TEMPERATURES = ("rollout.temperature", "eval.temperature")
_MIN_TEMPERATURE, _MAX_TEMPERATURE = 0.01, 100.0


def check_rules(config: SegueConfig) -> None:
    """Run every rule.

    Raises:
        ConfigError: the first rule that is broken.
    """
    for rule in RULES:
        rule(config)


def numbers_are_finite(config: SegueConfig) -> None:
    """No number is NaN or infinite, those in the dictionaries of the environment's own keys included."""
    for path, value in _numbers(config, ""):
        _require(math.isfinite(value), path, "finite", value)


def loggers_are_distinct(config: SegueConfig) -> None:
    """Each logger writes once."""
    names = [logger.name for logger in config.run.loggers]
    _require(len(set(names)) == len(names), "run.loggers", "a list without repetitions", names)


def tracking_uri_holds_no_secret(config: SegueConfig) -> None:
    """The configuration is written down and shown; what a server asks for comes from variables."""
    uri = config.run.mlflow.tracking_uri
    remedy = "give a server's in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD or in MLFLOW_TRACKING_TOKEN"
    _require(uri is None or not holds_secret(uri), "run.mlflow.tracking_uri", "without a password", MASK, remedy)


def values_in_range(config: SegueConfig) -> None:
    """Counts, durations and temperatures that have a lowest or a highest sensible value."""
    for path, lowest in _AT_LEAST:
        value = _get(config, path)
        _require(value is None or value >= lowest, path, f"at least {lowest}", value)
    for path, highest in _AT_MOST:
        value = _get(config, path)
        _require(value is None or value <= highest, path, f"at most {highest}", value)
    for path in _ABOVE_ZERO:
        _require(_get(config, path) > 0, path, "above 0", _get(config, path))
    for path in _SECONDS:
        rule = f"above 0 and at most {_MAX_SECONDS:.0e} seconds"
        _require(0 < _get(config, path) <= _MAX_SECONDS, path, rule, _get(config, path))
    for path in _TEMPERATURES:
        rule = f"in [{_MIN_TEMPERATURE:g}, {_MAX_TEMPERATURE:g}]"
        holds = _MIN_TEMPERATURE <= _get(config, path) <= _MAX_TEMPERATURE
        remedy = "greedy play is measured beside every evaluation" if path == "eval.temperature" else ""
        _require(holds, path, rule, _get(config, path), remedy)


def resources_in_range(config: SegueConfig) -> None:
    """What actors take of Ray's resources; CPUs are counted by threads."""
    resources = {"rollout": config.cluster.rollout_resources, "learner": config.cluster.learner_resources}
    for actor, amounts in resources.items():
        path = f"cluster.{actor}_resources"
        for kind, amount in amounts.items():
            _require(kind != "CPU", path, "without CPU, which cluster.threads says", kind)
            is_number = isinstance(amount, float | int) and not isinstance(amount, bool)
            if kind == "GPU":
                rule = "in [0, 1]: an actor computes on one"
                _require(is_number and 0 <= amount <= 1, f"{path}.{kind}", rule, amount)
            else:
                _require(is_number and amount > 0, f"{path}.{kind}", "a number above 0", amount)


def optimizers_in_range(config: SegueConfig) -> None:
    """Both optimisers, of reinforcement learning and of imitation."""
    _check_optimizer("learner.optimizer", config.learner.optimizer)
    _check_optimizer("pretrain.optimizer", config.pretrain.optimizer)


def losses_in_range(config: SegueConfig) -> None:
    """Every window of ratios holds 1, where policy and behaviour agree."""
    loss, section = config.learner.loss, "learner.loss"
    masked, ppo, cispo, gspo = loss.masked_ratio, loss.ppo_clip, loss.cispo, loss.gspo
    _require(0 < masked.ratio_low < 1, f"{section}.masked_ratio.ratio_low", "in (0, 1)", masked.ratio_low)
    _require(masked.ratio_high > 1, f"{section}.masked_ratio.ratio_high", "above 1", masked.ratio_high)
    _require(masked.tau >= 0, f"{section}.masked_ratio.tau", "at least 0", masked.tau)
    for name, clip_low, clip_high in (
        ("ppo_clip", ppo.clip_low, ppo.clip_high),
        ("gspo", gspo.clip_low, gspo.clip_high),
    ):
        _require(0 < clip_low < 1, f"{section}.{name}.clip_low", "in (0, 1)", clip_low)
        _require(clip_high > 0, f"{section}.{name}.clip_high", "above 0", clip_high)
    _require(ppo.dual_clip is None or ppo.dual_clip > 1, f"{section}.ppo_clip.dual_clip", "above 1", ppo.dual_clip)
    _require(0 <= cispo.ratio_low < 1, f"{section}.cispo.ratio_low", "in [0, 1)", cispo.ratio_low)
    _require(cispo.ratio_high >= 1, f"{section}.cispo.ratio_high", "at least 1", cispo.ratio_high)
    truncated = loss.reinforce.ratio_high
    _require(truncated >= 1, f"{section}.reinforce.ratio_high", "at least 1", truncated)


def custom_loss_is_named(config: SegueConfig) -> None:
    """A loss of the user's own is a function of a module."""
    loss = config.learner.loss
    module, _, name = (loss.custom.function or "").partition(":")
    holds = all(part.isidentifier() for part in (*module.split("."), name))
    rule = "my_module:my_loss while learner.loss.kind is custom"
    _require(holds or loss.kind is not LossKind.custom, "learner.loss.custom.function", rule, loss.custom.function)


def advantages_in_range(config: SegueConfig) -> None:
    """A later reward or surprise counts for something between nothing and all."""
    for path in ("learner.advantage.discount", "learner.advantage.gae_lambda", "learner.critic.target_lambda"):
        _require(0 <= _get(config, path) <= 1, path, "in [0, 1]", _get(config, path))


def critic_clip_fits_uses(config: SegueConfig) -> None:
    """With one update a batch, a value at its first use is what it was: only later uses have something to clip."""
    clip, path = config.learner.critic.clip, "learner.critic.clip"
    _require(clip is None or clip > 0, path, "above 0", clip)
    _unused_unless(clip is None or config.train.max_uses > 1, path, "train.max_uses above 1", clip)


def policy_learns_after_warmup(config: SegueConfig) -> None:
    """While a critic's values learn alone the policy stays as it is; a run of no step at all only evaluates."""
    steps, warmup = config.train.steps, config.learner.critic.warmup_steps
    fits = warmup < steps or steps == 0 or not config.learner.advantage.has_critic
    rule = f"below train.steps ({steps}), for the policy to learn"
    _require(fits, "learner.critic.warmup_steps", rule, warmup)


def advantage_fits_loss(config: SegueConfig) -> None:
    """A trajectory's one ratio has one sign to be clipped by."""
    learner = config.learner
    is_shared = learner.advantage.kind is not AdvantageKind.turn_returns and not learner.advantage.has_critic
    fits = learner.loss.kind is not LossKind.gspo or is_shared
    rule = "one that a whole trajectory shares while learner.loss.kind is gspo, whose ratio is the whole trajectory's"
    _require(fits, "learner.advantage.kind", rule, learner.advantage.kind.name)


def turn_returns_have_turns(config: SegueConfig) -> None:
    """The return of an only turn is the trajectory's reward."""
    turns, kind = config.rollout.max_turns, config.learner.advantage.kind
    fits = kind is not AdvantageKind.turn_returns or turns > 1
    _require(fits, "learner.advantage.kind", "group_mean while rollout.max_turns is 1: it is the same", kind.name)


def segment_is_whole_chunks(config: SegueConfig) -> None:
    """A segment is a multiple of the operators' chunk."""
    tokens = config.learner.segment_tokens
    rule = f"a positive multiple of {SEGMENT_MULTIPLE}"
    _require(tokens > 0 and tokens % SEGMENT_MULTIPLE == 0, "learner.segment_tokens", rule, tokens)


def micro_step_holds_a_segment(config: SegueConfig) -> None:
    """A micro-step packs whole segments."""
    learner = config.learner
    rule = f"at least learner.segment_tokens ({learner.segment_tokens})"
    holds = learner.micro_step_tokens >= learner.segment_tokens
    _require(holds, "learner.micro_step_tokens", rule, learner.micro_step_tokens)


def backend_is_supported(config: SegueConfig) -> None:
    """Stages and dtypes that the backend is proved for; `docs/numerics.md` has the matrix."""
    stage = config.learner.zero_stage
    _require(stage in (1, 2, 3), "learner.zero_stage", "1, 2 or 3", stage)


def precision_fits_stage(config: SegueConfig) -> None:
    """ZeRO-3 takes parameters of one dtype only, and in bf16 a few stay fp32."""
    learner = config.learner
    fits = learner.precision is Precision.fp32 or learner.zero_stage < 3
    _require(fits, "learner.zero_stage", "1 or 2 while learner.precision is bf16", learner.zero_stage)


def gauge_fits_backend(config: SegueConfig) -> None:
    """An exact backend tolerates no difference; an inexact one must say how much it does."""
    learner = config.learner
    if learner.exact_backend:
        rule = "0 while learner.exact_backend is true"
        _require(learner.gauge_tolerance == 0, "learner.gauge_tolerance", rule, learner.gauge_tolerance)
    else:
        rule = "above 0 while learner.exact_backend is false"
        _require(learner.gauge_tolerance > 0, "learner.gauge_tolerance", rule, learner.gauge_tolerance)


def reuse_needs_staleness(config: SegueConfig) -> None:
    """A group's second use trains tokens that are a step older."""
    train = config.train
    rule = "1 while train.max_staleness is 0"
    _require(
        train.max_uses == 1 or train.max_staleness >= 1, "train.max_uses", rule, train.max_uses,
        "set train.max_staleness=1",
    )  # fmt: skip


def groups_can_be_compared(config: SegueConfig) -> None:
    """A group's advantages compare its members: one alone teaches nothing, unless a critic judges it."""
    rule = "at least 2: advantages compare a group's members"
    fits = config.train.group_size >= 2 or config.learner.advantage.has_critic
    remedy = "learner.advantage.kind=turn_gae or token_gae compares with a critic's values"
    _require(fits, "train.group_size", rule, config.train.group_size, remedy)


def every_rank_has_work(config: SegueConfig) -> None:
    """Each learner rank trains at least one trajectory a step."""
    batch = config.train.groups_per_step * config.train.group_size
    ranks, rule = config.cluster.learner_ranks, f"at most the trajectories of a step ({batch})"
    _require(ranks is None or ranks <= batch, "cluster.learner_ranks", rule, ranks)


def turn_fits_episode(config: SegueConfig) -> None:
    """One turn cannot be longer than the episode, nor the episode than the model's positions."""
    rollout = config.rollout
    rule = f"at most rollout.max_episode_tokens ({rollout.max_episode_tokens})"
    fits = rollout.max_turn_tokens <= rollout.max_episode_tokens
    _require(fits, "rollout.max_turn_tokens", rule, rollout.max_turn_tokens)
    positions = config.model.max_position_embeddings
    rule = f"at most model.max_position_embeddings ({positions})"
    _require(rollout.max_episode_tokens <= positions, "rollout.max_episode_tokens", rule, rollout.max_episode_tokens)


def stages_in_range(config: SegueConfig) -> None:
    """Each stage of the curriculum says what it trains on, in sizes that the learner can take."""
    curriculum, learner = config.pretrain.curriculum, config.learner
    for number, stage in enumerate(curriculum.stages):
        path = f"pretrain.curriculum.stages[{number}]"
        mix = stage.length_mix
        is_mix = bool(mix) and all(length > 0 and share > 0 for length, share in mix.items())
        is_mix = is_mix and abs(sum(mix.values()) - 1) < _SHARE_ERROR
        _require(is_mix, f"{path}.length_mix", "lengths in tokens to shares above 0 that add up to 1", mix)
        _require(0 <= stage.text_share <= 1, f"{path}.text_share", "in [0, 1]", stage.text_share)
        # a later stage may be given a part of the first one's mix
        longest = max([*mix, *curriculum.stages[0].length_mix])
        rule = f"at least the longest length of this stage and the first ({longest})"
        _require(stage.tokens_per_step >= longest, f"{path}.tokens_per_step", rule, stage.tokens_per_step)
        _require(stage.lr is None or stage.lr >= 0, f"{path}.lr", "at least 0", stage.lr)
        tokens = learner.segment_tokens if stage.segment_tokens is None else stage.segment_tokens
        rule = (
            f"a positive multiple of {SEGMENT_MULTIPLE}, at most learner.micro_step_tokens "
            f"({learner.micro_step_tokens})"
        )
        is_segment = 0 < tokens <= learner.micro_step_tokens and tokens % SEGMENT_MULTIPLE == 0
        _require(is_segment, f"{path}.segment_tokens", rule, tokens)
        _require(stage.max_steps >= 1, f"{path}.max_steps", "at least 1", stage.max_steps)
        _require(stage.eval_every >= 1, f"{path}.eval_every", "at least 1", stage.eval_every)


def curriculum_has_its_sources(config: SegueConfig) -> None:
    """Text where a stage trains on text, archives where recall is measured, room for the longest of either."""
    curriculum, path = config.pretrain.curriculum, "pretrain.curriculum"
    needs_text = any(stage.text_share for stage in curriculum.stages)
    rule = "a path of text files where a stage has a text_share"
    _require(not needs_text or curriculum.text is not None, f"{path}.text", rule, "null")
    _unused_unless(needs_text or curriculum.text is None, f"{path}.text", "a stage with a text_share", curriculum.text)
    lengths = curriculum.recall.lengths
    rule = "different lengths of at least 1"
    is_set = len(set(lengths)) == len(lengths) and all(length >= 1 for length in lengths)
    _require(is_set, f"{path}.recall.lengths", rule, lengths)
    _require(not lengths or config.env.id == "archive", f"{path}.recall.lengths", "[] unless env=archive", lengths)
    if curriculum.length_option is not None:
        shown = [length for stage in curriculum.stages if stage.text_share < 1 for length in stage.length_mix]
        longest = max([*shown, *lengths], default=0)
        rule = f"above the longest demonstration of {path} ({longest} tokens, and what surrounds them)"
        _require(
            config.rollout.max_episode_tokens > longest, "rollout.max_episode_tokens", rule,
            config.rollout.max_episode_tokens,
        )  # fmt: skip


def held_out_seeds_are_apart(config: SegueConfig) -> None:
    """Training seeds lie in [0, eval.seed_start)."""
    start = config.eval.seed_start
    _require(start >= 2**20, "eval.seed_start", f"at least {2**20}: training seeds are drawn below it", start)


def variants_are_named_options(config: SegueConfig) -> None:
    """A variant's name stands beside the two modes of every evaluation, in metrics and in file names."""
    rule = f"reset options by names without a slash other than {' and '.join(EVALUATION_MODES)}"
    for name, options in config.env.variants.items():
        holds = isinstance(options, dict) and "/" not in name and name not in EVALUATION_MODES
        _require(holds, "env.variants", rule, f"{name}: {options}")


def budgets_fall(config: SegueConfig) -> None:
    """Budgets of effort begin wide and end narrow."""
    effort, section = config.train.effort, "train.effort"
    _require(0 < effort.percentile <= 1, f"{section}.percentile", "in (0, 1]", effort.percentile)
    rule = f"above 0 and at most {section}.tau_start ({effort.tau_start:g})"
    _require(0 < effort.tau_end <= effort.tau_start, f"{section}.tau_end", rule, effort.tau_end)


def reward_terms_are_readable(config: SegueConfig) -> None:
    """Each says what computes it, with what, and for how long at most."""
    for spec in read_reward_terms(config.rollout.reward_terms):
        if spec.term == JUDGE_TERM:
            read_judge(spec)


def logger_settings_have_effect(config: SegueConfig) -> None:
    """Settings of a logger that is not among those of the run must not be given."""
    for logger, section in ((Logger.wandb, config.run.wandb), (Logger.mlflow, config.run.mlflow)):
        for name in (field.name for field in fields(section)):
            value = getattr(section, name)
            _unused_unless(
                value == _default(type(section), name) or logger in config.run.loggers,
                f"run.{logger.name}.{name}", f"{logger.name} among run.loggers",
                value.name if isinstance(value, Enum) else value,
            )  # fmt: skip


def settings_have_effect(config: SegueConfig) -> None:
    """A setting that another one turns off must not be given."""
    learner = config.learner
    loss, advantage = learner.loss, learner.advantage
    for kind in LossKind:
        section = getattr(loss, kind.name)
        for name in (field.name for field in fields(section)):
            value = getattr(section, name)
            _unused_unless(
                value == _default(type(section), name) or loss.kind is kind,
                f"learner.loss.{kind.name}.{name}", f"learner.loss.kind={kind.name}", value,
            )  # fmt: skip
    _unused_unless(
        loss.constant_tokens == _default(LossConfig, "constant_tokens")
        or loss.normalisation is NormalisationKind.constant,
        "learner.loss.constant_tokens", "learner.loss.normalisation=constant", loss.constant_tokens,
    )  # fmt: skip
    _unused_unless(
        advantage.std_epsilon == _default(AdvantageConfig, "std_epsilon")
        or advantage.kind in (AdvantageKind.grpo, AdvantageKind.reinforce_pp) or advantage.needs_whole_step,
        "learner.advantage.std_epsilon",
        "learner.advantage.kind=grpo or reinforce_pp, or learner.advantage.whiten=true with turn_gae or token_gae",
        advantage.std_epsilon,
    )  # fmt: skip
    _unused_unless(
        advantage.discount == _default(AdvantageConfig, "discount")
        or advantage.kind is AdvantageKind.turn_returns or advantage.has_critic,
        "learner.advantage.discount", "learner.advantage.kind=turn_returns, turn_gae or token_gae", advantage.discount,
    )  # fmt: skip
    _unused_unless(
        advantage.zero_variance is ZeroVariance.skip or not advantage.has_critic,
        "learner.advantage.zero_variance", "learner.advantage.kind other than turn_gae and token_gae",
        advantage.zero_variance.name,
    )  # fmt: skip
    of_critic: list[tuple[str, type, str]]
    of_critic = [("learner.advantage", AdvantageConfig, name) for name in ("gae_lambda", "whiten")]
    of_critic += [("learner.critic", CriticConfig, field.name) for field in fields(CriticConfig)]
    for section, schema, name in of_critic:
        value = getattr(learner.critic if schema is CriticConfig else advantage, name)
        _unused_unless(
            value == _default(schema, name) or advantage.has_critic,
            f"{section}.{name}", "learner.advantage.kind=turn_gae or token_gae", value,
        )  # fmt: skip
    # at bound 0 nothing is being played when weights change
    _unused_unless(
        config.rollout.on_swap is OnSwap.keep or config.train.max_staleness > 0,
        "rollout.on_swap", "train.max_staleness above 0", config.rollout.on_swap.name,
    )  # fmt: skip
    _unused_unless(
        learner.balance.num_bins == _default(BalanceConfig, "num_bins") or learner.balance.live,
        "learner.balance.num_bins", "learner.balance.live=true", learner.balance.num_bins,
    )  # fmt: skip
    for name in (field.name for field in fields(EffortConfig) if field.name != "episodes"):
        value = getattr(config.train.effort, name)
        _unused_unless(
            value == _default(EffortConfig, name) or config.train.effort.episodes > 0,
            f"train.effort.{name}", "train.effort.episodes above 0", value,
        )  # fmt: skip
    _unused_unless(
        not learner.measure_max_logits or bool(config.model.mla_layers),
        "learner.measure_max_logits", "a layer in model.linear_attn_config.full_attn_layers", True,
    )  # fmt: skip
    _optimizer_settings_have_effect("learner.optimizer", learner.optimizer)
    _optimizer_settings_have_effect("pretrain.optimizer", config.pretrain.optimizer)
    _check_unused_imitation(config.pretrain)


def _check_unused_imitation(pretrain: PretrainConfig) -> None:
    """Stages say what a step is, how many there are, and what ends them."""
    curriculum = pretrain.curriculum
    for name, instead in (("steps", "max_steps"), ("episodes_per_step", "tokens_per_step")):
        value = getattr(pretrain, name)
        holds = value == _default(PretrainConfig, name) or not curriculum.stages
        remedy = f"it has no effect beside pretrain.curriculum.stages, which say {instead} each"
        _require(holds, f"pretrain.{name}", "left alone", value, remedy)
    plain = CurriculumConfig()
    for name in (field.name for field in fields(CurriculumConfig)):
        value = getattr(curriculum, name)
        holds = value == getattr(plain, name) or bool(curriculum.stages)
        _unused_unless(holds, f"pretrain.curriculum.{name}", "pretrain.curriculum.stages", value)


RULES: tuple[Callable[[SegueConfig], None], ...] = (
    numbers_are_finite,
    loggers_are_distinct,
    tracking_uri_holds_no_secret,
    values_in_range,
    resources_in_range,
    optimizers_in_range,
    losses_in_range,
    custom_loss_is_named,
    advantages_in_range,
    critic_clip_fits_uses,
    policy_learns_after_warmup,
    advantage_fits_loss,
    turn_returns_have_turns,
    segment_is_whole_chunks,
    micro_step_holds_a_segment,
    backend_is_supported,
    precision_fits_stage,
    gauge_fits_backend,
    reuse_needs_staleness,
    groups_can_be_compared,
    every_rank_has_work,
    turn_fits_episode,
    stages_in_range,
    curriculum_has_its_sources,
    held_out_seeds_are_apart,
    variants_are_named_options,
    budgets_fall,
    reward_terms_are_readable,
    logger_settings_have_effect,
    settings_have_effect,
)


def _check_optimizer(path: str, optimizer: OptimizerConfig) -> None:
    _require(optimizer.lr >= 0, f"{path}.lr", "at least 0", optimizer.lr)
    for name in ("beta1", "beta2"):
        value = getattr(optimizer, name)
        _require(0 <= value < 1, f"{path}.{name}", "in [0, 1)", value)
    _require(optimizer.eps > 0, f"{path}.eps", "above 0", optimizer.eps)
    _require(optimizer.weight_decay >= 0, f"{path}.weight_decay", "at least 0", optimizer.weight_decay)
    _require(optimizer.warmup_steps >= 0, f"{path}.warmup_steps", "at least 0", optimizer.warmup_steps)
    _require(0 <= optimizer.min_lr_ratio <= 1, f"{path}.min_lr_ratio", "in [0, 1]", optimizer.min_lr_ratio)
    _require(0 <= optimizer.muon.momentum < 1, f"{path}.muon.momentum", "in [0, 1)", optimizer.muon.momentum)
    _require(1 <= optimizer.muon.ns_steps <= 20, f"{path}.muon.ns_steps", "in [1, 20]", optimizer.muon.ns_steps)
    clip = optimizer.muon.qk_clip
    _require(clip is None or clip > 0, f"{path}.muon.qk_clip", "above 0", clip)
    _require(0 < optimizer.decay_share <= 1, f"{path}.decay_share", "in (0, 1]", optimizer.decay_share)
    _require(optimizer.grad_clip >= 0, f"{path}.grad_clip", "at least 0", optimizer.grad_clip)


def _optimizer_settings_have_effect(path: str, optimizer: OptimizerConfig) -> None:
    schedule, falls = optimizer.schedule, "linear, cosine or wsd"
    for name, has_effect, needed in (
        ("min_lr_ratio", schedule is not ScheduleKind.constant, falls),
        ("decay_share", schedule is ScheduleKind.wsd, "wsd"),
    ):
        value = getattr(optimizer, name)
        is_default = value == _default(OptimizerConfig, name)
        _unused_unless(is_default or has_effect, f"{path}.{name}", f"{path}.schedule={needed}", value)
    for name in (field.name for field in fields(MuonConfig)):
        value = getattr(optimizer.muon, name)
        has_effect = value == _default(MuonConfig, name) or optimizer.kind is OptimizerKind.muon
        _unused_unless(has_effect, f"{path}.muon.{name}", f"{path}.kind=muon", value)


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """Every float of a section with its dotted path."""
    inner: Iterator[tuple[str, Any]] = iter(())
    if is_dataclass(value):
        inner = ((field.name, getattr(value, field.name)) for field in fields(value))
    elif isinstance(value, dict):
        inner = ((str(key), item) for key, item in value.items())
    elif isinstance(value, list):
        inner = ((str(index), item) for index, item in enumerate(value))
    elif isinstance(value, float):
        yield path, value
    for name, item in inner:
        yield from _numbers(item, f"{path}.{name}" if path else name)


def _get(config: SegueConfig, path: str) -> Any:
    """A number; None where it may be left out."""
    value: Any = config
    for part in path.split("."):
        value = getattr(value, part)
    assert value is None or isinstance(value, (int, float)), path
    return value


def _default(section: type, name: str) -> object:
    (field,) = (field for field in fields(section) if field.name == name)
    return field.default if field.default_factory is MISSING else field.default_factory()


def _require(holds: bool, path: str, rule: str, value: object, remedy: str = "") -> None:
    if not holds:
        raise ConfigError(f"{path} must be {rule}, got {value}" + (f"; {remedy}" if remedy else ""))


def _unused_unless(holds: bool, path: str, needed: str, value: object) -> None:
    _require(holds, path, "left alone", value, f"it has no effect without {needed}")
