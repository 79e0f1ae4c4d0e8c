"""The stream of tasks: order, seeds, and what is drawn again after a restore."""

import pytest

from segue.actors.task import TaskKind, TaskStream, is_open, member_seed

LIMIT = 1_000_000


def make_stream(run_seed: int = 0, kind: TaskKind = TaskKind.train, incarnation: int = 0) -> TaskStream:
    stream = TaskStream(kind=kind, run_seed=run_seed, seed_limit=LIMIT)
    stream.restore({}, incarnation, finished=())
    return stream


def numbers(stream: TaskStream, count: int) -> list[int]:
    return [stream.draw().number for _ in range(count)]


def test_tasks_come_in_order_with_seeds_that_depend_on_run_kind_and_number_alone() -> None:
    first, second = make_stream(), make_stream(incarnation=3)
    tasks, again = [first.draw() for _ in range(50)], [second.draw() for _ in range(50)]
    assert [task.number for task in tasks] == list(range(50))
    assert [task.seed for task in tasks] == [task.seed for task in again]
    assert [task.task_id for task in tasks] == [task.task_id for task in again]
    assert tasks[4].group_id == "train-0000004.0" and again[4].group_id == "train-0000004.3"
    assert len({task.seed for task in tasks}) == 50
    assert all(0 <= task.seed < LIMIT for task in tasks)
    other_run = make_stream(run_seed=1)
    other_kind = make_stream(kind=TaskKind.demonstration)
    assert not {task.seed for task in tasks} & {other_run.draw().seed for _ in range(50)}
    assert not {task.seed for task in tasks} & {other_kind.draw().seed for _ in range(50)}


def test_members_of_a_group_of_demonstrations_have_seeds_of_their_own() -> None:
    stream = make_stream(kind=TaskKind.demonstration)
    first, second = stream.draw(), stream.draw()
    seeds = [member_seed(task, index, LIMIT) for task in (first, second) for index in range(16)]
    assert len(set(seeds)) == 32
    assert all(0 <= seed < LIMIT for seed in seeds)


def test_number_of_reads_a_task_id() -> None:
    stream = make_stream()
    for number in range(3):
        assert stream.number_of(stream.draw().task_id) == number


@pytest.mark.parametrize(
    "task_id", ["notes", "train-7", "train-00000007", "train-000000x", "demonstration-0000001", ""]
)
def test_what_is_no_task_of_the_stream_has_no_number(task_id: str) -> None:
    assert make_stream().number_of(task_id) is None


def test_outstanding_tasks_are_drawn_again_after_a_restore_and_finished_ones_are_not() -> None:
    stream = make_stream()
    numbers(stream, 6)
    for finished in (0, 1, 3):
        stream.settle(finished)
    state = stream.state()
    # after the checkpoint: 4 finished, 6 and 7 were drawn and 7 finished
    restored = make_stream()
    restored.restore(state, 1, finished=[0, 1, 3, 4, 7])
    assert numbers(restored, 5) == [2, 5, 6, 8, 9]


def test_tasks_that_are_played_still_when_the_run_goes_back_are_not_drawn_again() -> None:
    stream = make_stream()
    numbers(stream, 6)
    for finished in (0, 1, 3):
        stream.settle(finished)
    state = stream.state()
    # 2 was asked for before the checkpoint, 7 after it; both are played on
    stream.restore(state, 1, finished=[0, 1, 3], in_flight=[2, 7])
    assert numbers(stream, 4) == [4, 5, 6, 8]
    for finished in (2, 4, 5, 6, 7):
        stream.settle(finished)
    assert stream.state() == {"cursor": 9, "unfinished": [8]}


def test_a_task_that_is_put_back_is_drawn_next() -> None:
    stream = make_stream()
    numbers(stream, 3)
    for finished in (0, 1, 2):
        stream.settle(finished)
    stream.put_back(1)
    assert stream.state() == {"cursor": 3, "unfinished": [1]}
    assert numbers(stream, 2) == [1, 3]


def test_the_stream_holds_the_tasks_whose_groups_are_to_come() -> None:
    stream = make_stream()
    numbers(stream, 3)
    stream.settle(1)
    assert [f"train-{number:07d}" in stream for number in range(5)] == [True, False, True, True, True]
    assert "demonstration-0000000" not in stream


def test_a_task_is_open_until_its_group_stands_in_the_checkpoint() -> None:
    state = {"cursor": 5, "unfinished": [1, 3]}
    assert [is_open(state, number) for number in range(7)] == [False, True, False, True, False, True, True]
    assert is_open({}, 0)


def test_a_restore_without_a_checkpoint_starts_anew_but_keeps_finished_groups() -> None:
    stream = make_stream()
    stream.restore({}, 0, finished=[1])
    assert numbers(stream, 3) == [0, 2, 3]


def test_a_task_whose_group_is_gone_is_drawn_again_once_before_newer_ones() -> None:
    stream = make_stream()
    numbers(stream, 4)
    for number in (0, 1, 2):
        stream.settle(number)
    restored = make_stream()
    # 3 was outstanding and is gone, 2 has another group, 5 lies behind the cursor and comes in its turn
    restored.restore(stream.state(), 1, finished=[0, 2], lost=[1, 2, 3, 5])
    assert numbers(restored, 5) == [1, 3, 4, 5, 6]
