"""The soak's books: a run folder in order breaks no law, and one edit of it breaks exactly the law that it should.

Covered: every law of `soak_ledger.py`, restores included. Not covered: that a run keeps them (tests/e2e/test_soak.py).
"""

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from soak_faults import Injected
from soak_ledger import Account, Fate, Rules, check
from soak_watch import Checkpoint, Sightings

RULES = Rules(groups_per_step=2, max_uses=1, max_staleness=1)


def name(number: int, incarnation: int = 0) -> str:
    return f"train-{number:07d}.{incarnation}"


def digest(group_id: str) -> str:
    """Of a file that holds its own name."""
    return hashlib.sha256(group_id.encode()).hexdigest()


def make_entry(group_id: str, uses: list[int], **changes: Any) -> dict[str, Any]:
    """Ten tokens, sampled by the very weights that they train."""
    step = uses[0] - 1 if uses else 3
    record = {
        "group_id": group_id,
        "digest": digest(group_id),
        "tokens_by_version": [[{"incarnation": 0, "step": step}, 10]],
    }
    return {"record": record, "uses": uses, "dropped": None, "dropped_at": 0} | changes


class MadeRun:
    """Three steps on six groups, a seventh waits, and task 7 is being played; a checkpoint a step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.time = 1000.0
        self.lines: list[dict[str, Any]] = []
        self.sightings = Sightings()
        self.entries: dict[str, dict[str, Any]] = {}
        self.launches = [{"restored_steps": [0]}]
        self.summary: dict[str, Any] = {"steps": 3, "faults": [], "restores": [], "dropped": {}}
        self.tasks = {"cursor": 8, "unfinished": [7]}
        (folder / "groups").mkdir(parents=True)
        for step in (1, 2, 3):
            for number in (2 * step - 2, 2 * step - 1):
                self.add_group(name(number), [step])
            self.add_step(step)
            if step == 3:
                self.add_group(name(6), [])
            self.add_checkpoint(step)

    def add_group(self, group_id: str, uses: list[int], **changes: Any) -> None:
        (self.folder / "groups" / f"{group_id}.safetensors").write_text(group_id)
        self.sightings.groups.add(group_id)
        self.entries[group_id] = make_entry(group_id, uses, **changes)

    def add_line(self, kind: str, step: int, **members: Any) -> None:
        self.time += 1.0
        self.lines.append({"kind": kind, "step": step, "incarnation": 0, "time": self.time, "metrics": {}} | members)

    def add_step(self, step: int, *, incarnation: int = 0, **changes: Any) -> None:
        metrics = {"staleness/age/max_steps": 1, "learner/tokens/stale": 0.0, "batch/infrastructure/share": 0.0}
        self.add_line("step", step, incarnation=incarnation, metrics=metrics | changes)

    def add_checkpoint(self, step: int) -> None:
        self.time += 1.0
        state = {"step": step, "tasks": self.tasks, "buffer": {"entries": list(self.entries.values())}}
        # as a file holds it: what is changed later is not in it
        state = json.loads(json.dumps(state))
        self.sightings.checkpoints.append(Checkpoint(time=self.time, step=step, state=state))

    def add_fault(self, who: str, what: str) -> None:
        fault = {"who": who, "what": what, "done": "mended"}
        self.add_line("fault", 3, fault=fault)
        self.summary["faults"].append({"time": self.time, "step": 3, **fault})

    def damage(self, group_id: str, *, found_digest: str | None = None) -> None:
        fault = Injected(
            time=self.time, kind="flip-group", target=group_id, poisoned=group_id, digest=found_digest or "other"
        )
        self.sightings.injected.append(fault)

    def remove(self, group_id: str) -> None:
        (self.folder / "groups" / f"{group_id}.safetensors").unlink()

    def restore(self, step: int) -> None:
        """A new launch from a step's checkpoint."""
        self.launches.append({"restored_steps": [step]})
        incarnation = len(self.launches) - 1
        self.summary["restores"].append({"incarnation": incarnation, "at_step": step})
        self.add_line("restore", step, incarnation=incarnation)
        for entry in self.entries.values():
            entry["uses"] = [use for use in entry["uses"] if use <= step]

    def check(self) -> Account:
        (self.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        (self.folder / "summary.json").write_text(json.dumps(self.summary))
        (self.folder / "run.json").write_text(json.dumps(self.launches))
        return check(self.folder, self.sightings, RULES)


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path)


def test_a_run_in_order_breaks_no_law(made: MadeRun) -> None:
    account = made.check()
    assert account.breaches == []
    assert account.fates == Counter({Fate.trained: 6, Fate.waiting: 1})
    assert (account.num_steps, account.num_restores, account.num_faults) == (3, 0, 0)


def test_entries_and_files_that_were_collected_are_remembered(made: MadeRun) -> None:
    for number in range(4):
        made.remove(name(number))
        del made.entries[name(number)]
    made.add_checkpoint(3)
    assert made.check().breaches == []


def test_a_group_that_vanished_is_lost_and_its_task_with_it(made: MadeRun) -> None:
    made.remove(name(6))
    del made.entries[name(6)]
    made.add_checkpoint(3)
    assert made.check().breaches == [
        f"lost: group {name(6)} was finished, and neither trained nor waits nor was dropped",
        "lost: task 6 was drawn, has no group, and is not to be played again",
    ]


def test_a_file_that_the_ledger_counts_on_must_be_whole(made: MadeRun) -> None:
    (made.folder / "groups" / f"{name(6)}.safetensors").write_text("cut")
    assert made.check().fates[Fate.lost] == 1
    # the run has not come across it yet
    made.damage(name(6))
    account = made.check()
    assert (account.breaches, account.fates[Fate.waiting]) == ([], 1)


def test_a_group_gives_way_only_to_another_of_its_task(made: MadeRun) -> None:
    made.sightings.groups.add(name(6, 1))
    account = made.check()
    assert (account.breaches, account.fates[Fate.superseded]) == ([], 1)
    # task 7 has no other
    made.sightings.groups.add(name(7, 1))
    assert made.check().fates[Fate.lost] == 1


def test_a_group_that_finished_after_the_last_checkpoint_waits(made: MadeRun) -> None:
    made.add_group(name(7), [])
    assert made.check().fates[Fate.waiting] == 2


def test_a_group_that_trained_again_trained_twice(made: MadeRun) -> None:
    made.entries[name(5)]["uses"] = [3, 4]
    made.add_group(name(8), [4])
    made.tasks["cursor"] = 9
    made.add_step(4)
    made.add_checkpoint(4)
    made.summary["steps"] = 4
    assert made.check().breaches == [f"twice: group {name(5)} trained 2 times"]


def test_two_groups_of_a_task_must_not_both_train(made: MadeRun) -> None:
    made.add_group(name(5, 1), [4])
    made.add_group(name(8), [4])
    made.tasks["cursor"] = 9
    made.add_step(4)
    made.add_checkpoint(4)
    made.summary["steps"] = 4
    assert made.check().breaches == ["twice: 2 groups of task train-0000005 trained"]


def test_a_step_may_be_repeated_only_after_a_restore(made: MadeRun) -> None:
    made.add_step(3)
    assert made.check().breaches == ["gap: step 3 is recorded where step 4 should follow"]
    made.lines.pop()
    made.restore(2)
    made.entries[name(4)]["uses"] = made.entries[name(6)]["uses"] = [3]
    made.entries[name(6)]["record"]["tokens_by_version"] = [[{"incarnation": 1, "step": 2}, 10]]
    made.add_step(3, incarnation=1)
    made.add_checkpoint(3)
    account = made.check()
    # group 5 trained in a step that was undone: it waits again, and 6 has trained in its stead
    assert (account.breaches, account.num_restores) == ([], 1)
    assert account.fates == Counter({Fate.trained: 6, Fate.waiting: 1})


def test_a_step_must_not_be_missing(made: MadeRun) -> None:
    del made.lines[1]
    assert made.check().breaches == ["gap: step 3 is recorded where step 2 should follow"]


def test_a_step_trains_a_whole_batch(made: MadeRun) -> None:
    for checkpoint in made.sightings.checkpoints:
        for entry in checkpoint.entries:
            if entry["record"]["group_id"] == name(3):
                entry["uses"] = []
    assert made.check().breaches == ["gap: step 2 trained 1 groups by the ledger, not 2"]


def test_the_last_step_has_a_checkpoint_and_is_in_the_summary(made: MadeRun) -> None:
    made.sightings.checkpoints.pop()
    made.summary["steps"] = 2
    breaches = made.check().breaches
    assert "gap: the newest checkpoint is of step 2, the last one recorded is 3" in breaches
    assert "gap: summary.json is of step 2, the last one recorded is 3" in breaches


def retrain(made: MadeRun, version: dict[str, int], masked: float) -> list[str]:
    """Go back to step 2, and train there on groups of which one's tokens are of this version; breaches."""
    made.restore(2)
    for number in (4, 5):
        made.entries[name(number)]["uses"] = [3]
    made.entries[name(4)]["record"]["tokens_by_version"] = [[version, 7], [{"incarnation": 1, "step": 2}, 3]]
    made.add_step(3, incarnation=1, **{"learner/tokens/stale": masked})
    made.add_checkpoint(3)
    return made.check().breaches


@pytest.mark.parametrize(
    ("version", "num_old"),
    [
        # step 3 trains weights of step 2: age 1 is within the bound, age 2 is not
        ({"incarnation": 0, "step": 1}, 0),
        ({"incarnation": 0, "step": 0}, 7),
        # incarnation 1 began at step 2, so step 3 of incarnation 0 is undone
        ({"incarnation": 0, "step": 2}, 0),
        ({"incarnation": 0, "step": 3}, 7),
    ],
)
def test_what_is_too_old_or_undone_is_masked_and_nothing_else(
    made: MadeRun, version: dict[str, int], num_old: int
) -> None:
    assert retrain(made, version, num_old) == []


@pytest.mark.parametrize(
    ("version", "masked", "wanted"), [({"incarnation": 0, "step": 0}, 0, 7), ({"incarnation": 0, "step": 1}, 7, 0)]
)
def test_masking_that_the_ledger_does_not_bear_out_is_named(
    made: MadeRun, version: dict[str, int], masked: int, wanted: int
) -> None:
    assert retrain(made, version, masked) == [
        f"old: step 3 masked {masked} tokens, but {wanted} are too old by the ledger"
    ]


def test_no_token_beyond_the_bound_trains(made: MadeRun) -> None:
    made.lines[2]["metrics"]["staleness/age/max_steps"] = 2
    assert made.check().breaches == ["old: step 3 trained a token of age 2"]


def test_a_damaged_group_may_be_played_again_under_its_name(made: MadeRun) -> None:
    made.damage(name(5))
    made.add_fault("buffer", f"group file {name(5)}.safetensors is damaged")
    assert made.check().breaches == []


def test_what_was_damaged_is_not_taken_for_whole(made: MadeRun) -> None:
    # the digest was taken of the damaged file
    made.damage(name(6), found_digest=digest(name(6)))
    assert made.check().breaches == [
        f"damaged: group {name(6)} was taken for whole with the digest of its damaged file"
    ]


def test_only_what_somebody_damaged_is_damaged(made: MadeRun) -> None:
    made.add_fault("buffer", f"group file {name(6)}.safetensors is damaged")
    assert made.check().breaches == [f"damaged: group {name(6)} is called damaged, but nobody damaged it"]


def test_a_task_whose_damaged_group_is_not_played_again_is_lost(made: MadeRun) -> None:
    made.damage(name(6))
    made.add_fault("buffer", f"group file {name(6)}.safetensors is damaged")
    del made.entries[name(6)]
    made.remove(name(6))
    made.add_checkpoint(3)
    assert made.check().breaches == ["lost: task 6 was drawn, has no group, and is not to be played again"]
    made.tasks["unfinished"] = [6, 7]
    made.add_checkpoint(3)
    assert made.check().breaches == []


def test_drops_are_counted_by_reason_and_in_the_summary(made: MadeRun) -> None:
    made.entries[name(6)] |= {"dropped": "stale", "dropped_at": 3}
    made.add_checkpoint(3)
    account = made.check()
    assert (account.fates[Fate.dropped], account.dropped) == (1, Counter(stale=1))
    assert account.breaches == ["untold: summary.json counts 0 groups as stale, the ledger 1"]
    made.summary["dropped"] = {"stale": 1}
    assert made.check().breaches == []


def test_the_task_of_a_group_that_was_sampled_by_undone_steps_is_drawn_again(made: MadeRun) -> None:
    made.entries[name(6)] |= {"dropped": "lost_version", "dropped_at": 3}
    made.summary["dropped"] = {"lost_version": 1}
    made.add_checkpoint(3)
    assert made.check().breaches == ["lost: task 6 was drawn, has no group, and is not to be played again"]


def test_the_summary_tells_every_fault_and_restore(made: MadeRun) -> None:
    made.add_fault("rollout-0", "died")
    assert made.check().breaches == []
    made.summary["faults"].clear()
    assert made.check().breaches == ["untold: summary.json has 0 faults, metrics.jsonl 1, or others"]
    (made.folder / "summary.json").unlink()
    made.summary = {}
    assert "untold: there is no summary" in made.check().breaches


def test_a_restore_that_the_summary_does_not_have_is_named(made: MadeRun) -> None:
    made.restore(3)
    assert made.check().breaches == []
    made.summary["restores"].clear()
    assert made.check().breaches == ["untold: summary.json does not have the restore of incarnation 1"]
