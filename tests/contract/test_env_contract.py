"""Laws that every `ToolEnv` holds: our own, foreign ones behind the adapter, and the one of docs/environments.md."""

import json
import math
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from env_cases import make_env

from segue.conf.schema import EnvConfig
from segue.envs.adapter import GymToolEnv
from segue.envs.reply import to_json
from segue.envs.tool import ToolCall
from segue.envs.tool_env import ToolEnv

ROOT = Path(__file__).parents[2]
NUM_CALLS = 30
NUM_SEEDS = 5

CONFIGS = {
    "sql level 1": EnvConfig(),
    "sql level 2": EnvConfig(kwargs={"level": 2}),
    "sql level 3": EnvConfig(kwargs={"level": 3, "split": "heldout_schemas"}),
    "python level 1": EnvConfig(id="python"),
    "python level 2": EnvConfig(id="python", kwargs={"level": 2, "split": "heldout_kinds"}),
    "archive": EnvConfig(id="archive"),
    "archive read freely": EnvConfig(id="archive", kwargs={"reading": "free", "page_reward": 0.1}),
    "craft": EnvConfig(id="craft"),
    "craft deep": EnvConfig(id="craft", kwargs={"steps": [9, 16], "split": "heldout_names"}),
    "frozen lake": EnvConfig(id="FrozenLake-v1"),
    "taxi": EnvConfig(id="Taxi-v4"),
    "cliff": EnvConfig(id="CliffWalking-v1", success_return=-20.0),
    "cart pole": EnvConfig(id="CartPole-v1"),
    "mountain car": EnvConfig(id="MountainCar-v0"),
    "blackjack": EnvConfig(id="Blackjack-v1", success_return=1.0),
    "pendulum": EnvConfig(id="Pendulum-v1", success_return=-200.0),
    "continuous mountain car": EnvConfig(id="MountainCarContinuous-v0"),
    "acrobot": EnvConfig(id="Acrobot-v1"),
    "nested": EnvConfig(id="foreign_envs:Arm-v0", import_folder=str(ROOT / "tests/unit/envs")),
    "documented": EnvConfig(id="guess_number:GuessNumber-v0"),
}


@pytest.fixture(scope="module", autouse=True)
def _documented_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The example of the documentation, as it stands there, in a folder of its own."""
    folder = tmp_path_factory.mktemp("documented")
    texts = [(ROOT / name).read_text() for name in ("README.md", "docs/environments.md")]
    # the adapters' example follows in the second
    ((code,), (again, *_)) = (re.findall(r"```python\n(.*?)```", text, re.DOTALL) for text in texts)
    assert code == again, "README.md and docs/environments.md show the same example"
    (folder / "guess_number.py").write_text(code)
    CONFIGS["documented"].import_folder = str(folder)
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.fixture(params=list(CONFIGS))
def config(request: pytest.FixtureRequest) -> EnvConfig:
    return CONFIGS[request.param]


def draw_calls(env: ToolEnv, seed: int) -> list[ToolCall]:
    space = env.action_space
    space.seed(seed)
    return [space.sample() for _ in range(NUM_CALLS)]


def play(env: ToolEnv, seed: int, calls: list[ToolCall]) -> list[tuple[Any, ...]]:
    """Everything that an episode shows, until it ends or the calls do."""
    log: list[tuple[Any, ...]] = [env.reset(seed=seed)]
    for call in calls:
        log.append(env.step(call))
        if log[-1][2] or log[-1][3]:
            break
    return [json.loads(json.dumps(to_json(entry, "entry"))) for entry in log]


def test_a_seed_and_calls_determine_an_episode(config: EnvConfig) -> None:
    first, second = make_env(config), make_env(config)
    for seed in range(NUM_SEEDS):
        calls = draw_calls(first, seed)
        log = play(first, seed, calls)
        # in another instance, and in an instance that has played something else
        assert play(second, seed, calls) == log
        play(first, seed + 1000, draw_calls(first, seed + 1))
        assert play(first, seed, calls) == log


def test_seeds_make_different_tasks_or_the_environment_has_but_one(config: EnvConfig) -> None:
    env = make_env(config)
    tasks = {env.reset(seed=seed)[0] for seed in range(20)}
    # these start every episode at one place
    has_one_task = config.id in ("FrozenLake-v1", "CliffWalking-v1", "guess_number:GuessNumber-v0")
    assert (len(tasks) == 1) == has_one_task


def test_observations_rewards_flags_and_info_have_their_forms(config: EnvConfig) -> None:
    env = make_env(config)
    for seed in range(NUM_SEEDS):
        observation, info = env.reset(seed=seed)
        assert env.observation_space.contains(observation)
        assert isinstance(info["system"], str)
        for call in draw_calls(env, seed):
            observation, reward, terminated, truncated, info = env.step(call)
            assert env.observation_space.contains(observation)
            assert type(terminated) is bool and type(truncated) is bool
            assert all(type(term) is float and math.isfinite(term) for term in info["reward_terms"].values())
            assert reward == pytest.approx(sum(info["reward_terms"].values()), abs=1e-12)
            assert ("is_success" in info) == (terminated or truncated)
            if terminated or truncated:
                assert type(info["is_success"]) is bool
                with pytest.raises(RuntimeError, match="call reset first"):
                    env.step(call)
                break


def test_tools_are_named_apart_and_their_samples_fit(config: EnvConfig) -> None:
    env = make_env(config)
    names = [spec.name for spec in env.tools]
    assert names and len(set(names)) == len(names)
    for spec in env.tools:
        assert json.loads(json.dumps(spec.parameters)) == spec.parameters
        assert spec.description
    assert all(env.action_space.contains(call) for call in draw_calls(env, 0))


@pytest.mark.parametrize(
    "call",
    [
        ToolCall(name="no_such_tool"),
        ToolCall(name=""),
        ToolCall(name="no_such_tool", arguments={"action": float("nan")}),
        ToolCall(name="act", arguments={"action": 10**30}),
        ToolCall(name="act", arguments={"action": None}),
        ToolCall(name="query"),
        ToolCall(name="query", arguments={"sql": 5}),
        ToolCall(name="guess", arguments={"number": 1, "again": True}),
        ToolCall(name="answer", arguments={"value": ["x" * 100_000]}),
    ],
)
def test_a_bad_call_is_answered_and_leaves_the_episode_as_it_was(config: EnvConfig, call: ToolCall) -> None:
    env = make_env(config)
    calls = draw_calls(env, 3)[:2]
    undisturbed = play(env, 3, calls)
    env.reset(seed=3)
    observation, reward, terminated, truncated, info = env.step(call)
    assert observation.startswith("error: ")
    assert len(observation) < 300
    assert (reward, terminated, truncated, info["reward_terms"]) == (0.0, False, False, {})
    assert info["invalid_call"] == observation.removeprefix("error: ")
    assert [env.step(good)[0] for good in calls[: len(undisturbed) - 1]] == [step[0] for step in undisturbed[1:]]


def test_demonstrators_change_nothing_and_end_their_episodes_in_success(config: EnvConfig) -> None:
    env = make_env(config)
    for seed in range(20):
        env.reset(seed=seed)
        has_ended, is_success = False, None
        for number in range(NUM_CALLS):
            turn = env.expert("expert", random.Random(f"{seed} {number}"))
            assert env.expert("expert", random.Random(f"{seed} {number}")) == turn
            assert set(turn) == {"response", "calls"}
            for call in turn["calls"]:
                assert env.action_space.contains(ToolCall(**call))
                *_, terminated, truncated, info = env.step(ToolCall(**call))
                has_ended, is_success = terminated or truncated, info.get("is_success")
            if has_ended:
                break
        # of a foreign environment only the form of a call is known
        assert isinstance(env, GymToolEnv) or is_success is True
