"""Whole runs with real Ray actors, DeepSpeed and SQLite, two or three steps each, on random tiny weights.

Covered: both commands, both staleness bounds, one and two ranks, resume, what a run leaves behind and emits. Not
covered: SIGTERM (test_security.py), that anything is learnt (benchmarks), faults in the middle of a checkpoint.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from run_cases import SMALL, copy_without_step, ledger, read_json, run, stage_lines, step_lines
from safetensors.numpy import load_file

from segue.actors.metrics import METRICS, When, pattern_of
from segue.actors.recorder import read_metrics
from segue.actors.stages import Stages
from segue.conf.load import load_stored_config
from segue.model.checkpoint import import_checkpoint
from segue.model.network import build_model
from segue.rollout.trajectory import Outcome
from segue.rollout.trajectory_file import load_group


@pytest.fixture(scope="module")
def synchronous(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished run of three steps at bound 0, and its output."""
    folder = tmp_path_factory.mktemp("runs") / "synchronous"
    return folder, run("train", *SMALL, "train.steps=3", f"run.dir={folder}")


# two stages of two steps, on archives and text
STAGES = (
    "{length_mix:{256:1.0},text_share:0.5,tokens_per_step:1024,max_steps:2,eval_every:2}",
    "{length_mix:{256:0.5,512:0.5},text_share:0.5,tokens_per_step:1024,max_steps:2,eval_every:1,segment_tokens:128}",
)


@pytest.fixture(scope="module")
def imitation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished imitation run of four steps, in stages."""
    folder = tmp_path_factory.mktemp("runs")
    for name in "abc":
        (folder / f"{name}.txt").write_text(f"the {name} of it\n" * 50)
    run(
        "pretrain",
        *(override for override in SMALL if not override.startswith("pretrain.")),
        "experiment=curriculum",
        f"pretrain.curriculum.stages=[{','.join(STAGES)}]",
        f"pretrain.curriculum.text={folder}/*.txt",
        "pretrain.curriculum.held_out_documents=1",
        "pretrain.curriculum.held_out_tokens=512",
        # a slope of the second stage's three measurements, that only a rise would call flat
        "pretrain.curriculum.flat_evals=3",
        "pretrain.curriculum.flat_slope=0",
        "pretrain.curriculum.recall={lengths:[256,1024],episodes:1}",
        "learner.measure_max_logits=true",
        "env.kwargs.page_tokens=128",
        "rollout.max_turn_tokens=64",
        f"run.dir={folder / 'imitation'}",
    )
    return folder / "imitation"


def test_a_synchronous_run_counts_what_it_did(synchronous: tuple[Path, str]) -> None:
    folder, text = synchronous
    summary = read_json(folder / "summary.json")
    assert (summary["status"], summary["steps"], summary["num_groups"], summary["num_episodes"]) == (
        "finished",
        3,
        3 * 2,
        3 * 2 * 2,
    )
    lines = step_lines(folder)
    assert [line["step"] for line in lines] == [1, 2, 3]
    # means over four episodes a step against the totals
    tokens = sum(line["metrics"]["batch/tokens/mean"] * 4 for line in lines)
    assert summary["num_tokens"] == pytest.approx(tokens)
    assert sum(summary["outcomes"].values()) == 12
    assert set(summary["evaluations"]) == {"before", "after"}
    assert summary["evaluations"]["after"]["greedy"]["episodes"] == 3
    assert summary["cpu_s"] > 1 and summary["peak_memory_bytes"] > 10**8
    for name in ("summary.json", "curves.png", "export", "events"):
        assert str(folder / name) in text
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_synchronous_run_trains_every_token_on_the_weights_that_sampled_it(synchronous: tuple[Path, str]) -> None:
    folder, _ = synchronous
    for line in step_lines(folder):
        metrics = line["metrics"]
        assert (metrics["staleness/age/max_steps"], metrics["staleness/masked/share"]) == (0, 0.0)
        assert (metrics["buffer/in_flight/groups"], metrics["buffer/ready/groups"]) == (0, 0)
        # rollout and learner agree to rounding, and both ran the same weights; design 12.5
        assert metrics["policy/logprob_gap/max_nats"] < 1e-4
        assert metrics["update/applied/count"] == 1.0
    # two checkpoints are kept, so the files of steps 2 and 3 are still there or just committed
    groups = [load_group(path) for path in sorted((folder / "groups").iterdir())]
    assert [group.task_id for group in groups] == ["train-0000004", "train-0000005"]
    for group in groups:
        for trajectory in group.trajectories:
            assert set(trajectory.policy_step[trajectory.trainable].tolist()) == {2}
            assert trajectory.outcome is not Outcome.engine_error


def test_no_group_trains_twice(synchronous: tuple[Path, str]) -> None:
    folder, _ = synchronous
    uses = {entry["record"]["group_id"]: entry["uses"] for entry in ledger(folder)}
    assert uses == {"train-0000004.0": [3], "train-0000005.0": [3]}


def test_a_finished_run_says_so_and_changes_nothing(synchronous: tuple[Path, str]) -> None:
    folder, _ = synchronous
    before = (folder / "run.json").read_bytes()
    text = run("train", f"run.dir={folder}")
    assert text == f"{folder} holds a finished run of 3 steps; raise train.steps to go on\n"
    assert (folder / "run.json").read_bytes() == before


def test_every_weight_but_the_listed_ones_moves_and_is_exported(imitation: Path) -> None:
    torch_seed = torch.Generator().manual_seed(0)
    _, model = import_checkpoint(imitation / "export")
    start = build_model(model.config, torch.float32)
    start.init_weights(torch_seed)
    initial = dict(start.named_parameters())
    still = [name for name, tensor in model.named_parameters() if torch.equal(tensor, initial[name])]
    # layer 0 has one source to mix, so its pseudo-query and norm have no gradient
    assert [name for name in still if not name.startswith("model.layers.0.")] == []
    assert all("res_" in name for name in still), still


def test_a_resumed_training_run_takes_the_same_step_again(synchronous: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = synchronous
    again = copy_without_step(folder, tmp_path / "again", 3)
    # the model that a run began with is not looked at once a checkpoint holds its weights
    stored = again / "config.yaml"
    stored.write_text(stored.read_text().replace("init_from: null", f"init_from: {tmp_path / 'gone'}"))
    assert "gone" in stored.read_text()
    text = run("train", f"run.dir={again}")
    assert "resuming" in text and "after step 2, launch 2" in text
    summary = read_json(again / "summary.json")
    assert [(restore["incarnation"], restore["at_step"]) for restore in summary["restores"]] == [(1, 2)]
    assert (summary["steps"], summary["num_groups"]) == (3, 6)
    assert [line["incarnation"] for line in step_lines(again)] == [0, 0, 1]
    uses = {entry["record"]["group_id"]: entry["uses"] for entry in ledger(again)}
    assert uses == {"train-0000004.1": [3], "train-0000005.1": [3]}
    # the same weights, tasks and noise sample the same tokens, under the new incarnation
    for task in ("train-0000004", "train-0000005"):
        old = load_group(folder / "groups" / f"{task}.0.safetensors")
        new = load_group(again / "groups" / f"{task}.1.safetensors")
        for first, second in zip(old.trajectories, new.trajectories, strict=True):
            assert np.array_equal(first.token_ids, second.token_ids)
            assert set(second.policy_incarnation[second.trainable].tolist()) == {1}


def test_a_resumed_imitation_run_equals_the_uninterrupted_one_bit_for_bit(imitation: Path, tmp_path: Path) -> None:
    # in the middle of the second stage, behind a measurement
    again = copy_without_step(imitation, tmp_path / "again", 4)
    run("pretrain", f"run.dir={again}")
    first, second = (load_file(folder / "export" / "model.safetensors") for folder in (imitation, again))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert np.array_equal(tensor, second[name]), name
    old, new = (step_lines(folder)[-1] for folder in (imitation, again))
    assert (old["incarnation"], new["incarnation"]) == (0, 1)
    for name, value in old["metrics"].items():
        # how far demonstrators are ahead is not the step's doing
        if not name.startswith(("loop/", "usage/", "buffer/", "env/")) and not name.endswith("per_s"):
            assert new["metrics"][name] == value, name
    measured = [stage_lines(folder) for folder in (imitation, again)]
    assert [line["step"] for line in measured[0]] == [0, 2, 3, 4]
    # the last one was measured anew
    assert [line["incarnation"] for line in measured[1]] == [0, 0, 0, 1]
    old, new = (dict(lines[-1]["metrics"]) for lines in measured)
    assert old.pop("curriculum/wall/s") and new.pop("curriculum/wall/s")
    assert old == new and "recall/1024/4/probability" in new
    curricula = [read_json(folder / "summary.json")["curriculum"] for folder in (imitation, again)]
    assert curricula[0] == curricula[1]


def test_an_imitation_run_in_stages_holds_what_they_say(imitation: Path) -> None:
    summary = read_json(imitation / "summary.json")
    assert [(stage["begun_at"], stage["ended_at"]) for stage in summary["curriculum"]["stages"]] == [(0, 2), (2, 4)]
    # the same order by hand: 1,024 tokens a step, half of them text
    config = load_stored_config(imitation)
    stages = Stages(config, config.pretrain.curriculum.stages, 0)
    stages.restore(read_json(imitation / "checkpoints" / "step-00000004" / "controller.json")["stages"])
    plans = [stages.plan(number) for number in range(4)]
    assert summary["num_episodes"] == sum(len(plan.demonstrations) for plan in plans)
    assert {length for plan in plans[:2] for length in plan.demonstrations} == {256}
    spans = [span for plan in plans for span in plan.text]
    assert spans[0].start == 0 and [span.start for span in spans[1:]] == [s.start + s.length for s in spans[:-1]]
    # text is no episode, and is trained all the same, every token of a span
    counted = [line["metrics"]["learner/tokens/counted"] for line in step_lines(imitation)]
    assert all(count > sum(span.length for span in plan.text) for count, plan in zip(counted, plans, strict=True))
    assert sum(counted) == summary["num_sampled_tokens"] + summary["num_text_tokens"]
    assert (imitation / "recall.png").is_file()


def test_imitation_runs_through_the_same_loop_and_starts_a_training_run(imitation: Path, tmp_path: Path) -> None:
    summary = read_json(imitation / "summary.json")
    assert (summary["steps"], summary["num_groups"]) == (4, 4)
    losses = [line["metrics"]["update/loss/total"] for line in step_lines(imitation)]
    # random weights know nothing: the mean over tokens is near that of a uniform guess
    vocab_size = read_json(imitation / "export" / "config.json")["vocab_size"]
    assert losses[0] == pytest.approx(np.log(vocab_size), abs=0.7)
    folder = tmp_path / "started"
    run("train", *SMALL, "train.steps=0", f"run.init_from={imitation / 'export'}", f"run.dir={folder}")
    first, second = (load_file(f / "export" / "model.safetensors") for f in (imitation, folder))
    assert all(np.array_equal(tensor, second[name]) for name, tensor in first.items())


def test_metrics_are_those_of_the_list(synchronous: tuple[Path, str], imitation: Path) -> None:
    emitted: dict[str, set[When]] = {}
    imitated = {"step": When.step, "stage": When.stage}
    for folder, kinds in ((synchronous[0], {"step": When.train_step}), (imitation, imitated)):
        for line in read_metrics(folder / "metrics.jsonl"):
            for name, value in line["metrics"].items():
                if value is not None:
                    emitted.setdefault(pattern_of(name), set()).add(kinds.get(line["kind"], When.evaluation))
    # there is neither a critic nor a budget nor a bound of attention scores nor a term of the run's own
    areas = ("critic/", "effort/", "attention/clipped/", "reward/term/")
    without = {metric.name for metric in METRICS if metric.name.startswith(areas)}
    assert {metric.name for metric in METRICS} - emitted.keys() == without
    for metric in METRICS:
        # what only training emits must not come from imitation, and evaluations are apart from steps
        allowed = {When.train_step, When.step} if metric.when is When.step else {metric.when}
        assert emitted.get(metric.name, set()) <= allowed, metric.name


def test_two_ranks_and_two_rollout_actors_overlap_within_the_bound(tmp_path: Path) -> None:
    folder = tmp_path / "overlapping"
    processes = ("cluster.rollout_actors=2", "cluster.learner_ranks=2")
    # every checkpoint is kept, so the ledger still holds every group that the first one does not contain
    bound = ("train.max_staleness=1", "train.keep_checkpoints=10")
    run("train", *SMALL, *processes, *bound, "train.steps=3", f"run.dir={folder}")
    summary = read_json(folder / "summary.json")
    assert (summary["steps"], summary["num_groups"], summary["dropped"]) == (3, 6, {})
    lines = step_lines(folder)
    # while step 1 trains, the groups of step 2 are in flight or ready; nothing is played that no step needs
    ahead = [line["metrics"]["buffer/in_flight/groups"] + line["metrics"]["buffer/ready/groups"] for line in lines]
    assert ahead == [2, 2, 0]
    ages = [line["metrics"]["staleness/age/max_steps"] for line in lines]
    assert ages[0] == 0 and max(ages) <= 1
    uses = Counter(step for entry in ledger(folder) for step in entry["uses"])
    assert uses == {2: 2, 3: 2}
    # the first four tasks are dealt out in turn
    made_by = {entry["record"]["made_by"] for entry in ledger(folder)}
    assert made_by == {"rollout-0", "rollout-1"}
