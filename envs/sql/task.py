"""A seed becomes a task: a database, a question, and the truth."""

import random
from dataclasses import dataclass
from enum import Enum

from segue.envs.sql.database import Table, build, draw_tables
from segue.envs.sql.query import render_cell
from segue.envs.sql.question import LEVELS, Draw, Phrasing, Question, draw_question
from segue.envs.sql.vocabulary import HELD_OUT, TRAINING


class Split(Enum):
    """Which part of the endless tasks; no two splits share a task, whatever the seeds."""

    train = "train"
    heldout_seeds = "heldout_seeds"
    """The vocabulary and wordings of training, other databases and questions."""
    heldout_schemas = "heldout_schemas"
    """Tables, columns and words that training never shows."""
    heldout_phrasings = "heldout_phrasings"
    """Wordings that training never shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SqlTask:
    """What an episode is about."""

    tables: tuple[Table, ...]
    database: bytes
    question: Question
    truth: str
    """The answer as text, by the rule of `query.render_cell`."""

    def text(self) -> str:
        """The user's message: the schema, then the question."""
        schema = " ".join(table.schema() for table in self.tables)
        return f"{schema}\n{self.question.text}"


def make_task(seed: int, level: int, split: Split) -> SqlTask:
    """The task of a seed.

    Raises:
        ValueError: there is no such level.
    """
    check_level(level)
    rng = random.Random(f"{split.value}:{level}:{seed}")
    vocabulary = HELD_OUT if split is Split.heldout_schemas else TRAINING
    phrasing = Phrasing.held_out if split is Split.heldout_phrasings else Phrasing.training
    tables = draw_tables(rng, vocabulary, LEVELS[level].shape)
    question = draw_question(Draw(rng=rng, tables=tables, phrasing=phrasing), LEVELS[level])
    connection = build(tables)
    try:
        ((truth,),) = connection.execute(question.query.sql()).fetchall()
        return SqlTask(tables=tables, database=connection.serialize(), question=question, truth=render_cell(truth))
    finally:
        connection.close()


def check_level(level: int) -> None:
    """Refuses what is no level.

    Raises:
        ValueError: there is no such level.
    """
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(map(str, LEVELS))}, got {level!r}")
