"""What the base class of a tool environment does by itself. Faults that need a worker: test_client.py."""

import random
from typing import Any

import pytest

from segue.envs.tool import ToolCall, tool
from segue.envs.tool_env import Task, ToolEnv, ToolResult


class Ladder(ToolEnv):
    """Climb to the top."""

    def begin(self, seed: int, options: dict[str, object]) -> Task:
        self.height = 0
        return Task(user=f"climb {seed}", system="be careful", info={"seed": seed})

    @tool("Climb.")
    def climb(self) -> ToolResult:
        self.height += 1
        is_top = self.height == 3
        terms = {"effort": -0.1, "progress": 0.5}
        return ToolResult(
            observation=str(self.height), reward_terms=terms, terminated=is_top, is_success=is_top or None
        )

    @tool("Stop.")
    def stop(self) -> ToolResult:
        return ToolResult(observation="", terminated=True)

    @tool("Be paid.")
    def earn(self, amount: float) -> ToolResult:
        return ToolResult(observation="", reward_terms={"pay": amount * 1e6})

    @tool("Fall asleep.")
    def sleep(self) -> ToolResult:
        return ToolResult(observation="zzz", truncated=True)

    def progress(self) -> dict[str, object]:
        return {"height": self.height}


CLIMB = ToolCall(name="climb")


def test_an_episode_from_task_to_success() -> None:
    env = Ladder()
    assert env.reset(seed=7) == ("climb 7", {"seed": 7, "system": "be careful"})
    observation, reward, terminated, truncated, info = env.step(CLIMB)
    # 0.5 - 0.1
    assert (observation, reward, terminated, truncated) == ("1", pytest.approx(0.4), False, False)
    assert info == {"height": 1, "reward_terms": {"effort": -0.1, "progress": 0.5}}
    env.step(CLIMB)
    *_, terminated, truncated, info = env.step(CLIMB)
    assert (terminated, truncated, info["is_success"]) == (True, False, True)
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step(CLIMB)


def test_a_step_needs_a_reset() -> None:
    with pytest.raises(RuntimeError, match="call reset first"):
        Ladder().step(CLIMB)


def test_an_end_must_say_whether_it_is_a_success() -> None:
    env = Ladder()
    env.reset(seed=0)
    with pytest.raises(
        ValueError, match="is_success of tool stop, which ended the episode, must be true or false, got None"
    ):
        env.step(ToolCall(name="stop"))


@pytest.mark.parametrize(("amount", "is_allowed"), [(1.0, True), (-1.0, True), (1.01, False), (-1e302, False)])
def test_a_reward_term_is_bounded(amount: float, is_allowed: bool) -> None:
    env = Ladder()
    env.reset(seed=0)
    call = ToolCall(name="earn", arguments={"amount": amount})
    if is_allowed:
        assert env.step(call)[1] == amount * 1e6
        return
    with pytest.raises(ValueError, match=r"reward term pay of tool earn must lie in \[-1e\+06, 1e\+06\], got"):
        env.step(call)


def test_truncation_stays_apart_from_the_end_and_is_no_success() -> None:
    env = Ladder()
    env.reset(seed=0)
    *_, terminated, truncated, info = env.step(ToolCall(name="sleep"))
    assert (terminated, truncated, info["is_success"]) == (False, True, False)


def test_calls_are_bounded_bad_ones_included() -> None:
    env = Ladder()
    env.max_calls = 2
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(ToolCall(name="fly"))
    assert (observation, reward, truncated) == ('error: no tool "fly"; tools: climb, stop, earn, sleep', 0.0, False)
    assert info["invalid_call"] == 'no tool "fly"; tools: climb, stop, earn, sleep'
    assert info["height"] == 0
    *_, terminated, truncated, info = env.step(CLIMB)
    assert (terminated, truncated, info["is_success"]) == (False, True, False)


def test_an_end_at_the_bound_is_an_end() -> None:
    env = Ladder()
    env.max_calls = 3
    env.reset(seed=0)
    env.step(CLIMB)
    env.step(CLIMB)
    *_, terminated, truncated, info = env.step(CLIMB)
    assert (terminated, truncated, info["is_success"]) == (True, False, True)


def test_a_seed_is_drawn_where_none_is_given() -> None:
    env = Ladder()
    env.reset(seed=1)
    first, _ = env.reset()
    second, _ = env.reset()
    env.reset(seed=1)
    assert env.reset()[0] == first != second


def test_without_demonstrator_or_snapshots_the_environment_says_so() -> None:
    env = Ladder()
    env.reset(seed=0)
    with pytest.raises(NotImplementedError, match="Ladder has no demonstrator"):
        env.expert("expert", random.Random(0))
    assert env.capture() is None


class Careless(ToolEnv):
    """Returns from its one tool, at its beginning and as its snapshot what the test gives."""

    def __init__(self, result: Any = None, task: Any = None, data: Any = None) -> None:
        self._result, self._task, self._data = result, task, data

    def begin(self, seed: int, options: dict[str, object]) -> Task:
        return self._task or Task(user="go")

    @tool("Act.")
    def act(self) -> ToolResult:
        return self._result

    def snapshot(self) -> bytes | None:
        return self._data


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"observation": 5}, TypeError, "observation of tool act must be a string, got 5"),
        ({"reward_terms": 1.0}, TypeError, "reward_terms of tool act must be a dictionary, got 1.0"),
        ({"reward_terms": {"a": "1"}}, TypeError, "reward terms of tool act must be numbers by name, got 'a': '1'"),
        ({"reward_terms": {"a": None}}, TypeError, "reward terms of tool act must be numbers by name, got 'a': None"),
        ({"reward_terms": {1: 1.0}}, TypeError, "reward terms of tool act must be numbers by name, got 1: 1.0"),
        (
            {"reward_terms": {"a": float("nan")}},
            ValueError,
            r"reward term a of tool act must lie in \[-1e\+06, 1e\+06\], got nan",
        ),
        ({"terminated": "no"}, TypeError, "terminated of tool act must be true or false, got 'no'"),
        ({"truncated": None}, TypeError, "truncated of tool act must be true or false, got None"),
        ({"is_success": "yes"}, TypeError, "is_success of tool act must be true, false or None, got 'yes'"),
        ({"info": [1]}, TypeError, r"info of tool act must be a dictionary, got \[1\]"),
    ],
)
def test_a_result_of_another_form_is_named(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    env = Careless(ToolResult(**({"observation": ""} | changes)))
    env.reset(seed=0)
    with pytest.raises(error, match=f"^{message}"):
        env.step(ToolCall(name="act"))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("go", "begin must return a Task, got 'go'"),
        (Task(user=5), "user of the Task that begin returns must be a string, got 5"),  # type: ignore[arg-type]
        (Task(user="", system=b"x"), "system of the Task .* must be a string, got b'x'"),  # type: ignore[arg-type]
        (Task(user="", info=[]), r"info of the Task .* must be a dictionary, got \[\]"),  # type: ignore[arg-type]
    ],
)
def test_a_task_of_another_form_is_named(task: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}"):
        Careless(task=task).reset(seed=0)


def test_a_snapshot_that_is_not_bytes_is_named() -> None:
    env = Careless(data={"value": 1})
    env.reset(seed=0)
    with pytest.raises(TypeError, match=r"^snapshot must return bytes or None, got \{'value': 1\}"):
        env.capture()
