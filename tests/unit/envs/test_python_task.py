"""The endless Python tasks: splits, classes, truths."""

import pytest
from env_cases import LocalRunner

from segue.envs.python.problem import HELD_OUT_KINDS, TRAINING_KINDS, Problem
from segue.envs.python.task import LEVELS, TRAINING_CLASSES, Split, make_problem
from segue.envs.python.vocabulary import PHRASES

NUM_TASKS = 400


def problem_of(seed: int, split: Split, level: int = 1) -> Problem:
    return make_problem(seed, level, split, TRAINING_CLASSES)


def content(problem: Problem) -> tuple[str, tuple[tuple[str, bytes], ...]]:
    return problem.text, tuple(sorted(problem.files.items()))


@pytest.mark.parametrize("level", LEVELS)
def test_no_two_splits_share_a_task(level: int) -> None:
    tasks = {split: {content(problem_of(seed, split, level)) for seed in range(NUM_TASKS)} for split in Split}
    for split, own in tasks.items():
        assert all(own.isdisjoint(other) for name, other in tasks.items() if name is not split)
    # endless: hardly a task is drawn twice (a text of four words, the smallest class, has 21^4 of them)
    assert all(len(own) > 0.97 * NUM_TASKS for own in tasks.values())


def test_a_task_of_training_is_never_held_out_by_another_seed() -> None:
    # the smallest class at hand: what a seed drew as held out must not be what any other seed trains on
    training = {content(problem_of(seed, Split.train)) for seed in range(5000)}
    held_out = {content(problem_of(seed, Split.heldout_seeds)) for seed in range(5000)}
    assert training.isdisjoint(held_out)


def test_every_class_occurs_in_its_splits_and_no_other() -> None:
    kinds = {split: {problem_of(seed, split).kind for seed in range(NUM_TASKS)} for split in Split}
    training = {build.__name__ for build in TRAINING_KINDS}
    assert kinds[Split.train] == kinds[Split.heldout_seeds] == kinds[Split.heldout_phrasings] == training
    assert kinds[Split.heldout_kinds] == {build.__name__ for build in HELD_OUT_KINDS}
    assert training | kinds[Split.heldout_kinds] == set(PHRASES)


@pytest.mark.parametrize("split", Split)
@pytest.mark.parametrize("level", LEVELS)
def test_a_problems_program_prints_its_truth_and_a_slip_rarely_does(level: int, split: Split) -> None:
    runner, lucky, num_slips = LocalRunner(), 0, 0
    for seed in range(NUM_TASKS):
        problem = problem_of(seed, split, level)
        reply = runner.run(problem.program, problem.files)
        assert (reply.exit_status, reply.output.strip()) == (0, problem.truth), problem
        for slip in problem.slips:
            wrong = runner.run(slip, problem.files)
            assert wrong.exit_status == 0, problem
            lucky += wrong.output.strip() == problem.truth
            num_slips += 1
    # the median is where it stood in one of five to nine places, the rows' leader in two columns at once
    assert lucky < 0.15 * num_slips


def test_the_truth_is_worked_out_by_hand_here() -> None:
    """A second derivation of one problem of each class, from the files and the wording alone."""
    seen = set()
    for seed in range(NUM_TASKS):
        for split in (Split.train, Split.heldout_kinds):
            problem = problem_of(seed, split)
            lines = next(iter(problem.files.values()), b"").decode().splitlines()
            numbers = [int(line) for line in lines if line.isdigit()]
            rows = [line.split(",") for line in lines]
            words = problem.text.replace("?", "").replace(":", "").split()
            match problem.kind:
                case "total":
                    expected = str(sum(numbers))
                case "highest":
                    expected = str(sorted(numbers)[-1])
                case "spread":
                    expected = str(sorted(numbers)[-1] - sorted(numbers)[0])
                case "middle":
                    below = {n: sum(m < n for m in numbers) for n in numbers}
                    above = {n: sum(m > n for m in numbers) for n in numbers}
                    half = len(numbers) // 2
                    (expected,) = {str(n) for n in numbers if below[n] <= half and above[n] <= half}
                case "count_above":
                    (value,) = [int(word) for word in words if word.isdigit()]
                    expected = str(len([number for number in numbers if number > value]))
                case "count_word":
                    expected = str(len([line for line in lines if line in words]))
                case "table_total":
                    (column,) = [at for at, name in enumerate(rows[0]) if at > 1 and name in words]
                    expected = str(sum(int(row[column]) for row in rows[1:] if row[1] in words))
                case "table_top":
                    (column,) = [at for at, name in enumerate(rows[0]) if at > 1 and name in words]
                    expected = sorted(rows[1:], key=lambda row, column=column: int(row[column]))[-1][0]
                case _:
                    continue
            seen.add(problem.kind)
            assert problem.truth == expected, problem
    assert len(seen) == 8


@pytest.mark.parametrize(
    ("kind", "text", "truth"),
    [
        ("reverse", "what is green south lily red reversed?", "der ylil htuos neerg"),
        ("reorder", "what is east south glass green with its words sorted?", "east glass green south"),
        # 9 -> 59 % 50 = 9
        ("simulate", "x=9; 7 times x becomes (x*6+5) modulo 50. x?", "9"),
        ("initials", "what are the first letters of south daisy mint red?", "sdmr"),
    ],
)
def test_truths_of_problems_without_a_file(kind: str, text: str, truth: str) -> None:
    drawn = [problem_of(seed, split) for split in (Split.train, Split.heldout_kinds) for seed in range(12)]
    (problem,) = {(problem.kind, problem.truth) for problem in drawn if problem.text == text}
    assert problem == (kind, truth)


def test_classes_can_be_chosen_and_held_out_ones_stay() -> None:
    chosen = ("total", "reverse")
    for split in (Split.train, Split.heldout_seeds, Split.heldout_phrasings):
        assert {make_problem(seed, 1, split, chosen).kind for seed in range(40)} == set(chosen)
    held_out = [problem_of(seed, Split.heldout_kinds) for seed in range(10)]
    assert [make_problem(seed, 1, Split.heldout_kinds, chosen) for seed in range(10)] == held_out


@pytest.mark.parametrize("classes", [[], ["spread"], ["total", 3], "total", None])
def test_other_classes_are_refused(classes: object) -> None:
    with pytest.raises(ValueError, match=r"classes must be a list of some of total, highest.*, got"):
        make_problem(0, 1, Split.train, classes)  # type: ignore[arg-type]


def test_there_is_no_other_level() -> None:
    with pytest.raises(ValueError, match="level must be one of 1, 2, got 3"):
        make_problem(0, 3, Split.train, TRAINING_CLASSES)
