"""The scripted demonstrators of the SQL task.

The expert queries once and answers with the cell that it saw. The fallible one is the warm start's teacher: now and
then it writes a slip for the query (`question.py`), and often it answers in a form that the verifier refuses. Both
kinds of mistake are choices that leave the information in place, so that reinforcement learning can unlearn them.
"""

import random
from typing import Any

from segue.envs.sql.query import QueryReply
from segue.envs.sql.question import Question
from segue.envs.truth import maybe_sloppy, one_call

NO_ROWS_ANSWER = "none"


def query_turn(question: Question, slip_rate: float, rng: random.Random) -> dict[str, Any]:
    """The first turn: the question's query, or one of its slips."""
    query = rng.choice(question.slips) if rng.random() < slip_rate else question.query
    return one_call("query", sql=query.sql())


def answer_turn(reply: QueryReply, sloppy_rate: float, rng: random.Random) -> dict[str, Any]:
    """The last turn: the first cell of the rows that were really returned."""
    answer = reply.rows[0][0] if reply.rows else NO_ROWS_ANSWER
    return one_call("answer", value=maybe_sloppy(answer, sloppy_rate, rng))
