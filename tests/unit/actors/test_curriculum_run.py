"""A run in stages on a fleet without processes: what it measures, records, checkpoints, and where it goes on."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from controller_cases import Launch, launch, make_config
from fake_fleet import Killed

from segue.actors.phase import PhaseKind
from segue.actors.recorder import read_faults, read_metrics
from segue.conf.schema import RecallConfig, SegueConfig, StageConfig

PRETRAIN = PhaseKind.pretrain


def make_curriculum(folder: Path, *, lengths: tuple[int, ...] = ()) -> SegueConfig:
    """Two stages of at most six and four steps, measured every second one; checkpoints every third."""
    config = make_config(folder, checkpoint_every=3)
    config.pretrain.curriculum.stages = [
        StageConfig(length_mix={64: 1.0}, tokens_per_step=128, max_steps=6, eval_every=2),
        StageConfig(length_mix={64: 0.5, 256: 0.5}, tokens_per_step=512, max_steps=4, eval_every=2),
    ]
    config.pretrain.curriculum.length_option = "length_tokens"
    config.pretrain.curriculum.flat_evals = 2
    config.pretrain.curriculum.recall = RecallConfig(lengths=list(lengths), episodes=2)
    return config


def flat_from(step: int) -> Callable[[str, int], float]:
    """Halves with every step until then."""
    return lambda name, at: 0.5 ** min(at, step)


def held(run: Launch) -> list[tuple[int, str]]:
    """What kinds of sequences each task held."""
    plans = sorted(run.fleet.plans.items())
    return [(number, " ".join(map(str, sorted(set(plan.demonstrations))))) for number, plan in plans if plan]


def test_a_run_in_stages_ends_each_where_it_is_flat(tmp_path: Path) -> None:
    run = launch(make_curriculum(tmp_path), kind=PRETRAIN, held_out_loss=flat_from(2))
    run.controller.run()
    # measured after 0, 2, 4 (flat); then 6 (flat: nothing has changed since 4)
    assert run.controller.step == 6
    summary = run.controller.summary()["curriculum"]
    assert [(stage["ended_at"], stage["end"]) for stage in summary["stages"]] == [(4, "flat"), (6, "flat")]
    lines = [line for line in read_metrics(tmp_path / "metrics.jsonl") if line["kind"] == "stage"]
    assert [line["step"] for line in lines] == [0, 2, 4, 6]
    assert [line["metrics"]["curriculum/stage/number"] for line in lines] == [1, 1, 1, 2]
    assert [line["metrics"]["curriculum/longest/tokens"] for line in lines] == [0, 64, 64, 256]
    assert [line["metrics"]["held_out/demonstration_256/nats"] for line in lines] == [1.0, 0.25, 0.25, 0.25]
    # 1 -> 0.25 over 0.625
    assert [line["metrics"]["curriculum/slope/share"] for line in lines] == [None, pytest.approx(-1.2), 0.0, 0.0]
    # nothing of the second stage is played before the first has ended
    assert held(run)[:4] == [(number, "64") for number in range(4)]
    assert {what for _, what in held(run)[4:]} <= {"64", "256", "64 256"}
    assert len(held(run)) == 6
    events = run.fleet.events
    assert events.index("group 4") > events.index("step 4")
    places = [(place.stage, place.step) for place in run.fleet.places]
    assert places == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    assert read_faults(tmp_path / "metrics.jsonl") == []


def test_a_stage_that_still_falls_at_its_maximum_is_a_fault_in_the_metrics(tmp_path: Path) -> None:
    run = launch(make_curriculum(tmp_path), kind=PRETRAIN, held_out_loss=flat_from(100))
    run.controller.run()
    assert run.controller.step == 10
    faults = read_faults(tmp_path / "metrics.jsonl")
    assert [(fault["who"], fault["step"], fault["done"]) for fault in faults] == [
        ("curriculum", 6, "stage 2 begins"),
        ("curriculum", 10, "the run ends"),
    ]
    assert any(line.startswith("curriculum: stage 1 came to its 6 steps before") for line in run.view.lines)


def test_recall_is_measured_before_and_after_each_stage(tmp_path: Path) -> None:
    run = launch(make_curriculum(tmp_path, lengths=(512, 64)), kind=PRETRAIN, held_out_loss=flat_from(2))
    run.controller.run()
    lines = [line for line in read_metrics(tmp_path / "metrics.jsonl") if line["kind"] == "stage"]
    with_recall = [line for line in lines if "recall/64/1/probability" in line["metrics"]]
    assert [line["step"] for line in with_recall] == [0, 4, 6]
    last = with_recall[-1]["metrics"]
    assert sum(name.startswith("recall/") for name in last) == 2 * 4 * 3
    # the fleet's archives are 100 and 200 tokens away, and each answer's log-probability is minus the loss
    assert (last["recall/512/4/distance_tokens"], last["recall/512/4/logprob_nats"]) == (150, -0.25)


@pytest.mark.parametrize("stop_after_step", [1, 3, 4, 5, 8])
def test_a_killed_run_goes_on_in_its_stage_and_trains_the_same(tmp_path: Path, stop_after_step: int) -> None:
    def line(*folders: Path, **fleet: object) -> tuple[list[object], dict[str, object]]:
        """Everything that the steps on the line of the run held, and the stages at its end."""
        trained: dict[int, object] = {}
        for number, folder in enumerate(folders):
            last = number + 1 == len(folders)
            folder.mkdir(exist_ok=True)
            config = make_curriculum(folder)
            # every step publishes its weights then, which is where the fleet kills
            config.pretrain.eval_every = 1
            ends = {} if last else fleet
            run = launch(config, kind=PRETRAIN, seed=number, held_out_loss=flat_from(3), **ends)
            if last:
                run.controller.run()
            else:
                with pytest.raises(Killed):
                    run.controller.run()
                run.fleet.finish_unseen()
            for step, place in zip(run.fleet.trained, run.fleet.places, strict=True):
                numbers = [int(group_id.split("-")[1].split(".")[0]) for group_id in step.group_ids]
                trained[step.step] = (place, numbers, [run.fleet.plans.get(n) for n in numbers])
        return [trained[step] for step in sorted(trained)], run.controller.summary()["curriculum"]

    whole, stages = line(tmp_path / "whole")
    assert len(whole) == 8
    folder = tmp_path / "killed"
    again, stages_again = line(folder, folder, ends_with=Killed, stop_after_step=stop_after_step)
    assert stages_again == stages
    for first, second in zip(whole, again, strict=True):
        assert first[:2] == second[:2]
        # a group that the first launch had played already is not asked for again
        assert second[2] in ([None], first[2])


def test_the_end_of_a_stage_is_committed_before_the_next_is_played(tmp_path: Path) -> None:
    run = launch(make_curriculum(tmp_path), kind=PRETRAIN, held_out_loss=flat_from(2))
    run.controller.run()
    events = run.fleet.events
    scored = [place for place, event in enumerate(events) if event == "score demonstration_64"]
    # step 4 is in no rhythm of the checkpoints, which come after 3 and 6
    after = events[scored[2] :]
    assert after.index("save") < after.index("group 4")
    state = json.loads((tmp_path / "checkpoints" / "step-00000006" / "controller.json").read_text())
    assert len(state["stages"]["measurements"]) == 5
