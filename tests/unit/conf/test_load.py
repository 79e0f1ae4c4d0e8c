"""Composition, messages and resume of the configuration. Rules that join fields are in `test_rules.py`."""

from pathlib import Path

import pytest

from segue.conf.errors import ConfigError
from segue.conf.flatten import flatten
from segue.conf.keys import known_keys
from segue.conf.load import GROUPS, config_to_yaml, group_options, job_overrides, load_config
from segue.conf.model_config import HiddenAct
from segue.conf.schema import AdvantageKind, LossKind, NormalisationKind, OnExceed, SegueConfig


def message(*overrides: str, command: str = "train") -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides, command)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_result_is_plain_dataclasses_with_the_schema_defaults() -> None:
    config = load_config(["train.steps=7", "train.on_exceed=drop", "model.hidden_act=silu"])
    assert type(config) is SegueConfig
    assert type(config.model.linear_attn_config.full_attn_layers) is list
    assert config.train.steps == 7
    assert config.train.on_exceed is OnExceed.drop
    assert config.model.hidden_act is HiddenAct.silu
    assert config.train.group_size == SegueConfig().train.group_size


@pytest.mark.parametrize("group", GROUPS)
def test_every_shipped_group_option_composes(group: str) -> None:
    for option in group_options(group):
        assert isinstance(load_config([f"{group}={option}"]), SegueConfig)


ALGORITHMS = {
    "k2_5": (LossKind.masked_ratio, AdvantageKind.group_mean, NormalisationKind.token_mean),
    "grpo": (LossKind.ppo_clip, AdvantageKind.grpo, NormalisationKind.sequence_mean),
    "dr_grpo": (LossKind.ppo_clip, AdvantageKind.group_mean, NormalisationKind.constant),
    "dapo": (LossKind.ppo_clip, AdvantageKind.grpo, NormalisationKind.token_mean),
    "cispo": (LossKind.cispo, AdvantageKind.grpo, NormalisationKind.token_mean),
    "gspo": (LossKind.gspo, AdvantageKind.grpo, NormalisationKind.sequence_mean),
    "rloo": (LossKind.reinforce, AdvantageKind.rloo, NormalisationKind.constant),
    "reinforce_pp": (LossKind.ppo_clip, AdvantageKind.reinforce_pp, NormalisationKind.token_mean),
    "ppo": (LossKind.ppo_clip, AdvantageKind.token_gae, NormalisationKind.token_mean),
    "turn_ppo": (LossKind.ppo_clip, AdvantageKind.turn_gae, NormalisationKind.token_mean),
}


def test_an_algorithm_is_a_loss_an_advantage_and_a_normalisation() -> None:
    assert ALGORITHMS.keys() == set(group_options("algorithm"))
    for name, parts in ALGORITHMS.items():
        learner = load_config([f"algorithm={name}"]).learner
        assert (learner.loss.kind, learner.advantage.kind, learner.loss.normalisation) == parts, name
    assert load_config(["algorithm=dapo"]).learner.loss.ppo_clip.clip_high == 0.28


def test_the_default_algorithm_is_the_schemas() -> None:
    assert load_config([]).learner == load_config(["algorithm=k2_5"]).learner == SegueConfig().learner


def test_an_algorithms_parts_may_be_given_anew_and_an_experiment_keeps_it() -> None:
    learner = load_config(["algorithm=grpo", "learner.loss.normalisation=token_mean", "experiment=smoke"]).learner
    assert (learner.loss.kind, learner.loss.normalisation) == (LossKind.ppo_clip, NormalisationKind.token_mean)


def test_pretraining_starts_from_random_weights_and_training_from_the_warm_start() -> None:
    assert load_config([], "pretrain").run.init_from is None
    assert load_config([], "train").run.init_from == "warm_start"


def test_an_experiment_says_what_its_imitation_starts_from_and_an_override_says_otherwise() -> None:
    assert load_config(["experiment=craft"], "pretrain").run.init_from == "warm_start"
    assert load_config(["experiment=craft", "run.init_from=null"], "pretrain").run.init_from is None


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.stepz=3", "train.stepz must be a known key, got an unknown one; nearest: train.steps"),
        ("lr=3", "lr must be a known key, got an unknown one; nearest: learner.optimizer.lr, pretrain.optimizer.lr"),
        (
            "pretrain.curriculum.stages=[{lenth_mix:{512:1.0}}]",
            "pretrain.curriculum.stages[0].lenth_mix must be a known key, got an unknown one; nearest: length_mix",
        ),
        (
            "pretrain.curriculum.stages=[{length_mix:{512:1.0}},{length_mix:{512:1.0},steps:9}]",
            "pretrain.curriculum.stages[1].steps must be a known key, got an unknown one; nearest: max_steps",
        ),
        (
            "pretrain.curriculum.stages=[{length_mix:{512:1.0},max_steps:8},{max_steps:x}]",
            "pretrain.curriculum.stages[1].max_steps must be an integer, got another; "
            "Value 'x' of type 'str' could not be converted to Integer",
        ),
        ("pretrain.curriculum.stages=[3]", "pretrain.curriculum.stages must be a list, each a section, got [3]"),
        ("train.steps=3.7", "train.steps must be an integer, got 3.7"),
        ("train.steps=null", "train.steps must be an integer, got null"),
        ("train.on_exceed=foo", "train.on_exceed must be one of mask, drop, got foo"),
        ("train=3", "train must be a section, got 3"),
        ("env.success_return=much", "env.success_return must be a number or null, got much"),
        (
            "model.linear_attn_config.full_attn_layers=[a]",
            "model.linear_attn_config.full_attn_layers must be a list, each an integer, got [a]",
        ),
        ("train.steps=1,2", "train.steps must be one value, got a sweep; add --multirun to run each, or quote it"),
        (
            "+train.steps=1",
            "train.steps must be set as train.steps=<value>, got '+train.steps=1'; every key exists already",
        ),
        (
            "~train.steps",
            "train.steps must be set as train.steps=<value>, got '~train.steps'; every key exists already",
        ),
        ("=3", "override must read key=value, got '=3': there is no key"),
        ("@=3", "override must read key=value, got '@=3': there is no key"),
        ("model=null", f"model must be one of {', '.join(group_options('model'))}, got null"),
        ("experiment=null", f"experiment must be one of {', '.join(group_options('experiment'))}, got null"),
        ("env=[4]", f"env must be one of {', '.join(group_options('env'))}, got [4]"),
        ("++env=sql", "env must be set as env=<option>, got '++env=sql'"),
        ("train=[1]", "train must be a section, got [1]; Cannot merge DictConfig with ListConfig"),
        ("seed=${x}", "seed must be an integer, got ${x}; Interpolation key 'x' not found"),
        ("learner.balance=${tokenizer}", "learner.balance must be a section, got segue_bpe_1k"),
        ("~model", "model must be set as model=<option>, got '~model'"),
        ("+model=tiny", "model must be set as model=<option>, got '+model=tiny'"),
        ("model@env=tiny", "model must be set as model=<option>, got 'model@env=tiny'"),
        ("run.dir=", "run.dir must be a string or null, not blank, got ''"),
        ("run.dir=' '", "run.dir must be a string or null, not blank, got ' '"),
        ("run.init_from=", "run.init_from must be a string or null, not blank, got ''"),
        ("env.id=", "env.id must be a string, not blank, got ''"),
        ("tokenizer=", "tokenizer must be a string, not blank, got ''"),
        ("train.steps", "override must read key=value, got 'train.steps'"),
        ("seed = 1", "override must read key=value, got 'seed = 1'; no spaces around ="),
        (
            "run.dir=é&b",
            "override must read key=value, got 'run.dir=é&b'; "
            "a value with such signs is quoted twice: 'run.dir=\"é&b\"'",
        ),
        (
            "run.dir=~nobody_at_all",
            "override must read key=value, got 'run.dir=~nobody_at_all'; "
            "a value with such signs is quoted twice: 'run.dir=\"~nobody_at_all\"'",
        ),
        ('run.dir="~nobody_at_all"', "run.dir must begin with the home of a user that there is, got ~nobody_at_all"),
        (
            "env.kwargs={a: 1",
            "override must read key=value, got 'env.kwargs={a: 1'; "
            "a list or dictionary with spaces is quoted as a whole: 'key=[a, b]'",
        ),
    ],
)
def test_a_wrong_override_is_one_line_with_path_value_and_remedy(override: str, expected: str) -> None:
    assert message(override) == expected


def test_an_unknown_option_of_a_group_names_all_and_the_nearest() -> None:
    expected = f"model must be one of {', '.join(group_options('model'))}, got 'tinny'; nearest: tiny"
    assert message("model=tinny") == expected


def test_added_keys_cannot_be_dropped_silently() -> None:
    assert message("+train.foo=1").startswith("train.foo must be a known key")


def test_keyword_arguments_of_an_environment_need_no_plus() -> None:
    assert load_config(["env.kwargs.level=2"]).env.kwargs["level"] == 2
    assert load_config(["env.kwargs={level: 2, names: [a, b]}"]).env.kwargs["names"] == ["a", "b"]


def test_a_dictionary_given_whole_replaces_and_a_key_of_it_adds() -> None:
    shipped = load_config([]).env.variants
    assert load_config(["env.variants={}"]).env.variants == {}
    assert load_config(["env.variants.easy={level: 1}"]).env.variants == {**shipped, "easy": {"level": 1}}
    assert message("env.kwargs={level: 2}", "env.kwargs.split=test") == (
        "env.kwargs must be given as a whole or by its keys, got both env.kwargs and env.kwargs.split; write split "
        "into env.kwargs={…}, or each key as env.kwargs.<key>=<value>"
    )
    assert message("env.variants=3") == "env.variants must be a dictionary, got 3"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("env.variants={1: {}}", "env.variants must be a dictionary by names, got the key 1"),
        ("env.variants={null: {}}", "env.variants must be a dictionary by names, got the key None"),
        ("env.kwargs={true: 1}", "env.kwargs must be a dictionary by names, got the key True"),
        ("env.kwargs={a: [{1.5: 1}]}", "env.kwargs.a.0 must be a dictionary by names, got the key 1.5"),
    ],
)
def test_keys_of_the_environment_are_names(override: str, expected: str) -> None:
    assert message(override) == expected


def test_relative_paths_are_taken_from_the_launch_folder(tmp_path: Path) -> None:
    (tmp_path / "bpe.json").write_text("{}")
    config = load_config(
        ["run.dir=runs/a", "run.init_from=../start", "tokenizer=bpe.json"], launch_folder=tmp_path / "."
    )
    assert config.run.dir == f"{tmp_path}/runs/a"
    assert config.run.init_from == f"{tmp_path}/../start"
    assert config.tokenizer == f"{tmp_path}/bpe.json"
    assert load_config([], launch_folder=tmp_path).tokenizer == SegueConfig().tokenizer
    for given, uri in (("sqlite:///a.db", f"sqlite:///{tmp_path}/a.db"), ("https://host/a", "https://host/a")):
        overrides = ["run.loggers=[mlflow]", f"run.mlflow.tracking_uri={given}"]
        assert load_config(overrides, launch_folder=tmp_path).run.mlflow.tracking_uri == uri


def test_a_tilde_is_the_users_home_and_quoted_signs_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = load_config(['run.dir="~/é & b"', 'run.init_from="~/model"'])
    assert (config.run.dir, config.run.init_from) == (f"{tmp_path}/é & b", f"{tmp_path}/model")


def store(folder: Path, *overrides: str) -> None:
    config = load_config([f"run.dir={folder}", *overrides])
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(config_to_yaml(config))


def test_a_stored_configuration_composes_to_itself(tmp_path: Path) -> None:
    overrides = ["train.steps=5", "env.kwargs.level=2", "learner.advantage.kind=grpo", "seed=3"]
    store(tmp_path, *overrides)
    assert flatten(load_config([f"run.dir={tmp_path}"])) == flatten(load_config([f"run.dir={tmp_path}", *overrides]))
    assert load_config([f"run.dir={tmp_path}"]).env.kwargs["level"] == 2


def test_a_resumed_run_takes_the_named_few_changes(tmp_path: Path) -> None:
    store(tmp_path, "train.steps=5", "seed=3")
    config = load_config([f"run.dir={tmp_path}", "train.steps=9", "cluster.threads=2"])
    assert (config.train.steps, config.cluster.threads, config.seed) == (9, 2, 3)


def test_a_resumed_run_lists_the_changes_that_it_refuses(tmp_path: Path) -> None:
    store(tmp_path, "train.steps=5", "seed=3")
    text = message(f"run.dir={tmp_path}", "seed=4", "learner.optimizer.lr=1.0")
    assert "learner.optimizer.lr: 0.0006 -> 1.0; seed: 3 -> 4;" in text
    assert text.endswith("or start another run with run.dir=<new folder>")


def test_the_whole_command_line_may_be_repeated_to_resume(tmp_path: Path) -> None:
    store(tmp_path, "model=tiny", "seed=3")
    assert load_config([f"run.dir={tmp_path}", "model=tiny", "seed=3"]).seed == 3
    # without the seed it comes to another run
    assert "seed: 3 -> 0" in message(f"run.dir={tmp_path}", "model=tiny")


def test_sweeps_become_jobs_with_the_last_varying_fastest() -> None:
    assert job_overrides(["seed=1,2", "train.steps=range(4,6)", "model=tiny"]) == [
        ["seed=1", "train.steps=4", "model=tiny"],
        ["seed=1", "train.steps=5", "model=tiny"],
        ["seed=2", "train.steps=4", "model=tiny"],
        ["seed=2", "train.steps=5", "model=tiny"],
    ]


def test_known_keys_are_the_leaves_and_the_sections_above_them() -> None:
    leaves = {key for key in flatten(SegueConfig())}
    sections = {key.rpartition(".")[0] for key in leaves if "." in key}
    nested = {section.rpartition(".")[0] for section in sections if "." in section}
    assert set(known_keys()) == leaves | sections | nested


def test_an_environment_given_by_its_id_takes_nothing_from_the_default_one() -> None:
    own = load_config(["env.id=my_package:Mine-v0", "env.kwargs.size=3"]).env
    assert (own.id, own.kwargs, own.eval_options, own.variants) == ("my_package:Mine-v0", {"size": 3}, {}, {})
    assert load_config(["env.id=sql"]).env == load_config([]).env
    assert load_config(["env.id=python"]).env == load_config(["env=python"]).env
    assert load_config(["env=sql", "env.id=my_package:Mine-v0"]).env.variants != {}
