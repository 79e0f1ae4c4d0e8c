"""What the base class of a tool environment does by itself. Faults that need a worker: test_client.py."""

import random

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
    with pytest.raises(ValueError, match="tool stop ended the episode and must say is_success"):
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
