"""Each rule refuses what it names, with path, rule and value, and lets the default configuration pass."""

import functools
import math
import re
from typing import Any

import pytest

from segue.conf.errors import ConfigError
from segue.conf.flatten import flatten
from segue.conf.keys import describe_type
from segue.conf.load import load_config
from segue.conf.rules import RULES, check_rules
from segue.conf.schema import LossKind, OnSwap, SegueConfig
from segue.envs.frames import encode_frame

# rule's name -> (overrides that break it, the message)
CASES = {
    "numbers_are_finite": (["learner.optimizer.lr=inf"], "learner.optimizer.lr must be finite, got inf"),
    "values_in_range": (
        ["train.groups_per_step=0"],
        "train.groups_per_step must be at least 1, got 0",
    ),
    "resources_in_range": (
        ["cluster.learner_resources={GPU: 1, CPU: 2}"],
        "cluster.learner_resources must be without CPU, which cluster.threads says, got CPU",
    ),
    "optimizers_in_range": (
        ["pretrain.optimizer.beta2=1.0"],
        "pretrain.optimizer.beta2 must be in [0, 1), got 1.0",
    ),
    "losses_in_range": (
        ["learner.loss.masked_ratio.ratio_low=5.0"],
        "learner.loss.masked_ratio.ratio_low must be in (0, 1), got 5.0",
    ),
    "custom_loss_is_named": (
        ["learner.loss.kind=custom", "learner.loss.custom.function=my_loss"],
        "learner.loss.custom.function must be my_module:my_loss while learner.loss.kind is custom, got my_loss",
    ),
    "advantages_in_range": (
        ["learner.advantage.kind=turn_returns", "learner.advantage.discount=1.5"],
        "learner.advantage.discount must be in [0, 1], got 1.5",
    ),
    "critic_clip_fits_uses": (
        ["algorithm=ppo", "learner.critic.clip=0.2"],
        "learner.critic.clip must be left alone, got 0.2; it has no effect without train.max_uses above 1",
    ),
    "policy_learns_after_warmup": (
        ["algorithm=ppo", "learner.critic.warmup_steps=60", "train.steps=50"],
        "learner.critic.warmup_steps must be below train.steps (50), for the policy to learn, got 60",
    ),
    "advantage_fits_loss": (
        ["algorithm=gspo", "learner.advantage.kind=turn_returns"],
        "learner.advantage.kind must be one that a whole trajectory shares while learner.loss.kind is gspo, "
        "whose ratio is the whole trajectory's, got turn_returns",
    ),
    "turn_returns_have_turns": (
        ["learner.advantage.kind=turn_returns", "rollout.max_turns=1"],
        "learner.advantage.kind must be group_mean while rollout.max_turns is 1: it is the same, got turn_returns",
    ),
    "segment_is_whole_chunks": (
        ["learner.segment_tokens=100"],
        "learner.segment_tokens must be a positive multiple of 64, got 100",
    ),
    "micro_step_holds_a_segment": (
        ["learner.segment_tokens=128", "learner.micro_step_tokens=64"],
        "learner.micro_step_tokens must be at least learner.segment_tokens (128), got 64",
    ),
    "backend_is_supported": (["learner.zero_stage=4"], "learner.zero_stage must be 1, 2 or 3, got 4"),
    "precision_fits_stage": (
        ["learner.precision=bf16", "learner.zero_stage=3"],
        "learner.zero_stage must be 1 or 2 while learner.precision is bf16, got 3",
    ),
    "gauge_fits_backend": (
        ["learner.exact_backend=false"],
        "learner.gauge_tolerance must be above 0 while learner.exact_backend is false, got 0.0",
    ),
    "reuse_needs_staleness": (
        ["train.max_uses=2"],
        "train.max_uses must be 1 while train.max_staleness is 0, got 2; set train.max_staleness=1",
    ),
    "groups_can_be_compared": (
        ["train.group_size=1"],
        "train.group_size must be at least 2: advantages compare a group's members, got 1; "
        "learner.advantage.kind=turn_gae or token_gae compares with a critic's values",
    ),
    "every_rank_has_work": (
        ["cluster.learner_ranks=5", "train.groups_per_step=2", "train.group_size=2"],
        "cluster.learner_ranks must be at most the trajectories of a step (4), got 5",
    ),
    "turn_fits_episode": (
        ["rollout.max_turn_tokens=80", "rollout.max_episode_tokens=64"],
        "rollout.max_turn_tokens must be at most rollout.max_episode_tokens (64), got 80",
    ),
    "stages_in_range": (
        ["pretrain.curriculum.stages=[{length_mix:{512:1.0}},{length_mix:{512:0.5,1024:0.4}}]"],
        "pretrain.curriculum.stages[1].length_mix must be lengths in tokens to shares above 0 that add up to 1, "
        "got {512: 0.5, 1024: 0.4}",
    ),
    "curriculum_has_its_sources": (
        ["pretrain.curriculum.stages=[{length_mix:{512:1.0},text_share:0.5}]"],
        "pretrain.curriculum.text must be a path of text files where a stage has a text_share, got null",
    ),
    "held_out_seeds_are_apart": (
        ["eval.seed_start=1000"],
        "eval.seed_start must be at least 1048576: training seeds are drawn below it, got 1000",
    ),
    "variants_are_named_options": (
        ["env.variants={greedy: {level: 2}}"],
        "env.variants must be reset options by names without a slash other than sampled and greedy, "
        "got greedy: {'level': 2}",
    ),
    "budgets_fall": (
        ["train.effort.episodes=9", "train.effort.tau_end=5"],
        "train.effort.tau_end must be above 0 and at most train.effort.tau_start (4), got 5.0",
    ),
    "reward_terms_are_readable": (
        ["rollout.reward_terms={polite: {kwargs: {api_key: x}}}"],
        "rollout.reward_terms.polite must be a dictionary with term, and perhaps kwargs and timeout_s, "
        "got the keys kwargs",
    ),
    "loggers_are_distinct": (
        ["run.loggers=[wandb,wandb]"],
        "run.loggers must be a list without repetitions, got ['wandb', 'wandb']",
    ),
    "tracking_uri_holds_no_secret": (
        ["run.loggers=[mlflow]", "run.mlflow.tracking_uri=https://me:sk-1@host/a"],
        "run.mlflow.tracking_uri must be without a password, got ***; give a server's in MLFLOW_TRACKING_USERNAME and "
        "MLFLOW_TRACKING_PASSWORD or in MLFLOW_TRACKING_TOKEN",
    ),
    "logger_settings_have_effect": (
        ["run.wandb.mode=online"],
        "run.wandb.mode must be left alone, got online; it has no effect without wandb among run.loggers",
    ),
    "settings_have_effect": (
        ["learner.loss.constant_tokens=7"],
        "learner.loss.constant_tokens must be left alone, got 7; "
        "it has no effect without learner.loss.normalisation=constant",
    ),
}


def test_every_rule_has_a_case() -> None:
    assert {rule.__name__ for rule in RULES} == CASES.keys()


def test_the_defaults_keep_every_rule() -> None:
    check_rules(SegueConfig())


@pytest.mark.parametrize("name", CASES)
def test_a_broken_rule_names_path_rule_and_value(name: str) -> None:
    overrides, expected = CASES[name]
    with pytest.raises(ConfigError) as caught:
        load_config(overrides)
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ("{length_mix:{}}", "[0].length_mix must be lengths in tokens to shares above 0 that add up to 1, got {}"),
        ("{length_mix:{0:1.0}}", "[0].length_mix must be lengths in tokens"),
        ("{length_mix:{64:1.5,128:-0.5}}", "[0].length_mix must be lengths in tokens"),
        ("{length_mix:{64:1.0},text_share:1.5}", "[0].text_share must be in [0, 1], got 1.5"),
        (
            # what the second may be given of the first's has to fit its steps too
            "{length_mix:{4096:1.0}},{length_mix:{64:1.0},tokens_per_step:1024}",
            "[1].tokens_per_step must be at least the longest length of this stage and the first (4096), got 1024",
        ),
        (
            "{length_mix:{64:1.0},segment_tokens:96}",
            "[0].segment_tokens must be a positive multiple of 64, at most learner.micro_step_tokens (8192), got 96",
        ),
        ("{length_mix:{64:1.0},segment_tokens:16384}", "[0].segment_tokens must be a positive multiple of 64, at most"),
        ("{length_mix:{64:1.0},lr:-1.0}", "[0].lr must be at least 0, got -1.0"),
        ("{length_mix:{64:1.0},max_steps:0}", "[0].max_steps must be at least 1, got 0"),
        ("{length_mix:{64:1.0},eval_every:0}", "[0].eval_every must be at least 1, got 0"),
    ],
)
def test_a_stage_out_of_range_is_named_by_its_place(stages: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"pretrain.curriculum.stages{expected}")):
        load_config([f"pretrain.curriculum.stages=[{stages}]"], "pretrain")


STAGE = "pretrain.curriculum.stages=[{length_mix:{64:1.0}}]"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["pretrain.curriculum.flat_evals=3"],
            "pretrain.curriculum.flat_evals must be left alone, got 3; it has no effect without "
            "pretrain.curriculum.stages",
        ),
        (
            [STAGE, "pretrain.steps=7"],
            "pretrain.steps must be left alone, got 7; it has no effect beside pretrain.curriculum.stages, "
            "which say max_steps each",
        ),
        ([STAGE, "pretrain.episodes_per_step=7"], "pretrain.episodes_per_step must be left alone, got 7"),
        (
            [STAGE, "pretrain.curriculum.text=/a/*.txt"],
            "pretrain.curriculum.text must be left alone, got /a/*.txt; it has no effect without a stage with a "
            "text_share",
        ),
        (
            [STAGE, "pretrain.curriculum.recall.lengths=[512]"],
            "pretrain.curriculum.recall.lengths must be [] unless env=archive, got [512]",
        ),
        (
            ["experiment=curriculum", "pretrain.curriculum.recall.lengths=[512,512]"],
            "pretrain.curriculum.recall.lengths must be different lengths of at least 1, got [512, 512]",
        ),
        (
            ["experiment=curriculum", "rollout.max_episode_tokens=32768"],
            "rollout.max_episode_tokens must be above the longest demonstration of pretrain.curriculum (32768 tokens, "
            "and what surrounds them), got 32768",
        ),
    ],
)
def test_what_a_curriculum_needs_or_cannot_use_is_said(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(expected)}"):
        load_config(overrides, "pretrain")


def test_reuse_is_allowed_with_staleness() -> None:
    assert load_config(["train.max_uses=2", "train.max_staleness=1"]).train.max_uses == 2


@pytest.mark.parametrize(
    ("overrides", "key", "needed"),
    [
        (
            ["learner.advantage.std_epsilon=0.1"],
            "learner.advantage.std_epsilon",
            "learner.advantage.kind=grpo or reinforce_pp, or learner.advantage.whiten=true with turn_gae or token_gae",
        ),
        (
            ["algorithm=ppo", "learner.advantage.std_epsilon=0.1"],
            "learner.advantage.std_epsilon",
            "or learner.advantage.whiten=true with turn_gae or token_gae",
        ),
        (
            ["learner.advantage.discount=0.9"],
            "learner.advantage.discount",
            "learner.advantage.kind=turn_returns, turn_gae or token_gae",
        ),
        *(
            ([f"{key}={value}"], key, "learner.advantage.kind=turn_gae or token_gae")
            for key, value in {
                "learner.advantage.gae_lambda": 1.0,
                "learner.advantage.whiten": "true",
                "learner.critic.coefficient": 0.1,
                "learner.critic.target_lambda": 0.5,
                "learner.critic.lr_ratio": 1.0,
                "learner.critic.warmup_steps": 0,
            }.items()
        ),
        (
            ["algorithm=grpo", "learner.loss.masked_ratio.tau=0.1"],
            "learner.loss.masked_ratio.tau",
            "learner.loss.kind=masked_ratio",
        ),
        (["learner.loss.ppo_clip.dual_clip=3.0"], "learner.loss.ppo_clip.dual_clip", "learner.loss.kind=ppo_clip"),
        (
            ["algorithm=dapo", "learner.loss.kind=gspo"],
            "learner.loss.ppo_clip.clip_high",
            "learner.loss.kind=ppo_clip",
        ),
        (["run.loggers=[wandb]", "run.mlflow.experiment=a"], "run.mlflow.experiment", "mlflow among run.loggers"),
        (["train.effort.tau_end=0.5"], "train.effort.tau_end", "train.effort.episodes above 0"),
        (["learner.loss.custom.kwargs.a=1"], "learner.loss.custom.kwargs", "learner.loss.kind=custom"),
        (["learner.loss.cispo.ratio_low=0.5"], "learner.loss.cispo.ratio_low", "learner.loss.kind=cispo"),
        (["learner.loss.gspo.clip_low=0.5"], "learner.loss.gspo.clip_low", "learner.loss.kind=gspo"),
        (["learner.loss.reinforce.ratio_high=3"], "learner.loss.reinforce.ratio_high", "learner.loss.kind=reinforce"),
        (
            ["learner.balance.num_bins=10", "learner.balance.live=false"],
            "learner.balance.num_bins",
            "balance.live=true",
        ),
        (
            ["pretrain.optimizer.schedule=constant", "pretrain.optimizer.min_lr_ratio=0.5"],
            "pretrain.optimizer.min_lr_ratio",
            "pretrain.optimizer.schedule=linear, cosine or wsd",
        ),
        *(
            (
                [f"algorithm={name}", "learner.advantage.zero_variance=keep"],
                "learner.advantage.zero_variance",
                "learner.advantage.kind other than turn_gae and token_gae",
            )
            for name in ("ppo", "turn_ppo")
        ),
        (["rollout.on_swap=rebuild"], "rollout.on_swap", "train.max_staleness above 0"),
        (["learner.optimizer.muon.qk_clip=100"], "learner.optimizer.muon.qk_clip", "learner.optimizer.kind=muon"),
        (
            ["learner.measure_max_logits=true", "model.linear_attn_config.full_attn_layers=[]"],
            "learner.measure_max_logits",
            "a layer in model.linear_attn_config.full_attn_layers",
        ),
        (
            ["learner.optimizer.kind=muon", "pretrain.optimizer.muon.momentum=0.9"],
            "pretrain.optimizer.muon.momentum",
            "pretrain.optimizer.kind=muon",
        ),
        (
            ["learner.optimizer.schedule=cosine", "learner.optimizer.decay_share=0.5"],
            "learner.optimizer.decay_share",
            "learner.optimizer.schedule=wsd",
        ),
    ],
)
def test_settings_without_their_switch_are_refused(overrides: list[str], key: str, needed: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key} must be left alone, .*{needed}$"):
        load_config(overrides)


@pytest.mark.parametrize("amount", ["2", "-0.5", "true", "all"])
def test_an_actor_takes_a_part_of_one_gpu(amount: str) -> None:
    given = {"true": "True"}.get(amount, amount)
    rule = rf"^cluster\.rollout_resources\.GPU must be in \[0, 1\]: an actor computes on one, got {given}$"
    with pytest.raises(ConfigError, match=rule):
        load_config([f"cluster.rollout_resources={{GPU: {amount}}}"])
    assert load_config(["cluster.rollout_resources={GPU: 0}"]).cluster.rollout_resources == {"GPU": 0}


def float_keys() -> list[str]:
    """Every key that takes a number with a fraction, from the schema."""
    return [key for key in flatten(SegueConfig()) if "a number" in describe_type(key)]


@pytest.mark.parametrize("key", float_keys())
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_may_be_nan_or_infinite(key: str, value: float) -> None:
    config: Any = SegueConfig()
    *sections, name = key.split(".")
    setattr(functools.reduce(getattr, sections, config), name, value)
    with pytest.raises(ConfigError, match=rf"^{re.escape(key)} must be finite, got {value}$"):
        check_rules(config)


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("env.kwargs.speed=nan", "env.kwargs.speed"),
        ("env.kwargs={speeds: [1.0, inf]}", "env.kwargs.speeds.1"),
        ("env.variants={fast: {speed: -inf}}", "env.variants.fast.speed"),
        ("env.eval_options={speed: nan}", "env.eval_options.speed"),
    ],
)
def test_numbers_of_the_environment_are_finite_too(override: str, path: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{re.escape(path)} must be finite, got "):
        load_config([override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("masked_ratio.ratio_high=1.0", "above 1, got 1.0"),
        ("masked_ratio.tau=-0.1", "at least 0, got -0.1"),
        ("ppo_clip.clip_low=1.0", "in (0, 1), got 1.0"),
        ("ppo_clip.clip_high=0.0", "above 0, got 0.0"),
        ("ppo_clip.dual_clip=1.0", "above 1, got 1.0"),
        ("cispo.ratio_low=1.0", "in [0, 1), got 1.0"),
        ("cispo.ratio_high=0.9", "at least 1, got 0.9"),
        ("gspo.clip_low=0.0", "in (0, 1), got 0.0"),
        ("gspo.clip_high=-0.1", "above 0, got -0.1"),
        ("reinforce.ratio_high=0.5", "at least 1, got 0.5"),
    ],
)
def test_losses_keep_their_ranges(override: str, message: str) -> None:
    kind, key = override.partition(".")[0], f"learner.loss.{override.partition('=')[0]}"
    with pytest.raises(ConfigError, match=f"^{re.escape(f'{key} must be {message}')}$"):
        load_config([f"learner.loss.kind={kind}", f"learner.loss.{override}"])


@pytest.mark.parametrize("kind", ["turn_returns", "turn_gae", "token_gae"])
def test_advantages_of_turns_and_tokens_fit_every_loss_of_tokens(kind: str) -> None:
    for loss in set(LossKind) - {LossKind.gspo}:
        overrides = [f"learner.loss.kind={loss.name}", f"learner.advantage.kind={kind}"]
        overrides += ["learner.loss.custom.function=a:b"] if loss is LossKind.custom else []
        assert load_config(overrides).learner.loss.kind is loss
    with pytest.raises(ConfigError, match=f"while learner.loss.kind is gspo, .*, got {kind}$"):
        load_config(["algorithm=gspo", f"learner.advantage.kind={kind}"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("muon.momentum=1.0", "in [0, 1), got 1.0"),
        ("muon.ns_steps=0", "in [1, 20], got 0"),
        ("muon.qk_clip=0.0", "above 0, got 0.0"),
        ("decay_share=0.0", "in (0, 1], got 0.0"),
    ],
)
def test_optimisers_keep_their_ranges(override: str, message: str) -> None:
    key = f"learner.optimizer.{override.partition('=')[0]}"
    with pytest.raises(ConfigError, match=f"^{re.escape(f'{key} must be {message}')}$"):
        load_config(["learner.optimizer.kind=muon", "learner.optimizer.schedule=wsd", f"learner.optimizer.{override}"])


def test_values_may_be_clipped_where_groups_train_again() -> None:
    again = ["algorithm=ppo", "train.max_uses=2", "train.max_staleness=1"]
    assert load_config([*again, "learner.critic.clip=0.2"]).learner.critic.clip == 0.2
    with pytest.raises(ConfigError, match=r"^learner\.critic\.clip must be above 0, got 0\.0$"):
        load_config([*again, "learner.critic.clip=0"])


def test_a_critic_judges_a_trajectory_without_others() -> None:
    assert load_config(["algorithm=ppo", "train.group_size=1"]).train.group_size == 1
    assert load_config(["algorithm=turn_ppo", "rollout.max_turns=1"]).rollout.max_turns == 1


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("learner.advantage.gae_lambda=1.5", "in [0, 1], got 1.5"),
        ("learner.critic.target_lambda=-0.5", "in [0, 1], got -0.5"),
        ("learner.critic.coefficient=0", "above 0, got 0.0"),
        ("learner.critic.lr_ratio=0", "above 0, got 0.0"),
        ("learner.critic.warmup_steps=-1", "at least 0, got -1"),
        ("train.group_size=0", "at least 1, got 0"),
    ],
)
def test_a_critic_keeps_its_ranges(override: str, message: str) -> None:
    key = override.partition("=")[0]
    with pytest.raises(ConfigError, match=f"^{re.escape(f'{key} must be {message}')}$"):
        load_config(["algorithm=ppo", override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.max_sessions=1000000000", "rollout.max_sessions must be at most 65536, got 1000000000"),
        ("train.groups_per_step=1000000", "train.groups_per_step must be at most 65536, got 1000000"),
        ("train.max_staleness=1000000", "train.max_staleness must be at most 1024, got 1000000"),
        ("eval.episodes=1000000000", "eval.episodes must be at most 1000000, got 1000000000"),
        ("seed=10000000000000000000", f"seed must be at most {2**62}, got 10000000000000000000"),
        ("env.max_observation_chars=1000000", "env.max_observation_chars must be at most 300000, got 1000000"),
        ("env.call_timeout_s=0", "env.call_timeout_s must be above 0 and at most 1e+09 seconds, got 0.0"),
        (
            "learner.step_timeout_s=1e300",
            "learner.step_timeout_s must be above 0 and at most 1e+09 seconds, got 1e+300",
        ),
        ("rollout.temperature=1e-30", "rollout.temperature must be in [0.01, 100], got 1e-30"),
        (
            "eval.temperature=0",
            "eval.temperature must be in [0.01, 100], got 0.0; greedy play is measured beside every evaluation",
        ),
    ],
)
def test_absurd_numbers_are_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        load_config([override])


def test_a_reply_of_the_longest_observation_fits_a_frame() -> None:
    longest = load_config(["env.max_observation_chars=300000"]).env.max_observation_chars
    # outside of the basic plane a character takes the most in JSON
    assert encode_frame({"observation": "\U0001f600" * longest})


def test_a_run_of_no_step_has_no_warm_up_and_one_without_a_critic_neither() -> None:
    assert load_config(["algorithm=ppo", "train.steps=0"]).train.steps == 0
    assert load_config(["train.steps=1"]).learner.critic.warmup_steps == 5


def test_settings_have_effect_where_their_switch_is_on() -> None:
    assert load_config(["rollout.on_swap=rebuild", "train.max_staleness=1"]).rollout.on_swap is OnSwap.rebuild
    config = load_config(["learner.loss.constant_tokens=7", "learner.loss.normalisation=constant"])
    assert config.learner.loss.constant_tokens == 7
