"""The scripted demonstrators of the archive.

The expert reads to the end, quotes the entries that decide, and answers. The fallible one is the warm start's teacher:
now and then it answers with what somebody concludes who did not read well (`question.py`), and often in a form that
the grader refuses.
"""

import random
from typing import Any

from segue.envs.archive.question import Question
from segue.envs.truth import maybe_sloppy, one_call


def reading_turn() -> dict[str, Any]:
    """A turn before the question is known: on to the next page."""
    return one_call("next")


def answer_turn(question: Question, slip_rate: float, sloppy_rate: float, rng: random.Random) -> dict[str, Any]:
    """The last turn: entries a line each, then what follows from them: the truth, or one of its slips."""
    conclusion = rng.choice(question.slips) if rng.random() < slip_rate else question.right
    quotes = "\n".join(entry.text for entry in conclusion.quotes)
    return {**one_call("answer", value=maybe_sloppy(conclusion.answer, sloppy_rate, rng)), "response": quotes}
