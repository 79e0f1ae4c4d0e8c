"""Journals as files: round trips, what each damage leaves, whose journal it is, a kill while one is written.

How an agent plays on from one is in test_agent_journal.py. Durability across a power cut is not covered: no test can
see it.
"""

import shutil
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segue.envs.episode_record import EpisodeRecord
from segue.rollout.engine.base import Completion, FinishReason
from segue.rollout.episode import PlayedTurn, SavedEpisode, TaskSpec
from segue.rollout.journal import Journal, delete_journals, delete_other_journals

TASK = TaskSpec(id="train-0000004", seed=2**62 + 1, options={"level": 2})
PROMPT, OBSERVATION = 5, 2
# two calls a turn: what a snapshot may stand between
CALLS = tuple(
    ({"op": "step", "name": "look", "arguments": {"at": number / 3}}, {"observation": f"ü\ud800{number}"})
    for number in range(20)
)


def make_saved(num_turns: int, **changes: Any) -> SavedEpisode:
    """An episode after so many turns, of which turn i sampled i + 1 tokens; a longer one begins as a shorter one."""
    rng = np.random.default_rng(3)
    stream = [rng.integers(0, 2**31, PROMPT)]
    turns = []
    for number in range(num_turns):
        sampled = rng.integers(0, 2**31, number + 1).astype(np.int32)
        completion = Completion(
            token_ids=sampled,
            logprobs=-rng.random(number + 1).astype(np.float32),
            policy_incarnation=np.full(number + 1, number // 2, np.int32),
            policy_step=np.full(number + 1, 9 - number, np.int32),
            finish_reason=FinishReason.stop,
        )
        start = sum(map(len, stream))
        reward_terms = {"process": 0.1 * number}
        turns.append(PlayedTurn(start=start, completion=completion, reward_terms=reward_terms, num_calls=number))
        stream += [sampled, rng.integers(0, 2**31, OBSERVATION)]
    values: dict[str, Any] = {
        "attempt": 1,
        "token_ids": np.concatenate(stream).astype(np.int32),
        "turns": turns,
        "info": {"class": "max", "turn": num_turns, "rows": [1, None, "ü"]},
        "used_s": 1.5 * num_turns,
        "environment": EpisodeRecord(snapshot=None, num_snapshot_steps=0, calls=CALLS[: 2 * num_turns]),
    }
    return SavedEpisode(**(values | changes))


def make_journal(folder: Path, **changes: Any) -> Journal:
    """The journal of place 3."""
    return Journal(folder / "sessions", replace(TASK, **changes), 3)


def write(folder: Path, *num_turns: int) -> list[Path]:
    """A journal with a part after each of these turns."""
    journal = make_journal(folder)
    for number in num_turns:
        journal.write(make_saved(number))
    return parts(folder)


def parts(folder: Path) -> list[Path]:
    """The files of all journals, in order."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def assert_same(left: SavedEpisode | None, right: SavedEpisode) -> None:
    assert left is not None
    assert left.token_ids.dtype == np.int32
    assert left.token_ids.tolist() == right.token_ids.tolist()
    assert len(left.turns) == len(right.turns)
    for a, b in zip(left.turns, right.turns, strict=True):
        assert (a.start, a.reward_terms, a.num_calls) == (b.start, b.reward_terms, b.num_calls)
        assert a.completion.finish_reason is b.completion.finish_reason
        for name in ("token_ids", "logprobs", "policy_incarnation", "policy_step"):
            x, y = getattr(a.completion, name), getattr(b.completion, name)
            assert x.dtype == y.dtype and x.tolist() == y.tolist(), name
    assert (left.attempt, left.info, left.used_s) == (right.attempt, right.info, right.used_s)
    for name in ("snapshot", "num_snapshot_steps", "calls"):
        assert getattr(left.environment, name) == getattr(right.environment, name), name


def test_an_episode_comes_back_bit_for_bit_in_parts_that_hold_what_is_new(tmp_path: Path) -> None:
    paths = write(tmp_path, 1, 4, 5)
    names = ["part-000001.safetensors", "part-000002.safetensors", "part-000003.safetensors"]
    assert [path.name for path in paths] == names
    journal = make_journal(tmp_path)
    assert journal.has_begun
    assert_same(journal.load(), make_saved(5))
    assert journal.num_tokens == PROMPT + (1 + 2 + 3 + 4 + 5) + 5 * OBSERVATION
    # the reader goes on as the writer would
    journal.write(make_saved(9))
    assert_same(make_journal(tmp_path).load(), make_saved(9))
    # the third part holds a turn of 5 + 2 tokens, the fourth turns of 6 + 7 + 8 + 9 and 4 * 2 tokens: 4 bytes each for
    # the stream, 3 * 4 for what was sampled
    sizes = [_num_array_bytes(path) for path in parts(tmp_path)[2:]]
    assert sizes == [4 * 7 + 12 * 5, 4 * 38 + 12 * 30]


def _num_array_bytes(path: Path) -> int:
    content = path.read_bytes()
    return len(content) - 8 - int.from_bytes(content[:8], "little")


def test_what_brings_the_environment_back_is_the_last_snapshot_with_the_calls_after_it(tmp_path: Path) -> None:
    journal = make_journal(tmp_path)
    records = [
        EpisodeRecord(snapshot=None, num_snapshot_steps=0, calls=CALLS[:2]),
        # no step lies behind the first snapshot, and one that is the same is not written again
        EpisodeRecord(snapshot=b"first", num_snapshot_steps=0, calls=()),
        EpisodeRecord(snapshot=b"first", num_snapshot_steps=0, calls=CALLS[2:5]),
        EpisodeRecord(snapshot=b"\x00second\xff", num_snapshot_steps=3, calls=CALLS[5:6]),
        EpisodeRecord(snapshot=b"\x00second\xff", num_snapshot_steps=3, calls=CALLS[5:9]),
    ]
    for number, record in enumerate(records, start=1):
        saved = make_saved(number, environment=record)
        journal.write(saved)
        assert_same(make_journal(tmp_path).load(), saved)
    assert [path.read_bytes().count(b"second") for path in parts(tmp_path)] == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "changed array", "changed header", "foreign"])
def test_a_damaged_part_ends_what_can_be_read(tmp_path: Path, number: int, damage: str) -> None:
    path = write(tmp_path, 2, 3, 5)[number - 1]
    content = path.read_bytes()
    match damage:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(content[:-1])
        case "changed array":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "changed header":
            assert content.count(b"process") >= 1
            path.write_bytes(content.replace(b"process", b"progess"))
        case "foreign":
            path.write_bytes(content.replace(b"segue-journal/1", b"segue-journal/0"))
    journal = make_journal(tmp_path)
    before = [None, make_saved(2), make_saved(3)][number - 1]
    if before is None:
        assert journal.load() is None and journal.num_tokens == 0
    else:
        assert_same(journal.load(), before)
    # what is played instead takes the damaged part's place; parts that followed it do not come back
    journal.write(make_saved(4))
    assert_same(make_journal(tmp_path).load(), make_saved(4))


def test_parts_of_two_writers_are_never_joined(tmp_path: Path) -> None:
    write(tmp_path, 1)
    first, second = make_journal(tmp_path), make_journal(tmp_path)
    first.load()
    second.load()
    first.write(make_saved(2))
    other = make_saved(2, attempt=2)
    second.write(other)
    first.write(make_saved(3))
    assert_same(make_journal(tmp_path).load(), other)


def test_a_journal_is_of_one_task_with_its_seed_and_options_and_of_one_place(tmp_path: Path) -> None:
    write(tmp_path, 1)
    assert make_journal(tmp_path).load() is not None
    assert make_journal(tmp_path, seed=7).load() is None
    assert make_journal(tmp_path, options={"level": 3}).load() is None
    assert not make_journal(tmp_path, id="train-0000005").has_begun
    assert not Journal(tmp_path / "sessions", TASK, 2).has_begun


def test_a_deleted_journal_begins_anew(tmp_path: Path) -> None:
    write(tmp_path, 1, 2)
    journal = make_journal(tmp_path)
    journal.load()
    journal.delete()
    assert not journal.has_begun and journal.num_tokens == 0
    journal.write(make_saved(1))
    assert_same(make_journal(tmp_path).load(), make_saved(1))


def test_journals_that_go_by_another_hand_meanwhile_are_no_fault(tmp_path: Path) -> None:
    class Rival:
        """Whoever asks finds that the last process to play the task is deleting its journals."""

        def __contains__(self, task_id: object) -> bool:
            shutil.rmtree(tmp_path / f"{task_id}.0")
            return False

    for number in range(2):
        Journal(tmp_path, replace(TASK, id=f"train-{number}"), 0).write(make_saved(1))
    delete_other_journals(tmp_path, Rival())
    assert list(tmp_path.iterdir()) == []


def test_journals_are_deleted_by_their_tasks(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    # before there is any
    delete_journals(folder, "a")
    delete_other_journals(folder, {"a"})
    names = ["a", "a.0", "../a", "a/0", "", "ü %2F"]
    for name in names:
        for index in (0, 11):
            Journal(folder, TaskSpec(id=name, seed=1), index).write(make_saved(1))
    assert len(parts(folder)) == len(parts(tmp_path)) == 2 * len(names)
    (folder / "notes").mkdir()

    def left() -> list[str]:
        return [name for name in names if Journal(folder, TaskSpec(id=name, seed=1), 11).has_begun]

    delete_journals(folder, "a")
    assert left() == names[1:] and len(parts(folder)) == 2 * len(left())
    delete_other_journals(folder, {"a/0", "ü %2F", "another"})
    assert left() == ["a/0", "ü %2F"] and len(parts(folder)) == 4
    delete_other_journals(folder, ())
    assert [path.name for path in folder.iterdir()] == ["notes"]


def test_a_kill_while_a_part_is_written_leaves_the_parts_before(tmp_path: Path) -> None:
    script = tmp_path / "writer.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            from pathlib import Path
            import numpy as np
            sys.path.append({str(Path(__file__).parent)!r})
            from test_journal import make_journal, make_long

            journal = make_journal(Path({str(tmp_path)!r}))
            for number in range(1, 1000):
                journal.write(make_long(number))
                print(number, flush=True)
            """
        )
    )
    writer = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for number in range(1, 4):
        assert int(writer.stdout.readline()) == number
    writer.kill()
    writer.wait()
    writer.stdout.close()
    journal = make_journal(tmp_path)
    saved = journal.load()
    assert saved is not None and len(saved.turns) >= 3
    assert_same(saved, make_long(len(saved.turns)))
    journal.write(make_long(len(saved.turns) + 1))
    assert_same(make_journal(tmp_path).load(), make_long(len(saved.turns) + 1))


def make_long(num_turns: int) -> SavedEpisode:
    """An episode of turns of 200,000 tokens."""
    size = 200_000
    token_ids = np.arange(num_turns * size, dtype=np.int32)
    turns = []
    for start in range(0, len(token_ids), size):
        ids = token_ids[start : start + size]
        completion = Completion(
            token_ids=ids,
            logprobs=-ids.astype(np.float32),
            policy_incarnation=ids,
            policy_step=ids,
            finish_reason=FinishReason.stop,
        )
        turns.append(PlayedTurn(start=start, completion=completion))
    return make_saved(0, token_ids=token_ids, turns=turns)
