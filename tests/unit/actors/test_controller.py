"""What a restored controller does with what it finds; orders and bounds are in tests/property/."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from actor_cases import make_episode
from controller_cases import launch as launch_run
from controller_cases import make_config

from segue.actors.errors import ActorLost, Interrupted, RunError
from segue.actors.held_out import play_held_out, standard_modes
from segue.actors.phase import PhaseKind
from segue.actors.rollout_actor import EvaluationRequest
from segue.actors.rollout_stats import RolloutStats
from segue.actors.run_folder import EXPORT_NAME
from segue.conf.load import load_config


def launch(path: Path, *, train: dict[str, Any], **fleet: Any):
    """A controller that stands where the folder's newest checkpoint stands, and its fleet."""
    run = launch_run(make_config(path, **{"groups_per_step": 2, "checkpoint_every": 1, **train}), **fleet)
    return run.controller, run.fleet


def test_a_damaged_group_that_lies_ahead_of_the_cursor_is_played_once_again(tmp_path: Path) -> None:
    # at bound 1 groups 0 to 3 are in flight; all but 0 finish before the run is killed: 1 to 3 are found
    train = {"steps": 4, "max_staleness": 1}
    first, fakes = launch(tmp_path, train=train)
    first._request_groups()
    for reference in list(fakes._in_flight)[1:]:
        fakes._finish(reference)
    second, _ = launch(tmp_path, train=train)
    second._checkpoint()
    # the ledger holds 1 to 3, and the stream has drawn none of them
    (tmp_path / "groups" / "train-0000002.0.safetensors").write_bytes(b"damaged")
    third, fakes = launch(tmp_path, train=train)
    third.run()
    trained = [group_id for step in fakes.trained for group_id in step.group_ids]
    assert len(trained) == len(set(trained)) == 8
    assert "train-0000002.2" in trained and "train-0000002.0" not in trained


def test_a_late_file_of_a_task_that_the_ledger_has_forgotten_does_not_train(tmp_path: Path) -> None:
    train = {"steps": 4, "max_staleness": 1, "keep_checkpoints": 1}
    first, fakes = launch(tmp_path, train=train)
    first._request_groups()
    for reference in list(fakes._in_flight):
        fakes._finish(reference)
    late = tmp_path / "groups" / "train-0000000.0.safetensors"
    content = late.read_bytes()
    second, _ = launch(tmp_path, train=train)
    second.run()
    assert not late.exists()
    late.write_bytes(content)
    third, fakes = launch(tmp_path, train={**train, "steps": 5})
    third.run()
    assert not late.exists()
    assert "train-0000000.0" not in [group_id for step in fakes.trained for group_id in step.group_ids]
    assert third.summary()["dropped"] == {"superseded": 1}


def test_a_group_that_a_lost_actor_left_finished_is_taken_up_and_its_journals_deleted(tmp_path: Path) -> None:
    controller, fakes = launch(tmp_path, train={"steps": 1}, num_rollout=1)
    controller._request_groups()
    # it dies between a file and the end of its journals
    fakes._finish(min(fakes._in_flight))
    for name in ("train-0000000.1", "train-0000001.1"):
        (tmp_path / "sessions" / name).mkdir(parents=True)
    (seat,) = controller._pool._seats
    controller._pool._replace(seat, ActorLost("rollout-0 died: chance"))
    assert [path.name for path in (tmp_path / "sessions").iterdir()] == ["train-0000001.1"]
    controller.run()
    assert sorted(event for event in fakes.events if event.startswith("group")) == ["group 0", "group 1"]


def test_an_evaluation_tells_how_far_it_is(tmp_path: Path) -> None:
    class Pool:
        """Two actors that have played before; one of them is replaced, and its share of two begun again."""

        size = 2
        latest_stats = RolloutStats(num_held_out=7)

        def submit(self, method: str, request: EvaluationRequest, *, what: str) -> EvaluationRequest:
            return request

        def wait_all(self, jobs: list[EvaluationRequest], meanwhile: Callable[[], None], **_: Any) -> list[Any]:
            for count in (7, 9, 12):
                self.latest_stats = RolloutStats(num_held_out=count)
                meanwhile()
            return [[make_episode(seed=seed) for seed in request.seeds] for request in jobs]

    config = load_config(["eval.episodes=4"])
    said: list[str] = []
    evaluation = play_held_out(Pool(), config, standard_modes(config)[0], keep_as=None, show=said.append)
    assert said == ["evaluating (sampled)", "evaluating (sampled) 2/4", "evaluating (sampled) 4/4"]
    assert evaluation.num_episodes == 4


def test_an_export_that_fails_leaves_no_part_of_itself(tmp_path: Path) -> None:
    controller, _ = launch(tmp_path, train={"steps": 0}, ends_with=RunError, dies_in="export")
    with pytest.raises(RunError, match="half of it is written"):
        controller.run()
    assert [path.name for path in tmp_path.iterdir() if EXPORT_NAME in path.name] == []


def test_an_evaluation_that_was_interrupted_is_made_by_the_next_launch_and_no_other_twice(tmp_path: Path) -> None:
    train = {"steps": 6, "eval_every": 2}
    evaluation = ["evaluate eval-sampled", "evaluate eval-greedy"]
    first, _ = launch(tmp_path, train=train, num_rollout=1, stop_after_step=2)
    with pytest.raises(Interrupted):
        first.run()
    second, fakes = launch(tmp_path, train=train, num_rollout=1, stop_after_step=1)
    with pytest.raises(Interrupted):
        second.run()
    assert fakes.events[:4] == ["load", "publish 2", *evaluation]
    third, fakes = launch(tmp_path, train=train, num_rollout=1)
    third.run()
    assert [event for event in fakes.events if event.startswith(("evaluate", "step"))] == [
        "step 4",
        *evaluation,
        *("step 5", "step 6"),
        *evaluation,
    ]
    # the last evaluation stands for its step also where the run is made longer
    fourth, fakes = launch(tmp_path, train={**train, "steps": 7}, num_rollout=1)
    fourth.run()
    assert fakes.events[2].startswith("group ")


@pytest.mark.parametrize("seed", range(3))
def test_a_wish_to_end_is_heard_where_demonstrations_are_always_there(tmp_path: Path, seed: int) -> None:
    run = launch_run(make_config(tmp_path), kind=PhaseKind.pretrain, seed=seed, stop_after_step=2)
    with pytest.raises(Interrupted):
        run.controller.run()
    assert len(run.fleet.trained) == 2
