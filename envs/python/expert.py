"""The scripted demonstrators of the Python tasks.

The expert runs the problem's program and answers with what it printed. The fallible one is the warm start's teacher:
now and then it writes a slip for the program (`problem.py`), and often it answers in a form that the grader refuses.
"""

import random
from typing import Any

from segue.envs.python.problem import Problem
from segue.envs.truth import maybe_sloppy, one_call


def program_turn(problem: Problem, slip_rate: float, rng: random.Random) -> dict[str, Any]:
    """The first turn: the problem's program, or one of its slips."""
    code = rng.choice(problem.slips) if rng.random() < slip_rate else problem.program
    return one_call("run_python", code=code)


def answer_turn(output: str, sloppy_rate: float, rng: random.Random) -> dict[str, Any]:
    """The last turn: what the program really printed."""
    return one_call("answer", text=maybe_sloppy(output.strip(), sloppy_rate, rng))
