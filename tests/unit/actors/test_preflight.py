"""What is known to fail before any process starts: the model that a run is to begin with, and its memory."""

import json
from contextlib import nullcontext
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from segue.actors.preflight import (
    check_before_start,
    check_environment,
    check_memory,
    check_reward_terms,
    episode_state_bytes,
    initial_model,
    least_memory_bytes,
)
from segue.actors.recall import recall_options
from segue.actors.stage_meter import stage_options
from segue.conf.errors import ConfigError
from segue.conf.load import load_config
from segue.conf.placement import placed
from segue.conf.schema import SegueConfig, Skill
from segue.model.describe import describe
from segue.model.network import build_model
from segue.model.precision import dtype_of
from segue.rollout.engine.native import build_native_engine
from segue.rollout.trajectory import PolicyVersion

WARM_START = json.loads((Path(str(files("segue.model"))) / "warm_start" / "config.json").read_text())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{", "config.json must hold the JSON object that describes a model: Expecting"),
        (b"[]", "config.json must hold the JSON object that describes a model, got list"),
        (b"\xff", "config.json must hold the JSON object that describes a model: 'utf-8'"),
        (json.dumps(WARM_START | {"hidden_size": "96"}).encode(), "hidden_size must be an integer, got '96'"),
        (json.dumps(WARM_START | {"hidden_size": 64}).encode(), "model.hidden_size: 96 here, 64 there"),
    ],
)
def test_an_initial_model_that_cannot_be_read_is_the_users_to_mend(data: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        initial_model(load_config([f"run.init_from={tmp_path}"]))
    assert str(caught.value).startswith("run.init_from must hold ")
    assert reason in str(caught.value)


def judged_by(folder: Path, **kwargs: Any) -> SegueConfig:
    """A configuration with a judge of the shipped model's form."""
    (folder / "config.json").write_text(json.dumps(WARM_START))
    config = load_config(["cluster.rollout_actors=3", "cluster.learner_ranks=2"])
    kwargs = {"rubric": "Be brief.", "model": str(folder), **kwargs}
    config.rollout.reward_terms = {"kind": {"term": "judge", "kwargs": kwargs}}
    return config


def test_a_judges_weights_and_states_count_in_each_rollout_actor(tmp_path: Path) -> None:
    config, plain = judged_by(tmp_path, state_budget_mb=1), load_config([])
    weights = 4 * describe(config.model)["parameters"]["total"]
    more = least_memory_bytes(config, num_rollout=3, num_learners=2)
    assert more == least_memory_bytes(plain, num_rollout=3, num_learners=2) + 3 * weights
    check_memory(config, num_rollout=3, num_learners=2)
    # as much as one stream of the policy's of 100,000 tokens needs, see below
    config.rollout.max_episode_tokens = 100_000
    with pytest.raises(ConfigError, match=r"reward_terms\.kind\.kwargs\.state_budget_mb must be at least 26, .* got 1"):
        check_memory(config, num_rollout=3, num_learners=2)
    huge = judged_by(tmp_path, state_budget_mb=10**9)
    with pytest.raises(ConfigError, match="with those of its judges, got 1000001024"):
        check_memory(huge, num_rollout=3, num_learners=2)


def test_reward_terms_are_looked_for_before_anything_starts(tmp_path: Path) -> None:
    config = judged_by(tmp_path)
    check_reward_terms(config)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"kind\.kwargs\.model must be the folder of an exported model"):
        check_reward_terms(config)
    config.rollout.reward_terms = {"mine": {"term": "no_such_module:x"}}
    with pytest.raises(ConfigError, match="term=no_such_module:x names module no_such_module, which is neither"):
        check_before_start(config)


def test_a_model_that_fits_is_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(WARM_START))
    assert initial_model(load_config([f"run.init_from={tmp_path}"])) == tmp_path


def test_what_the_actors_cannot_do_without_is_summed_by_hand() -> None:
    small = load_config(["cluster.rollout_actors=3", "cluster.learner_ranks=2"])
    parameters = describe(small.model)["parameters"]["total"]
    # a copy in each of five processes of 0.1 GB, and two moments, all in fp32
    expected = 5 * (4 * parameters + 10**8) + 8 * parameters
    assert least_memory_bytes(small, num_rollout=3, num_learners=2) == expected
    shared = load_config(["learner.zero_stage=3"])
    assert least_memory_bytes(shared, num_rollout=3, num_learners=2) == expected - 4 * parameters
    # one momentum, at least, instead of two moments
    muon = load_config(["learner.optimizer.kind=muon"])
    assert least_memory_bytes(muon, num_rollout=3, num_learners=2) == expected - 4 * parameters
    # who only plays has no moments
    assert least_memory_bytes(small, num_rollout=3, num_learners=0) == 3 * (4 * parameters + 10**8)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model=k3"],
            r"model and cluster must fit this machine's memory of .* GB, got at least 66,7\d\d\.\d GB for 2",
        ),
        (
            ["cluster.rollout_actors=60000"],
            r"model and cluster must .* at least 6,\d\d\d.\d GB for 60000 rollout actors and 2 learner ranks; take a",
        ),
        (["rollout.state_budget_mb=1000000000"], "rollout.state_budget_mb must be below the .* got 1000000000"),
        (
            ["rollout.state_budget_mb=1", "rollout.max_episode_tokens=100000"],
            "rollout.state_budget_mb must be at least 26, for one episode of rollout.max_episode_tokens=100000, got 1",
        ),
    ],
)
def test_what_cannot_fit_is_refused_before_anything_starts(overrides: list[str], message: str) -> None:
    config = placed(load_config(overrides), 0)
    actors = config.cluster.num_rollout_actors, config.cluster.num_learner_ranks
    with pytest.raises(ConfigError, match=f"^{message}"):
        check_memory(config, num_rollout=actors[0], num_learners=actors[1])


def test_what_computes_on_gpus_is_held_against_their_memory() -> None:
    config = placed(load_config(["model=k3"]), 1)
    with pytest.raises(ConfigError, match=r"^model and cluster must fit this machine's GPU memory of .* 1 learner r"):
        check_memory(config, num_rollout=0, num_learners=1)


def test_a_cluster_that_is_there_may_have_any_memory() -> None:
    check_memory(load_config(["model=k3", "cluster.address=auto"]), num_rollout=2, num_learners=2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_budget_that_passes_is_the_one_that_the_engine_takes(precision: str) -> None:
    overrides = ["rollout.max_episode_tokens=100000", "rollout.max_sessions=1", f"learner.precision={precision}"]
    needed_mb = -(-episode_state_bytes(load_config(overrides)) // 10**6)
    for budget, fits in ((needed_mb - 1, False), (needed_mb, True)):
        config = load_config([*overrides, f"rollout.state_budget_mb={budget}"])
        model = build_model(config.model, dtype_of(config.learner.precision))
        with nullcontext() if fits else pytest.raises(ConfigError):
            check_memory(config, num_rollout=1, num_learners=0)
        with nullcontext() if fits else pytest.raises(ValueError, match="state_budget_mb must be at least"):
            build_native_engine(model, config.rollout, version=PolicyVersion(0, 0))


SQL = load_config([]).env
UNWILLING = """
import sys
from gymnasium import register
from segue.envs.tool_env import Task, ToolEnv

class Unwilling(ToolEnv):
    def begin(self, seed, options):
        raise RuntimeError("no task today")

class Hanging(ToolEnv):
    def begin(self, seed, options):
        while True:
            pass

class Leaving(ToolEnv):
    def __init__(self):
        sys.exit("left")

for kind in (Unwilling, Hanging, Leaving):
    register(f"{kind.__name__}-v0", entry_point=kind)
"""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"variants": {"odd": {"split": "nowhere"}}},
            r"env\.variants\.odd must be reset options that sql takes, got \{'split': 'nowhere'\}: .*not a valid Split",
        ),
        (
            {"eval_options": {"difficulty": 2}},
            r"env\.eval_options must be reset options that sql takes, got \{'difficulty': 2\}: .* level and split",
        ),
        (
            {"id": "unwilling:Unwilling-v0"},
            "env must begin an episode, got unwilling:Unwilling-v0: .* no task today",
        ),
        (
            {"id": "unwilling:Hanging-v0", "call_timeout_s": 0.5},
            "env must begin an episode, got unwilling:Hanging-v0: reset of .* took longer than 0.5 s",
        ),
        ({"id": "unwilling:Leaving-v0"}, "env.id=unwilling:Leaving-v0 cannot be built: SystemExit: left"),
        ({"id": "unwilling"}, "env.id=unwilling cannot be built: "),
        (
            {"id": "../unwilling:Hanging-v0"},
            r"env\.id must be an id of gymnasium's, .* \(my_package:MyEnv-v0\), got \.\./unwilling:Hanging-v0",
        ),
    ],
)
def test_an_environment_that_will_not_begin_is_refused_before_anything_starts(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "unwilling.py").write_text(UNWILLING)
    given = {"import_folder": str(tmp_path), "eval_options": {}, "variants": {}} | changes
    with pytest.raises(ConfigError, match=f"^{message}"):
        check_environment(replace(SQL, **given), say=print)


def test_what_a_curriculum_will_play_is_tried_before_anything_starts() -> None:
    stages = "pretrain.curriculum.stages=[{length_mix:{256:0.5,512:0.5}}]"
    config = load_config(["experiment=curriculum", stages, "pretrain.curriculum.recall.lengths=[4096]"], "pretrain")
    assert stage_options(config) == {
        "pretrain.curriculum.stages, 256 tokens": {"length_tokens": 256},
        "pretrain.curriculum.stages, 512 tokens": {"length_tokens": 512},
        "pretrain.curriculum.recall.lengths, 4096 tokens": recall_options(4096, 1),
    }
    check_environment(config.env, Skill.expert, stage_options(config), say=print)
    config.pretrain.curriculum.length_option = "pages"
    message = (
        r"^pretrain\.curriculum\.stages, 256 tokens must be reset options that archive takes, got \{'pages': 256\}: "
    )
    with pytest.raises(ConfigError, match=message):
        check_environment(config.env, Skill.expert, stage_options(config), say=print)


def test_every_set_of_reset_options_of_the_shipped_environment_begins() -> None:
    said: list[str] = []
    check_environment(SQL, Skill.fallible, say=said.append)
    assert said == []


def test_an_environment_that_may_have_no_rule_of_success_is_told_before_anything_starts() -> None:
    said: list[str] = []
    for env_id, success_return in (("Blackjack-v1", 1.0), ("CartPole-v1", None), ("Blackjack-v1", None)):
        given = replace(SQL, id=env_id, success_return=success_return, eval_options={}, variants={})
        assert said == []
        check_environment(given, say=said.append)
    (line,) = said
    assert line.startswith("Blackjack-v1 is registered without a reward_threshold: ")
    assert line.endswith("; else set env.success_return")
