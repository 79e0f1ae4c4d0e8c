"""Tasks of the SQL environment: databases, questions and their truth, derived here a second time without SQL."""

import re
import sqlite3
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from segue.envs.sql.database import Table
from segue.envs.sql.query import render_cell
from segue.envs.sql.question import LEVELS, PHRASES
from segue.envs.sql.task import Split, SqlTask, make_task
from segue.envs.sql.vocabulary import HELD_OUT, TRAINING, Vocabulary

NUM_SEEDS = 300


def all_words(vocabulary: Vocabulary) -> set[str]:
    words = {*vocabulary.events, *vocabulary.numbers, *vocabulary.texts, *vocabulary.entities}
    for key, names in vocabulary.entities.values():
        words |= {key, *names}
    for values in vocabulary.texts.values():
        words |= set(values)
    return words


def parse_question(task: SqlTask) -> dict[str, str]:
    """The names that a wording was filled in with."""
    training, held_out = PHRASES[task.question.kind]
    for phrase in (*training, *held_out):
        names: set[str] = set()

        def group(match: re.Match[str], names: set[str] = names) -> str:
            name = match[1]
            if name in names:
                return rf"(?P={name})"
            names.add(name)
            return rf"(?P<{name}>\w+)"

        pattern = re.sub(r"\\\{(\w+)\\\}", group, re.escape(phrase))
        match = re.fullmatch(pattern, task.question.text)
        if match is not None:
            return match.groupdict()
    raise AssertionError(task.question.text)


def rows_of(table: Table) -> list[dict[str, Any]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def top_group(rows: list[dict[str, Any]], column: str, number: str) -> str:
    totals: Counter[str] = Counter()
    for row in rows:
        totals[row[column]] += row[number]
    return totals.most_common(1)[0][0]


def derive_truth(task: SqlTask) -> Any:
    """The answer from the question's words and the rows, in Python."""
    names = parse_question(task)
    kind = task.question.kind
    if "table" not in names:
        # held-out wordings may leave the table to the reader
        names["table"] = task.tables[0].name
    rows = rows_of(next(table for table in task.tables if table.name == names["table"]))
    key = task.tables[[table.name for table in task.tables].index(names["table"])].key
    column, number = names.get("column", ""), names.get("number", "")
    if kind.startswith("join"):
        entities = {row[key]: row for row in rows}
        events = [{**row, **entities[row[names["table"]]]} for row in rows_of(task.tables[-1])]
        if kind == "join_top":
            return top_group(events, column, number)
        if kind == "join_lookup":
            return next(row[column] for row in events if row["id"] == int(names["id"]))
        # a held-out wording may name the word alone
        chosen = [row for row in events if names["value"] in ([row[column]] if column else row.values())]
        numbers = [row[number] for row in chosen] if number else []
        derive: dict[str, Callable[[], Any]] = {
            "join_sum": lambda: sum(numbers),
            "join_max": lambda: max(numbers),
            "join_average": lambda: sum(numbers) / len(numbers),
            "join_count": lambda: len(chosen),
        }
        return derive[kind]()
    if kind.startswith("lookup"):
        return next(row[column] for row in rows if row[key] == names["name"])
    if kind == "group_top":
        return top_group(rows, column, number)
    if kind == "count_above":
        return sum(row[column] > int(names["value"]) for row in rows)
    if kind.startswith("filtered"):
        chosen = [row for row in rows if names["value"] in ([row[column]] if column else row.values())]
        if kind == "filtered_count":
            return len(chosen)
        return (sum if kind == "filtered_sum" else max)(row[number] for row in chosen)
    if kind.startswith("arg"):
        return (max if kind == "argmax" else min)(rows, key=lambda row: row[column])[key]
    return {"max": max, "min": min, "sum": sum}[kind](row[column] for row in rows)


@pytest.mark.parametrize("split", list(Split))
@pytest.mark.parametrize("level", list(LEVELS))
def test_the_truth_is_what_the_question_asks(level: int, split: Split) -> None:
    for seed in range(NUM_SEEDS):
        task = make_task(seed, level, split)
        assert task.truth == render_cell(derive_truth(task)), task.text()


def test_the_database_holds_the_tables() -> None:
    task = make_task(3, 3, Split.train)
    connection = sqlite3.connect(":memory:")
    connection.deserialize(task.database)
    for table in task.tables:
        cursor = connection.execute(f"SELECT * FROM {table.name}")
        assert tuple(name for name, *_ in cursor.description) == table.columns
        assert tuple(cursor.fetchall()) == table.rows
    # the event table refers to the first one
    parents = set(task.tables[0].values(task.tables[0].key))
    assert set(task.tables[-1].values(task.tables[0].name)) <= parents


def test_a_seed_is_a_task_and_no_two_splits_share_one() -> None:
    for level in LEVELS:
        tasks = {split: [make_task(seed, level, split) for seed in range(100)] for split in Split}
        assert tasks[Split.train] == [make_task(seed, level, Split.train) for seed in range(100)]
        seen = [(task.text(), task.tables) for split in Split for task in tasks[split]]
        assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("level", list(LEVELS))
def test_a_levels_classes_are_about_equally_likely(level: int) -> None:
    counts = Counter(make_task(seed, level, Split.train).question.kind for seed in range(1200))
    assert len(counts) == 6
    # 1200 / 6 = 200, standard deviation 13; group_top and join_top give some of their share up to ties
    assert all(140 < count < 260 for count in counts.values()), counts


def test_level_one_is_small_enough_to_learn() -> None:
    tasks = [make_task(seed, 1, Split.train) for seed in range(1000)]
    assert (len(TRAINING.entities), len(TRAINING.numbers), len(TRAINING.texts)) == (12, 16, 6)
    names: dict[str, set[object]] = {}
    for task in tasks:
        assert len(task.tables) == 2
        assert len(task.text()) <= 150
        for table in task.tables:
            assert len(table.columns) == 4
            names.setdefault(table.name, set()).update(table.values(table.key))
    assert {len(pool) for pool in names.values()} == {5}
    assert {task.question.kind for task in tasks} == {
        "lookup_number", "lookup_text", "filtered_count", "max", "min", "sum",
    }  # fmt: skip


def test_held_out_schemas_share_no_word_with_training() -> None:
    # the key of every event table is `id`; names of rows that occur as ordinary words would be shared ones
    assert all_words(TRAINING) & all_words(HELD_OUT) == set()
    for seed in range(200):
        task = make_task(seed, 3, Split.heldout_schemas)
        cells = {cell for table in task.tables for cell in (table.name, *table.columns, *sum(table.rows, ()))}
        assert not cells & all_words(TRAINING)


def test_held_out_wordings_are_never_those_of_training() -> None:
    for kind, (training, held_out) in PHRASES.items():
        assert not set(training) & set(held_out), kind
    texts = {make_task(seed, level, Split.heldout_phrasings).question.text for seed in range(200) for level in LEVELS}
    training_patterns = [
        re.compile(re.sub(r"\\\{\w+\\\}", r"\\w+", re.escape(phrase)))
        for phrases, _ in PHRASES.values()
        for phrase in phrases
    ]
    assert not [text for text in texts if any(pattern.fullmatch(text) for pattern in training_patterns)]


@pytest.mark.parametrize("level", list(LEVELS))
def test_slips_are_other_queries_that_keep_the_function(level: int) -> None:
    functions = re.compile(r"MAX|MIN|SUM|AVG|COUNT|DESC")
    for seed in range(NUM_SEEDS):
        question = make_task(seed, level, Split.train).question
        assert question.slips
        for slip in question.slips:
            assert slip.sql() != question.query.sql()
            assert functions.findall(slip.sql()) == functions.findall(question.query.sql())
            assert slip.source == question.query.source


def test_there_is_no_other_level() -> None:
    with pytest.raises(ValueError, match="level must be one of 1, 2, 3, got 4"):
        make_task(0, 4, Split.train)
