"""The scripted demonstrators of the Python tasks.

The expert runs the problem's program and answers with what it printed. The fallible one is the warm start's teacher:
now and then it writes a slip for the program (`problem.py`), and often it answers in a form that the grader refuses.
"""

import random
from typing import Any

from segue.envs.python.problem import Problem

SLOPPY_FORM = "it is {answer}"


def program_turn(problem: Problem, slip_rate: float, rng: random.Random) -> dict[str, Any]:
    """The first turn: the problem's program, or one of its slips."""
    code = rng.choice(problem.slips) if rng.random() < slip_rate else problem.program
    return _turn("run_python", code=code)


def answer_turn(output: str, sloppy_rate: float, rng: random.Random) -> dict[str, Any]:
    """The last turn: what the program really printed."""
    answer = output.strip()
    if rng.random() < sloppy_rate:
        answer = SLOPPY_FORM.format(answer=answer)
    return _turn("answer", text=answer)


def _turn(name: str, **arguments: str) -> dict[str, Any]:
    return {"response": "", "calls": [{"name": name, "arguments": arguments}]}
