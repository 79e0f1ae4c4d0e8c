"""Foreign gymnasium environments as one tool. Their laws as environments: tests/contract/test_env_contract.py."""

import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from env_cases import make_env

from segue.conf.schema import EnvConfig
from segue.envs.errors import EnvironmentSetupError
from segue.envs.factory import EnvFactory
from segue.envs.foreign_action import ActionForm
from segue.envs.tool import ToolCall

CONFIG = EnvConfig(id="faulty_envs:Corridor-v0", import_folder=str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _module_path() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before


def act(action: Any) -> ToolCall:
    return ToolCall(name="act", arguments={"action": action})


def test_named_actions_become_an_enum() -> None:
    env = make_env(replace(CONFIG, success_return=1.0))
    (spec,) = env.tools
    assert spec.name == "act"
    assert spec.parameters["properties"] == {"action": {"type": "string", "enum": ["left", "right"]}}
    assert env.reset(seed=0) == ("0", {"place": 0, "system": ""})
    assert env.step(act("right"))[:4] == ("1", 0.0, False, False)
    assert env.step(act("left"))[0] == "0"
    assert env.step(act(1))[0] == "error: act.action must be of type string, got 1"


@pytest.mark.parametrize(
    ("env_id", "kind"),
    [("Corridor-v0", np.int64), ("Shifted-v0", np.int64), ("Moving-v0", np.ndarray)],
)
def test_an_environment_gets_actions_as_its_space_draws_them(env_id: str, kind: type) -> None:
    env = make_env(replace(CONFIG, id=f"faulty_envs:{env_id}", success_return=1.0))
    env.reset(seed=0)
    space = env.action_space
    space.seed(0)
    # the corridor, which is longer than this, takes down what it was given
    for _ in range(2):
        *_, info = env.step(space.sample())
        assert info["action_type"] == kind.__name__


def test_unnamed_actions_become_an_integer_in_its_range() -> None:
    env = make_env(EnvConfig(id="FrozenLake-v1", kwargs={"is_slippery": False}))
    (spec,) = env.tools
    assert spec.parameters["properties"] == {"action": {"type": "integer", "minimum": 0, "maximum": 3}}
    env.reset(seed=0)
    # the default 4x4 map: S F F F / F H F H / F F F H / H F F G; right twice, down three times, right
    path = [env.step(act(action)) for action in (2, 2, 1, 1, 1, 2)]
    assert [step[0] for step in path] == ["1", "2", "6", "10", "14", "15"]
    assert path[-1][1:4] == (1.0, True, False)
    assert path[-1][4]["reward_terms"] == {"reward": 1.0}
    # the spec's threshold is 0.7
    assert path[-1][4]["is_success"] is True
    env.reset(seed=0)
    env.step(act(1))
    # right of the start's lower neighbour is a hole
    *_, terminated, truncated, info = env.step(act(2))
    assert (terminated, truncated, info["is_success"]) == (True, False, False)


@pytest.mark.parametrize(
    ("changes", "successes"),
    [
        # the environment's own word comes first
        ({"id": "faulty_envs:HardCorridor-v0", "kwargs": {"says_success": True}}, [True]),
        # return 1 against thresholds of 0.5 and 2
        ({"id": "faulty_envs:EasyCorridor-v0"}, [True]),
        ({"id": "faulty_envs:HardCorridor-v0"}, [False]),
        ({"success_return": 1.0}, [True]),
        ({"success_return": 1.5}, [False]),
    ],
)
def test_success_is_the_environments_word_else_a_return(changes: dict[str, Any], successes: list[bool]) -> None:
    env = make_env(replace(CONFIG, **changes))
    env.reset(seed=0)
    steps = [env.step(act("right")) for _ in range(3)]
    assert ["is_success" in step[4] for step in steps] == [False, False, True]
    assert [steps[-1][4]["is_success"]] == successes


def test_what_the_base_class_says_in_an_info_is_not_taken_from_a_foreign_one() -> None:
    env = make_env(replace(CONFIG, kwargs={"says": {"invalid_call": 0, "is_success": False}}, success_return=1.0))
    assert env.reset(seed=0)[1] == {"place": 0, "system": ""}
    *_, info = env.step(act("right"))
    assert not {"invalid_call", "is_success"} & info.keys()
    assert "invalid_call" in env.step(act("up"))[4]


def test_a_space_that_cannot_draw_is_named() -> None:
    # its width is beyond its own dtype
    form = ActionForm(gymnasium.spaces.Box(0, 2**63 - 1, (1,), np.int64), None)
    with pytest.raises(ValueError, match=r"^actions must be such as their space can draw, got Box\(.*: "):
        form.sample(0)


def test_without_any_rule_the_end_names_the_remedy() -> None:
    env = make_env(CONFIG)
    env.reset(seed=0)
    env.step(act("right"))
    env.step(act("right"))
    with pytest.raises(ValueError, match=r"else set env\.success_return"):
        env.step(act("right"))


def test_the_time_limit_truncates() -> None:
    env = make_env(replace(CONFIG, success_return=1.0))
    env.reset(seed=0)
    steps = [env.step(act("left")) for _ in range(5)]
    # max_episode_steps=5
    assert [step[3] for step in steps] == [False] * 4 + [True]
    assert (steps[-1][2], steps[-1][4]["is_success"]) == (False, False)


@pytest.mark.parametrize(
    ("observations", "text"),
    [("discrete", "0"), ("text", "you are at 0"), ("box", "0 0\n0.3333 1")],
)
def test_observations_become_compact_text(observations: str, text: str) -> None:
    assert make_env(replace(CONFIG, kwargs={"observations": observations})).reset(seed=0)[0] == text


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [({"observations": "nan"}, "observation must be finite"), ({"observations": "outside"}, "observation must be in")],
)
def test_observations_outside_their_space_are_refused(kwargs: dict[str, Any], message: str) -> None:
    env = make_env(replace(CONFIG, kwargs=kwargs))
    with pytest.raises(ValueError, match=message):
        env.reset(seed=0)
        env.step(act("right"))
        env.step(act("right"))


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("old reset", ValueError, "the environment must return observation and info from reset: "),
        (
            "old step",
            ValueError,
            "the environment must return observation, reward, terminated, truncated and info from step: ",
        ),
        ("no reward", TypeError, "reward must be a number, got None"),
        ("nan reward", ValueError, r"reward term reward of tool act must lie in \[-1e\+06, 1e\+06\], got nan"),
        ("text flag", TypeError, "terminated must be true or false, got 'no'"),
        ("no info", TypeError, "info must be a dictionary, got None"),
        ("shape", ValueError, r"observation must be in Discrete\(4\), got \[\d, \d\]"),
    ],
)
@pytest.mark.parametrize("name", ["Careless-v0", "CarelessEndless-v0"])
def test_what_is_returned_in_another_form_is_named(name: str, fault: str, error: type[Exception], message: str) -> None:
    # with gymnasium's time limit around it, and without
    env = make_env(replace(CONFIG, id=f"faulty_envs:{name}", kwargs={"fault": fault}, success_return=1.0))
    with pytest.raises(error, match=f"^{message}"):
        env.reset(seed=0)
        env.step(act("right"))


NESTED = EnvConfig(id="foreign_envs:Arm-v0", import_folder=CONFIG.import_folder)


def test_nested_spaces_become_named_arguments_and_lines() -> None:
    env = make_env(NESTED)
    (spec,) = env.tools
    assert list(spec.parameters["properties"]) == ["grip", "move", "say"]
    observation, info = env.reset(seed=5)
    target = info["goal"]
    seen = f"camera: image of 32x32x3, not shown\nheard: {{}}\nplace: {{}}\ntarget: {target[0]}, {target[1]}"
    assert observation == seen.format("none", "0 0")
    assert info == {"goal": target, "camera": "<uint8 array of 32x32x3>", "system": ""}
    grip = [[0, 1], [-1, 1]]
    call = {"move": [0.25, -0.5], "grip": grip, "say": "ho!"}
    observation, reward, _, _, info = env.step(ToolCall(name="act", arguments=call))
    assert observation == seen.format("ho!", "0.25 -0.5")
    distance = max(abs(0.25 - target[0]), abs(-0.5 - target[1]))
    assert (reward, info["distance"], info["_distance"]) == (-distance, [distance], [True])
    for changes, problem in (
        ({"move": [0.25, 0.75]}, "act.move[1] must be at most 0.5, got 0.75"),
        ({"grip": [[0, 1], [-2, 1]]}, "act.grip[1][0] must be at least -1, got -2"),
        ({"say": "hi!"}, "act.say must be of the characters !ho, got 'i'"),
        ({"extra": 1}, 'act takes no "extra"; it takes: grip, move, say'),
    ):
        observation, reward, *_ends, info = env.step(ToolCall(name="act", arguments={**call, **changes}))
        assert (observation, reward, info["invalid_call"]) == (f"error: {problem}", 0.0, problem)
    # none of them moved the arm
    assert env.step(ToolCall(name="act", arguments=call))[0] == seen.format("ho!, ho!", "0.5 -1")


@pytest.mark.parametrize(
    ("env_id", "action"),
    [
        ("Blackjack-v1", 0),
        ("Taxi-v4", 1),
        ("CliffWalking-v1", 1),
        ("CartPole-v1", 1),
        ("MountainCar-v0", 0),
        ("Acrobot-v1", 2),
        ("Pendulum-v1", [2]),
        ("MountainCarContinuous-v0", [-0.5]),
    ],
)
def test_environments_of_gymnasium_are_played_as_gymnasium_plays_them(env_id: str, action: Any) -> None:
    twin = gymnasium.make(env_id, disable_env_checker=True)
    assert twin.spec is not None
    env = make_env(EnvConfig(id=env_id, success_return=0.0 if twin.spec.reward_threshold is None else None))
    for seed in range(3):
        assert env.reset(seed=seed)[0] == _written(twin.reset(seed=seed)[0])
        has_ended = False
        for _ in range(5):
            if not has_ended:
                observation, reward, terminated, truncated, _ = env.step(act(action))
                expected, *rest, _ = twin.step(action if type(action) is int else np.array(action, np.float32))
                assert observation == _written(expected)
                assert (reward, terminated, truncated) == tuple(rest)
                has_ended = terminated or truncated


def _written(observation: Any) -> str:
    """A tuple of numbers, a vector or a number as text, by another way."""
    if isinstance(observation, tuple):
        return ", ".join(str(int(part)) for part in observation)
    if isinstance(observation, np.ndarray):
        return " ".join(f"{number + 0.0:.4g}" for number in observation.tolist())
    return str(observation)


def test_a_reward_in_an_array_and_a_flag_of_0_or_1_are_taken() -> None:
    env = make_env(replace(CONFIG, id="faulty_envs:Careless-v0", kwargs={"fault": "none"}, success_return=1.0))
    env.reset(seed=0)
    steps = [env.step(act("right"))[1:4] for _ in range(3)]
    assert steps == [(0.0, False, False), (0.0, False, False), (1.0, True, False)]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            replace(CONFIG, id="faulty_envs:Choosing-v0"),
            r"actions of Choosing must be Discrete, .* Tuple of these; got actions\[1\] OneOf\(",
        ),
        (
            replace(CONFIG, kwargs={"observations": "unknown"}),
            r"observations of Corridor must be Discrete, .* of these; got observations\.map\[0\] Unknown",
        ),
        (
            EnvConfig(id="NoSuchThing-v0"),
            "env.id=NoSuchThing-v0 cannot be built: NameNotFound: .* doesn't exist; one that a module of yours, or of "
            "an installed package, registers is env.id=<module>:NoSuchThing-v0$",
        ),
        (
            replace(CONFIG, id="faulty_envs:HardCorridor-v0", success_return=0.5),
            "env.success_return must be null for Corridor, got 0.5: it is registered with a reward_threshold of 2, ",
        ),
        (
            EnvConfig(id="segue.envs.adapters.mcp_tools:McpTools-v0", kwargs={"tools": ["a"]}),
            "^env.kwargs.command and env.kwargs.task must be given for env.id=segue.*McpTools-v0, ",
        ),
        (EnvConfig(id="Frozenlake-v1"), "; nearest: FrozenLake-v1; one that a module "),
        (
            EnvConfig(id="faulty_envs:Coridor-v0", import_folder=CONFIG.import_folder),
            "NameNotFound: .*; importing faulty_envs does not register it; nearest: Corridor-v0$",
        ),
        (EnvConfig(kwargs={"level": 1, "lvl": 2}), "unexpected keyword argument 'lvl'"),
        (EnvConfig(kwargs={"level": 4}), "level must be one of 1, 2, 3, got 4"),
        (EnvConfig(kwargs={"split": "test"}), "'test' is not a valid Split"),
        (EnvConfig(success_return=1.0), "env.success_return must be null for sql"),
    ],
)
def test_what_cannot_be_used_says_what_can(config: EnvConfig, message: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=message):
        EnvFactory(config).make()


@pytest.mark.parametrize(
    ("config", "actions"),
    [
        (replace(CONFIG, success_return=1.0), ["left", "right"]),
        (EnvConfig(id="FrozenLake-v1"), [0, 1, 2, 3]),
        (replace(CONFIG, id="faulty_envs:Shifted-v0", success_return=1.0), [-1, 0]),
    ],
)
def test_the_demonstrator_draws_every_action_evenly(config: EnvConfig, actions: list[Any]) -> None:
    env = make_env(config)
    env.reset(seed=0)
    rng = random.Random(0)
    num_draws = 400 * len(actions)
    turns = [env.expert("expert", rng) for _ in range(num_draws)]
    assert all(env.action_space.contains(ToolCall(**call)) for turn in turns for call in turn["calls"])
    drawn = Counter(turn["calls"][0]["arguments"]["action"] for turn in turns)
    assert sorted(drawn) == actions
    # 400 expected each, with a standard deviation below 20
    assert all(300 < count < 500 for count in drawn.values())
    assert [env.expert("fallible", random.Random(3)) for _ in range(2)] == [env.expert("expert", random.Random(3))] * 2


def test_a_tool_environment_is_used_as_it_is_with_its_registered_bound() -> None:
    env = make_env(replace(CONFIG, id="faulty_envs:ShortFaulty-v0"))
    assert "add" in [spec.name for spec in env.tools]
    env.reset(seed=0)
    env.step(ToolCall(name="draw"))
    # max_episode_steps=2
    assert env.step(ToolCall(name="draw"))[2:4] == (False, True)


def test_the_launch_folder_is_searched_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise AssertionError('hides the standard library')")
    (tmp_path / "my_corridor.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv\n"
        "gymnasium.register(id='Mine-v0', entry_point=FrozenLakeEnv, reward_threshold=1.0)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert make_env(EnvConfig(id="my_corridor:Mine-v0")).reset(seed=0)[0] == "0"
    assert sys.path[-1] == str(tmp_path)
    del sys.modules["my_corridor"]


def test_an_import_that_fails_inside_the_users_module_is_not_blamed_on_the_id(tmp_path: Path) -> None:
    (tmp_path / "needs_more.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(EnvironmentSetupError, match="No module named 'not_installed_anywhere'"):
        make_env(EnvConfig(id="needs_more:X-v0", import_folder=str(tmp_path)))
