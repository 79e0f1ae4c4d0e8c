"""What tasks with one right answer share: how an answer is graded, and the forms of their demonstrators."""

import random
from typing import Any

from segue.envs.tool_env import ToolResult

SUCCESS_REWARD = 1.0
PROCESS_REWARD = 0.1
EFFICIENCY_REWARD = 0.1
MAX_REWARD = SUCCESS_REWARD + PROCESS_REWARD + EFFICIENCY_REWARD
SLOPPY_FORM = "it is {answer}"
# a tool call and an answer are free; each further call costs a quarter of the efficiency reward
_NUM_FREE_CALLS = 2
_EXTRA_CALL_COST = 0.25


def grade_answer(answer: str, truth: str, num_calls: int) -> ToolResult:
    """The last step of an episode.

    Args:
        answer: as the policy gave it; white space around it does not count.
        truth: the right one.
        num_calls: tool calls of the episode, the answer included.
    Returns:
        Terms `success`, 1 or 0, and `efficiency`, on a right answer 0.1 less a quarter of it for each call beyond two.
    """
    is_right = answer.strip() == truth
    num_extra = max(0, num_calls - _NUM_FREE_CALLS)
    terms = {
        "success": SUCCESS_REWARD if is_right else 0.0,
        "efficiency": EFFICIENCY_REWARD * max(0.0, 1.0 - _EXTRA_CALL_COST * num_extra) if is_right else 0.0,
    }
    observation = "right" if is_right else "wrong"
    return ToolResult(observation=observation, reward_terms=terms, terminated=True, is_success=is_right)


def check_rates(**rates: float) -> None:
    """Refuses what is no probability.

    Raises:
        ValueError: naming the first.
    """
    for name, rate in rates.items():
        if not 0.0 <= rate <= 1.0:
            raise ValueError(f"{name} must be in [0, 1], got {rate}")


def is_fallible(skill: str) -> bool:
    """Whether a demonstrator of this skill makes mistakes.

    Raises:
        ValueError: there is no such skill.
    """
    if skill not in ("expert", "fallible"):
        raise ValueError(f"skill must be expert or fallible, got {skill!r}")
    return skill == "fallible"


def maybe_sloppy(answer: str, sloppy_rate: float, rng: random.Random) -> str:
    """The answer, at this rate in a form that the grader refuses."""
    return SLOPPY_FORM.format(answer=answer) if rng.random() < sloppy_rate else answer


def one_call(name: str, **arguments: str) -> dict[str, Any]:
    """A demonstrator's turn of a single tool call."""
    return {"response": "", "calls": [{"name": name, "arguments": arguments}]}
