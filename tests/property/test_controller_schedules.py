"""The loop's promises under any order in which groups finish: staleness, uses, order of tasks, interruption, restore.

Processes, tensors and real waits are left out (`fake_fleet.py`); they are in tests/e2e/test_train.py.
"""

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from controller_cases import Launch, launch, make_config
from fake_fleet import Killed, TrainedStep
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.actors.errors import Interrupted, RunError
from segue.actors.metrics import METRICS, When
from segue.actors.phase import PhaseKind
from segue.actors.recorder import read_faults
from segue.actors.run_folder import RunFolder
from segue.conf.schema import OnExceed
from segue.rollout.trajectory import Outcome


def numbers(group_ids: list[str]) -> list[int]:
    return [int(group_id.removeprefix("train-").partition(".")[0]) for group_id in group_ids]


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    max_staleness=st.integers(0, 3),
    max_uses=st.integers(1, 3),
    on_exceed=st.sampled_from(OnExceed),
)
def test_ages_and_uses_are_bounded_whatever_finishes_first(
    seed: int, max_staleness: int, max_uses: int, on_exceed: OnExceed
) -> None:
    uses = max_uses if max_staleness else 1
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(Path(folder), max_staleness=max_staleness, max_uses=uses, on_exceed=on_exceed)
        run = launch(config, seed=seed)
        run.controller.run()
        trained = run.fleet.trained
        assert [step.step for step in trained] == list(range(6))
        counts = Counter(group_id for step in trained for group_id in step.group_ids)
        assert max(counts.values()) <= uses
        for step, metrics in zip(trained, run.listener.steps, strict=True):
            assert len(step.group_ids) == 3 and step.ages
            assert max(step.ages) <= max_staleness
            # the controller's figures, from counts, against the tokens that the learner saw
            assert metrics["staleness/age/max_steps"] == max(step.ages)
            assert metrics["staleness/age/mean_steps"] == pytest.approx(sum(step.ages) / len(step.ages))
            share = step.num_masked / (step.num_masked + len(step.ages))
            assert metrics["staleness/masked/share"] == pytest.approx(share)
            if on_exceed is OnExceed.drop:
                assert step.num_masked == 0
        assert run.fleet.max_outstanding <= (max_staleness + 1) * 3


def test_at_bound_0_a_step_trains_the_next_tasks_in_order_on_its_own_weights(tmp_path: Path) -> None:
    run = launch(make_config(tmp_path), seed=5)
    run.controller.run()
    assert [numbers(step.group_ids) for step in run.fleet.trained] == [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(6)]
    assert all(set(step.ages) == {0} for step in run.fleet.trained)


def test_groups_train_again_within_the_bound_where_batches_lack_new_ones(tmp_path: Path) -> None:
    run = launch(make_config(tmp_path, max_staleness=1, max_uses=2, steps=12), seed=3)
    run.controller.run()
    steps: dict[str, list[int]] = {}
    for trained in run.fleet.trained:
        for group_id in trained.group_ids:
            steps.setdefault(group_id, []).append(trained.step)
    again = [used for used in steps.values() if len(used) == 2]
    assert again and all(second > first for first, second in again)
    # twelve steps of three groups, of which the second uses were not played anew
    assert len(steps) == 36 - len(again)


def test_the_loop_reads_as_it_is_drawn(tmp_path: Path) -> None:
    run = launch(make_config(tmp_path, steps=2, groups_per_step=1, checkpoint_every=1), num_rollout=1)
    run.controller.run()
    evaluation = ["evaluate eval-sampled", "evaluate eval-greedy"]
    assert run.fleet.events == [
        "publish 0",
        *evaluation,
        *("group 0", "step 1", "publish 1", "save"),
        *("group 1", "step 2", "publish 2", "save"),
        *evaluation,
        "save",
        "export",
    ]


@pytest.mark.parametrize("kind", PhaseKind)
def test_what_a_step_has_no_value_for_is_null_and_not_absent(tmp_path: Path, kind: PhaseKind) -> None:
    # its learner reports nothing, as one whose groups have no advantage
    run = launch(make_config(tmp_path, steps=1), kind=kind)
    run.controller.run()
    (first, *_) = run.listener.steps
    events = {When.step, When.train_step} if kind is PhaseKind.train else {When.step}
    assert {m.name for m in METRICS if m.when in events and "<" not in m.name} <= first.keys()
    assert first["policy/entropy/mean_nats"] is None and first["batch/success/mean"] is not None
    assert ("policy/ratio/mean" in first) == (kind is PhaseKind.train)


def test_at_bound_1_the_next_groups_are_in_flight_while_the_learner_works(tmp_path: Path) -> None:
    run = launch(make_config(tmp_path, max_staleness=1, steps=3), seed=1)
    run.controller.run()
    ahead = [line["buffer/in_flight/groups"] + line["buffer/ready/groups"] for line in run.listener.steps]
    # one batch beyond the step's own, and none once no step needs it
    assert ahead == [3, 3, 0]
    assert max(age for step in run.fleet.trained for age in step.ages) == 1


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), max_staleness=st.integers(0, 2), stops=st.lists(st.integers(1, 4), max_size=3))
def test_an_interrupted_run_goes_on_with_nothing_lost_and_nothing_twice(
    seed: int, max_staleness: int, stops: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # a wish to end is seen at the next wait, until when the batches that are ready train: at most three beyond four
        steps = 24
        config = make_config(Path(folder), max_staleness=max_staleness, steps=steps)
        trained: list[TrainedStep] = []
        for number, stop in enumerate(stops):
            run = launch(config, seed=seed + number, stop_after_step=stop)
            with pytest.raises(Interrupted):
                run.controller.run()
            run.fleet.finish_unseen()
            trained += run.fleet.trained
        run = launch(config, seed=seed + 100)
        run.controller.run()
        trained += run.fleet.trained
        assert [step.step for step in trained] == list(range(steps))
        used = [number for step in trained for number in numbers(step.group_ids)]
        assert len(used) == len(set(used)) == 3 * steps
        # every task from the first on was trained or stands dropped, up to those of the last batches ahead
        assert set(range(3 * (steps - max_staleness))) <= set(used) | dropped_numbers(run)
        assert all(age <= max_staleness for step in trained for age in step.ages)


def test_an_interrupt_in_the_final_evaluation_leaves_it_to_the_next_launch(tmp_path: Path) -> None:
    config = make_config(tmp_path, steps=2)
    run = launch(config, stop_after_step=2)
    with pytest.raises(Interrupted):
        run.controller.run()
    assert set(run.controller.evaluations) == {"before"} and not (tmp_path / "export").exists()
    again = launch(config, num_rollout=1)
    again.controller.run()
    evaluation = ["evaluate eval-sampled", "evaluate eval-greedy"]
    assert again.fleet.events == ["load", "publish 2", *evaluation, "save", "export"]
    assert set(again.controller.evaluations) == {"before", "after"}


def test_a_raise_of_the_steps_plays_the_final_evaluation_anew(tmp_path: Path) -> None:
    launch(make_config(tmp_path, steps=2)).controller.run()
    run = launch(make_config(tmp_path, steps=4), stop_after_step=1)
    with pytest.raises(Interrupted):
        run.controller.run()
    # the evaluation after step 2 is none after the last step: had the run died here, it would not seem finished
    assert set(run.controller.evaluations) == {"before"}
    run = launch(make_config(tmp_path, steps=4))
    run.controller.run()
    assert set(run.controller.evaluations) == {"before", "after"}
    assert (tmp_path / "export" / "steps").read_text() == "4"


def test_a_kill_in_the_export_leaves_the_earlier_one_and_the_next_launch_exports(tmp_path: Path) -> None:
    launch(make_config(tmp_path, steps=2)).controller.run()
    killed = launch(make_config(tmp_path, steps=3), ends_with=Killed, dies_in="export")
    with pytest.raises(Killed):
        killed.controller.run()
    assert (tmp_path / "export" / "steps").read_text() == "2"
    again = launch(make_config(tmp_path, steps=3))
    again.controller.run()
    # the evaluation stands in the checkpoint
    assert again.fleet.events == ["load", "publish 3", "save", "export"]


def dropped_numbers(run: Launch) -> set[int]:
    entries = run.controller._buffer.state()["entries"]
    return {entry["record"]["number"] for entry in entries if entry["dropped"] is not None}


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), max_staleness=st.integers(0, 2), stop=st.integers(1, 5))
def test_a_killed_run_undoes_steps_after_its_checkpoint_and_trains_no_token_of_theirs(
    seed: int, max_staleness: int, stop: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(Path(folder), max_staleness=max_staleness, checkpoint_every=2)
        killed = launch(config, seed=seed, stop_after_step=stop, ends_with=Killed)
        with pytest.raises(Killed):
            killed.controller.run()
        killed.fleet.finish_unseen()
        # killed after step `stop` and before its checkpoint, which is due after every second step
        restored = 2 * ((stop - 1) // 2)
        run = launch(config, seed=seed + 1)
        run.controller.run()
        on_line = [step for step in killed.fleet.trained if step.step < restored] + run.fleet.trained
        assert [step.step for step in on_line] == list(range(6))
        used = Counter(number for step in on_line for number in numbers(step.group_ids))
        assert set(used.values()) == {1}
        assert all(age <= max_staleness for step in on_line for age in step.ages)
        # what was trained in undone steps is not lost: its tasks are trained again, or their groups stand dropped
        undone = {n for s in killed.fleet.trained if s.step >= restored for n in numbers(s.group_ids)}
        assert undone <= set(used) | dropped_numbers(run)


@pytest.mark.parametrize("outcome", [Outcome.infrastructure_error, Outcome.environment_error])
def test_endless_failure_stops_the_run_and_names_the_most_common_cause(tmp_path: Path, outcome: Outcome) -> None:
    # of the former nothing is left to train; the latter would train as failure of the policy
    run = launch(make_config(tmp_path, groups_per_step=2), fails_with=outcome)
    with pytest.raises(
        RunError, match="no episode of 5 groups in a row came to an end of its own; most often: cause 0"
    ):
        run.controller.run()
    # two whole batches may be chance
    assert len(run.fleet.trained) == (2 if outcome is Outcome.environment_error else 0)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    max_staleness=st.integers(0, 4),
    groups_per_step=st.integers(1, 4),
    max_uses=st.integers(1, 3),
    prefers_newest=st.booleans(),
)
def test_no_group_trains_later_than_the_bound_however_it_is_overtaken(
    seed: int, max_staleness: int, groups_per_step: int, max_uses: int, prefers_newest: bool
) -> None:
    uses = max_uses if max_staleness else 1
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"steps": 8, "groups_per_step": groups_per_step, "checkpoint_every": 100}
        config = make_config(Path(folder), max_staleness=max_staleness, max_uses=uses, **sizes)
        run = launch(config, seed=seed, prefers_newest=prefers_newest)
        run.controller.run()
        first_uses: dict[str, int] = {}
        for step in run.fleet.trained:
            for group_id in step.group_ids:
                first_uses.setdefault(group_id, step.masked[group_id])
        assert set(first_uses.values()) == {0}
        if uses == 1:
            # long episodes are left out no more often than short ones: every task trains, in its turn
            assert run.controller.summary()["dropped"] == {}
            assert sorted(numbers(list(first_uses))) == list(range(8 * groups_per_step))


def test_imitation_overtakes_nothing(tmp_path: Path) -> None:
    run = launch(make_config(tmp_path), kind=PhaseKind.pretrain, seed=3)
    run.controller.run()
    trained = [group_id for step in run.fleet.trained for group_id in step.group_ids]
    assert trained == [f"demonstration-{number:07d}.0" for number in range(6)]


def test_group_files_are_deleted_once_the_kept_checkpoints_contain_their_use(tmp_path: Path) -> None:
    run = launch(make_config(tmp_path, keep_checkpoints=2))
    run.controller.run()
    # checkpoints of steps 4 and 6 are kept: groups of steps 5 and 6 may be needed again
    kept = sorted(numbers([path.name for path in (tmp_path / "groups").iterdir()]))
    assert kept == [12, 13, 14, 15, 16, 17]


@settings(max_examples=12)
@given(
    seed=st.integers(0, 10**6),
    max_staleness=st.integers(0, 2),
    rollout_loss_rate=st.sampled_from((0.0, 0.3)),
    learner_loss_rate=st.sampled_from((0.05, 0.1)),
)
def test_a_run_whose_actors_die_goes_on_with_nothing_lost_and_nothing_twice(
    seed: int, max_staleness: int, rollout_loss_rate: float, learner_loss_rate: float
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(Path(folder), max_staleness=max_staleness)
        config.cluster.max_losses = 100
        run = launch(config, seed=seed, rollout_loss_rate=rollout_loss_rate)
        # once the run has begun: a learner that cannot even start ends it
        run.fleet.learner_loss_rate = learner_loss_rate
        run.controller.run()
        # a step that was undone is trained again: what counts is its last time
        line = {step.step: step for step in run.fleet.trained}
        assert sorted(line) == list(range(6))
        used = Counter(number for step in line.values() for number in numbers(step.group_ids))
        assert set(used.values()) == {1} and sum(used.values()) == 3 * 6
        assert all(age <= max_staleness for step in line.values() for age in step.ages)
        # no token of an undone step's weights trains on the line
        assert set(range(3 * (6 - max_staleness))) <= set(used) | dropped_numbers(run)
        # whoever was asked for something was told of every loss
        faults = read_faults(Path(folder) / "metrics.jsonl")
        replaced = [name for name in run.fleet.killed if name.startswith("rollout")]
        assert sorted(fault["who"] for fault in faults if fault["who"].startswith("rollout")) == sorted(replaced)
        assert all(fault["what"] == "died: chance" for fault in faults if fault["who"].startswith("rollout"))
        # each loss of the learner begins an incarnation, whose number the weights carry
        losses = [fault for fault in faults if fault["who"] == "learner"]
        assert len({version.incarnation for version in run.fleet.published} | {0}) <= len(losses) + 1
        assert max(version.incarnation for version in run.fleet.published) == len(losses)


def test_a_lost_learner_starts_from_its_checkpoint_and_rollout_goes_on(tmp_path: Path) -> None:
    # checkpoints at steps 2 and 4; the learner dies at its fourth step, when three are trained
    run = launch(make_config(tmp_path, max_staleness=1), learner_dies_at=(4,))
    run.controller.run()
    assert [step.step for step in run.fleet.trained] == [0, 1, 2, 2, 3, 4, 5]
    assert [name for name in run.fleet.killed if name.startswith("rollout")] == []
    (fault,) = read_faults(tmp_path / "metrics.jsonl")
    assert (fault["who"], fault["step"], fault["what"]) == ("learner", 3, "learner-0 died: as told")
    assert fault["done"] == "all ranks start anew from step 2; rollout goes on"
    # groups of the undone third step were sampled before it, and train as they are
    undone, again = (set(numbers(step.group_ids)) for step in run.fleet.trained[2:4])
    assert undone == again
    assert run.controller.summary()["steps"] == 6


@pytest.mark.parametrize(("dies_at", "begun_after"), [(3, set()), (4, {15, 16, 17})])
def test_going_back_calls_off_what_undone_weights_began_and_nothing_else(
    tmp_path: Path, dies_at: int, begun_after: set[int]
) -> None:
    # three groups a step and six ahead: 15 to 17 are begun once step 3 is taken; the checkpoint is of step 2
    run = launch(make_config(tmp_path, max_staleness=2), learner_dies_at=(dies_at,))
    run.controller.run()
    assert set(run.fleet.cancelled) <= begun_after
    assert bool(run.fleet.cancelled) == bool(begun_after)


def test_a_learner_that_is_lost_again_and_again_ends_the_run(tmp_path: Path) -> None:
    run = launch(make_config(tmp_path), learner_dies_at=range(3, 100))
    message = "the learner was lost 4 times in a row, with no new step in between; last: learner-0 died: as told"
    with pytest.raises(RunError, match=message):
        run.controller.run()


def test_a_learner_that_always_dies_at_the_same_step_ends_the_run(tmp_path: Path) -> None:
    # the checkpoint of step 2 is the newest: each time, steps 3 and 4 are taken again before the fifth kills it
    run = launch(make_config(tmp_path, checkpoint_every=2), learner_dies_at=(4, 6, 8, 10, 12))
    with pytest.raises(RunError, match="the learner was lost 4 times in a row, with no new step in between"):
        run.controller.run()
    assert [step.step for step in run.fleet.trained] == [0, 1, 2, 2, 2, 2]


def test_a_learner_that_is_placed_on_nodes_that_are_gone_is_not_lost_again(tmp_path: Path) -> None:
    run = launch(make_config(tmp_path, steps=2), learner_dies_at=(1,))
    run.fleet.misplaced_starts = 6
    run.controller.run()
    assert [step.step for step in run.fleet.trained] == [0, 1]
    faults = [fault["what"] for fault in read_faults(tmp_path / "metrics.jsonl")]
    assert faults == ["learner-0 died: as told", *6 * ["learner-0 never began: as told"]]


def test_a_learner_that_is_lost_while_a_launch_takes_up_its_checkpoint_starts_anew(tmp_path: Path) -> None:
    launch(make_config(tmp_path, steps=2)).controller.run()
    for method in ("load", "publish"):
        run = launch(make_config(tmp_path, steps=3), learner_dies_in=[method])
        assert run.fleet.published == []
        with pytest.raises(Interrupted):
            run.fleet.stop_after_step = 0
            run.controller.run()
        assert [fault["what"] for fault in read_faults(tmp_path / "metrics.jsonl")][-1] == "learner-0 died: as told"
    run = launch(make_config(tmp_path, steps=3))
    run.controller.run()
    assert [step.step for step in run.fleet.trained] == [2]


@pytest.mark.parametrize("method", ["train_step", "publish", "save", "export", "load"])
def test_a_learner_may_be_lost_in_whatever_it_is_asked(tmp_path: Path, method: str) -> None:
    run = launch(make_config(tmp_path, max_staleness=1, eval_every=3), learner_dies_at=(4,))
    run.fleet.learner_dies_in = [method]
    run.controller.run()
    line = {step.step: step.group_ids for step in run.fleet.trained}
    assert sorted(line) == list(range(6))
    used = [group_id for group_ids in line.values() for group_id in group_ids]
    assert len(used) == len(set(used)) == 18
    assert (tmp_path / "export" / "steps").read_text() == "6"
    assert set(run.controller.evaluations) == {"before", "after"}
    losses = [fault for fault in read_faults(tmp_path / "metrics.jsonl") if fault["who"] == "learner"]
    assert run.fleet.learner_dies_in == []
    assert len(losses) == 2
    # run.json tells what the lineage is, also to a launch that comes right after
    (told,) = RunFolder(tmp_path).read_launches()
    assert tuple(told["restored_steps"]) == run.controller._lineage.restored_steps
    assert len(told["restored_steps"]) == 1 + len(losses)


def test_what_a_run_has_cost_is_counted_once_where_it_goes_back(tmp_path: Path) -> None:
    run = launch(make_config(tmp_path), learner_dies_at=(4,))
    run.controller._started -= 1000.0
    run.controller.run()
    assert 1000.0 <= run.controller.summary()["wall_s"] < 1500.0


def test_going_back_passes_over_a_damaged_checkpoint_and_says_so(tmp_path: Path) -> None:
    run = launch(make_config(tmp_path, max_staleness=1), learner_dies_at=(6,))
    run.fleet.before_death = lambda: (tmp_path / "checkpoints/step-00000004/learner/weights").write_text("damaged")
    run.controller.run()
    assert [step.step for step in run.fleet.trained] == [0, 1, 2, 3, 4, 2, 3, 4, 5]
    faults = read_faults(tmp_path / "metrics.jsonl")
    assert [(fault["who"], fault["what"], fault["done"]) for fault in faults] == [
        (
            "checkpoint",
            "step-00000004: learner/weights missing or damaged",
            "set aside; an older one is taken",
        ),
        ("learner", "learner-0 died: as told", "all ranks start anew from step 2; rollout goes on"),
    ]
    assert (tmp_path / "checkpoints" / "damaged-step-00000004").is_dir()
    line = {step.step: step.group_ids for step in run.fleet.trained}
    used = [number for group_ids in line.values() for number in numbers(group_ids)]
    assert len(used) == len(set(used)) == 18


def test_a_group_that_is_played_again_under_its_name_survives_going_back(tmp_path: Path) -> None:
    # at bound 1, group 4 stands ready in the checkpoint of step 1, and is found damaged by the step after
    run = launch(
        make_config(tmp_path, max_staleness=1, checkpoint_every=1),
        damages=("train-0000004.0",),
        learner_dies_at=(3,),
        seed=2,
    )
    run.controller.run()
    line = {step.step: step.group_ids for step in run.fleet.trained}
    used = [number for group_ids in line.values() for number in numbers(group_ids)]
    assert sorted(used) == list(range(18))


def test_a_rollout_actor_that_is_lost_again_and_again_ends_the_run(tmp_path: Path) -> None:
    run = launch(make_config(tmp_path), num_rollout=1, rollout_loss_rate=1.0, leaves_rate=0.0)
    with pytest.raises(RunError, match=r"^4 in a row were given up, with nothing finished in between; task train-000"):
        run.controller.run()


@pytest.mark.parametrize(("num_rollout", "max_staleness"), [(1, 0), (3, 1)])
def test_a_task_that_ends_its_actors_is_given_up_and_another_takes_its_place(
    tmp_path: Path, num_rollout: int, max_staleness: int
) -> None:
    config = make_config(tmp_path, max_staleness=max_staleness)
    run = launch(config, num_rollout=num_rollout, poison=(4, 7), seed=1)
    run.controller.run()
    # every step has its batch, of every other task
    assert [len(step.group_ids) for step in run.fleet.trained] == 6 * [3]
    trained = [number for step in run.fleet.trained for number in numbers(step.group_ids)]
    assert sorted(trained) == [n for n in range(20) if n not in (4, 7)]
    assert run.controller.summary()["dropped"] == {"given_up": 2}
    assert run.listener.steps[-1]["buffer/dropped/groups"] == 2
    faults = [fault for fault in read_faults(tmp_path / "metrics.jsonl") if fault["who"].startswith("task")]
    assert sorted(fault["who"] for fault in faults) == ["task train-0000004", "task train-0000007"]
    assert all(fault["what"].startswith("was lost 4 times with its actor, the last") for fault in faults)
    # the ledger has them, as dropped, and a launch that goes on does not play them again
    kept = [entry for entry in run.controller._buffer.state()["entries"] if entry["dropped"] == "given_up"]
    assert {entry["record"]["number"] for entry in kept} <= {4, 7}
    config.train.steps = 8
    again = launch(config, num_rollout=num_rollout, poison=(4, 7))
    again.controller.run()
    assert sorted(numbers([g for step in again.fleet.trained for g in step.group_ids])) == [*range(20, 26)]


def test_journals_of_a_task_that_is_given_up_are_deleted(tmp_path: Path) -> None:
    run = launch(make_config(tmp_path), num_rollout=1, poison=(4,))
    journal = tmp_path / "sessions" / "train-0000004.0"
    journal.mkdir(parents=True)
    run.controller.run()
    assert not journal.exists()


def test_an_end_while_the_learner_goes_back_tells_the_step_that_stands(tmp_path: Path) -> None:
    # the checkpoint is of step 2, and three steps are taken when the learner dies
    run = launch(make_config(tmp_path), learner_dies_at=(4,))

    def end() -> None:
        run.fleet.stop_after_step = 0

    run.fleet.before_death = end
    with pytest.raises(Interrupted):
        run.controller.run()
    assert len(run.fleet.trained) == 3
    summary = run.controller.summary()
    assert (run.controller.step, summary["steps"], summary["num_groups"]) == (2, 2, 6)


def test_a_group_whose_file_is_damaged_is_dropped_and_its_task_trained_all_the_same(tmp_path: Path) -> None:
    run = launch(make_config(tmp_path), damages=("train-0000004.0",))
    run.controller.run()
    trained = [number for step in run.fleet.trained for number in numbers(step.group_ids)]
    # the second step waits for the task to be played again; at bound 0 nothing else may go ahead of it
    assert sorted(trained) == list(range(18))
    assert sorted(numbers(run.fleet.trained[1].group_ids)) == [3, 4, 5]
    assert run.controller.summary()["dropped"] == {"damaged": 1}
    (fault,) = read_faults(tmp_path / "metrics.jsonl")
    assert fault["what"] == "group file train-0000004.0.safetensors is damaged"
