"""The buffer's promises, as its docstring lists them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from actor_cases import make_group, number_of, write_group

from segue.actors.buffer import Buffer, DropReason, Findings
from segue.actors.task import TaskKind, TaskStream
from segue.rollout.trajectory import PolicyVersion


def make_buffer(folder: Path, count: int, *, max_uses: int = 1) -> Buffer:
    buffer = Buffer(folder, max_uses=max_uses)
    for number in range(count):
        buffer.add(write_group(folder, make_group(number)))
    return buffer


def taken(buffer: Buffer, count: int, step: int) -> list[int]:
    records = buffer.ready()[:count]
    buffer.take(records, step=step)
    return [record.number for record in records]


def ready(buffer: Buffer) -> list[int]:
    return [record.number for record in buffer.ready()]


def restored(folder: Path, state: dict, *, max_uses: int = 1) -> Buffer:
    buffer = Buffer(folder, max_uses=max_uses)
    # a checkpoint holds the ledger as JSON
    findings = buffer.restore(json.loads(json.dumps(state)), number_of, lambda number: True)
    assert findings.damaged == {}
    return buffer


def test_groups_are_taken_in_the_order_of_their_tasks(tmp_path: Path) -> None:
    buffer = Buffer(tmp_path, max_uses=1)
    for number in (3, 0, 2, 1):
        buffer.add(write_group(tmp_path, make_group(number)))
    assert taken(buffer, 3, step=1) == [0, 1, 2]
    assert taken(buffer, 1, step=2) == [3]


def test_a_record_counts_trainable_tokens_by_version(tmp_path: Path) -> None:
    record = write_group(tmp_path, make_group(0, [(0, 4), (0, 4), (0, 5)]))
    # two members, each with two tokens of step 4 and one of step 5
    assert record.tokens_by_version == ((PolicyVersion(0, 4), 4), (PolicyVersion(0, 5), 2))


@pytest.mark.parametrize("max_uses", [1, 2, 3])
def test_a_group_is_taken_at_most_max_uses_times(tmp_path: Path, max_uses: int) -> None:
    buffer = make_buffer(tmp_path, 2, max_uses=max_uses)
    record = buffer.ready()[0]
    uses = [taken(buffer, 2, step=step) for step in range(1, max_uses + 1)]
    assert uses == [[0, 1]] * max_uses
    assert ready(buffer) == []
    with pytest.raises(AssertionError, match=r"group train-0000000\.0 is not ready"):
        buffer.take([record], step=9)


def test_uncommitted_uses_are_undone_and_committed_ones_are_not(tmp_path: Path) -> None:
    buffer = make_buffer(tmp_path, 4)
    assert taken(buffer, 2, step=1) == [0, 1]
    committed = buffer.state()
    assert taken(buffer, 2, step=2) == [2, 3]
    again = restored(tmp_path, committed)
    assert ready(again) == [2, 3]
    assert again.uses("train-0000000.0") == (1,)


def test_uses_count_on_the_restored_line_only(tmp_path: Path) -> None:
    buffer = make_buffer(tmp_path, 1, max_uses=2)
    taken(buffer, 1, step=1)
    committed = buffer.state()
    taken(buffer, 1, step=2)
    again = restored(tmp_path, committed, max_uses=2)
    assert taken(again, 1, step=2) == [0]
    assert ready(again) == []
    assert again.uses("train-0000000.0") == (1, 2)


def test_groups_that_finished_after_the_checkpoint_are_found(tmp_path: Path) -> None:
    buffer = make_buffer(tmp_path, 2)
    committed = buffer.state()
    late = write_group(tmp_path, make_group(5, [(0, 3)]))
    again = restored(tmp_path, committed)
    assert ready(again) == [0, 1, 5]
    found = again.ready()[-1]
    assert (found.digest, found.tokens_by_version) == (late.digest, ((PolicyVersion(0, 3), 2),))
    assert again.numbers() == [0, 1, 5]


def test_a_run_that_died_before_its_first_checkpoint_keeps_its_groups(tmp_path: Path) -> None:
    make_buffer(tmp_path, 3)
    assert ready(restored(tmp_path, {})) == [0, 1, 2]


def test_of_one_tasks_late_groups_that_of_the_latest_incarnation_is_taken_and_no_other_ever(tmp_path: Path) -> None:
    for incarnation in (0, 10, 2):
        write_group(tmp_path, make_group(8, incarnation=incarnation))
    again = restored(tmp_path, {})
    assert [record.group_id for record in again.ready()] == ["train-0000008.10"]
    # trained, committed and forgotten: nothing of the task may come back
    taken(again, 1, step=1)
    again.collect(1)
    assert ready(restored(tmp_path, again.state())) == []


def test_a_late_group_of_a_task_that_is_done_with_is_removed_and_told_of(tmp_path: Path) -> None:
    buffer = make_buffer(tmp_path, 1)
    taken(buffer, 1, step=1)
    buffer.collect(1)
    state = buffer.state()
    # one that was called off, and whose file came late: the ledger has forgotten its task
    write_group(tmp_path, make_group(0, incarnation=0))
    write_group(tmp_path, make_group(1, incarnation=1))
    again = Buffer(tmp_path, max_uses=1)
    findings = again.restore(state, number_of, lambda number: number > 0)
    assert findings == Findings(damaged={}, superseded=["train-0000000.0.safetensors"])
    assert ready(again) == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["train-0000001.1.safetensors"]


def test_groups_of_a_step_that_was_not_taken_are_ready_again(tmp_path: Path) -> None:
    buffer = make_buffer(tmp_path, 3, max_uses=2)
    taken(buffer, 2, step=1)
    records = buffer.ready()
    buffer.take(records, step=2)
    buffer.give_back(records, step=2)
    assert ready(buffer) == [0, 1, 2]
    assert [buffer.uses(f"train-000000{number}.0") for number in range(3)] == [(1,), (1,), ()]


def test_a_discarded_group_leaves_its_name_to_the_next_of_its_task(tmp_path: Path) -> None:
    buffer = make_buffer(tmp_path, 2)
    buffer.discard("train-0000001.0")
    assert ready(buffer) == [0] and not (tmp_path / "train-0000001.0.safetensors").exists()
    buffer.add(write_group(tmp_path, make_group(1)))
    assert ready(buffer) == [0, 1]


def test_a_file_is_found_by_its_groups_name_where_it_is_whole(tmp_path: Path) -> None:
    buffer = Buffer(tmp_path, max_uses=1)
    record = write_group(tmp_path, make_group(4))
    assert buffer.find("train-0000004.0", 4) == replace(record, rollout_s=0.0)
    assert buffer.find("train-0000005.0", 5) is None
    (tmp_path / record.file).write_bytes((tmp_path / record.file).read_bytes()[:-1])
    assert buffer.find("train-0000004.0", 4) is None


def test_a_late_group_of_a_task_whose_first_one_was_dropped_is_taken(tmp_path: Path) -> None:
    buffer = make_buffer(tmp_path, 1)
    buffer.drop("train-0000000.0", DropReason.lost_version, step=0)
    write_group(tmp_path, make_group(0, incarnation=1))
    assert [record.group_id for record in restored(tmp_path, buffer.state()).ready()] == ["train-0000000.1"]


def test_a_foreign_file_is_left_alone(tmp_path: Path) -> None:
    write_group(tmp_path, make_group(0))
    group = (tmp_path / "train-0000000.0.safetensors").read_bytes()
    foreign = {
        "model.safetensors",
        "demonstration-0000001.0.safetensors",
        "train-1.0.safetensors",
        "notes.txt",
        ".keep",
    }
    for name in foreign:
        (tmp_path / name).write_bytes(group)
    (tmp_path / ".cache").mkdir()
    number_of = TaskStream(kind=TaskKind.train, run_seed=0, seed_limit=9).number_of
    buffer = Buffer(tmp_path, max_uses=1)
    assert buffer.restore({}, number_of, lambda number: True) == Findings(damaged={})
    assert ready(buffer) == [0]
    assert {path.name for path in tmp_path.iterdir()} == foreign | {"train-0000000.0.safetensors", ".cache"}


def test_half_written_files_are_removed(tmp_path: Path) -> None:
    partial, played = (tmp_path / f".train-000000{number}.0.safetensors.abc.tmp" for number in (9, 8))
    for path in (partial, played):
        path.write_bytes(b"half")
    # 8 is played still: its writer is at it
    Buffer(tmp_path, max_uses=1).restore({}, lambda name: {9: 9}.get(number_of(name)), lambda number: True)
    assert not partial.exists() and played.exists()


def test_damaged_files_are_named_with_the_task_to_draw_again(tmp_path: Path) -> None:
    buffer = make_buffer(tmp_path, 3)
    state = buffer.state()
    (tmp_path / "train-0000001.0.safetensors").write_bytes(b"not a group")
    (tmp_path / "train-0000007.0.safetensors").write_bytes(b"not a group either")
    again = Buffer(tmp_path, max_uses=1)
    findings = again.restore(state, number_of, lambda number: True)
    assert findings.damaged == {"train-0000001.0.safetensors": 1, "train-0000007.0.safetensors": None}
    assert ready(again) == [0, 2]


def test_a_late_file_with_a_changed_bit_is_damaged_though_no_ledger_has_its_digest(tmp_path: Path) -> None:
    path = tmp_path / write_group(tmp_path, make_group(0)).file
    content = path.read_bytes()
    # the low bit of a token's id
    place = content.index(np.arange(3, dtype=np.int32).tobytes())
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    again = Buffer(tmp_path, max_uses=1)
    assert again.restore({}, number_of, lambda number: True).damaged == {path.name: None}
    assert ready(again) == [] and not path.exists()


def test_a_file_under_another_groups_name_is_damaged(tmp_path: Path) -> None:
    own = tmp_path / write_group(tmp_path, make_group(0)).file
    other = own.with_name("train-0000001.0.safetensors")
    other.write_bytes(own.read_bytes())
    again = Buffer(tmp_path, max_uses=1)
    assert again.restore({}, number_of, lambda number: True).damaged == {other.name: None}
    assert ready(again) == [0] and not other.exists()


def test_a_group_that_is_found_damaged_may_finish_again_under_its_name(tmp_path: Path) -> None:
    buffer = make_buffer(tmp_path, 2)
    state = buffer.state()
    # damage is found, its task is played again in the same incarnation, and the run goes back meanwhile
    buffer.discard("train-0000001.0")
    again = Buffer(tmp_path, max_uses=1)
    assert again.restore(state, lambda name: None, lambda number: True).damaged == {"train-0000001.0.safetensors": 1}
    again.add(write_group(tmp_path, make_group(1)))
    assert ready(again) == [0, 1]


def test_a_dropped_group_is_never_taken_also_after_a_restore(tmp_path: Path) -> None:
    buffer = make_buffer(tmp_path, 3)
    buffer.drop("train-0000001.0", DropReason.stale, step=4)
    assert ready(buffer) == [0, 2]
    state = buffer.state()
    assert ready(restored(tmp_path, state)) == [0, 2]
    assert state["entries"][1]["dropped"] == "stale" and state["entries"][1]["dropped_at"] == 4


def test_files_stay_until_the_oldest_kept_checkpoint_contains_their_last_use(tmp_path: Path) -> None:
    buffer = make_buffer(tmp_path, 3)
    taken(buffer, 1, step=1)
    taken(buffer, 1, step=2)
    buffer.collect(0)
    assert len(list(tmp_path.iterdir())) == 3
    buffer.collect(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "train-0000001.0.safetensors",
        "train-0000002.0.safetensors",
    ]
    # a checkpoint of step 1 restores whatever it needs
    buffer.collect(2)
    assert ready(buffer) == [2]
    assert [path.name for path in tmp_path.iterdir()] == ["train-0000002.0.safetensors"]


def test_a_group_that_finishes_twice_is_our_own_error(tmp_path: Path) -> None:
    buffer = make_buffer(tmp_path, 1)
    with pytest.raises(AssertionError, match=r"train-0000000\.0 finished twice"):
        buffer.add(write_group(tmp_path, make_group(0)))
