"""The commands beside train: each on the model of a one-step imitation run, with real actors."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from run_cases import TIMEOUT_S
from safetensors.numpy import load_file

SMALL = (
    "pretrain.steps=1",
    "pretrain.episodes_per_step=2",
    "eval.episodes=3",
    "env.variants={joins: {level: 3}}",
    "rollout.max_sessions=8",
    "rollout.max_turn_tokens=64",
    "cluster.dashboard=false",
    "cluster.rollout_actors=1",
    "cluster.learner_ranks=1",
)


def segue(folder: Path, *arguments: str, code: int = 0) -> str:
    """Run a command in a folder; returns what it printed."""
    command = [sys.executable, "-P", "-m", "segue.actors.cli.main", *arguments]
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == code, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    text = segue(folder, "pretrain", *SMALL, "run.dir=imitation")
    assert re.search(
        r"^demonstrator, over 2 episodes: success [01]\.\d{3}, query_correct [01]\.\d{3}$", text, re.MULTILINE
    )
    return folder / "imitation"


def test_export_writes_the_checkpoints_model(run_folder: Path, tmp_path: Path) -> None:
    text = segue(tmp_path, "export", str(run_folder), "exported", "--step", "1")
    assert "wrote exported" in text
    first, second = (
        load_file(folder / "model.safetensors") for folder in (run_folder / "export", tmp_path / "exported")
    )
    assert first.keys() == second.keys()
    assert all(np.array_equal(tensor, second[name]) for name, tensor in first.items())
    text = segue(tmp_path, "export", str(run_folder), "another", "--step", "7", code=2)
    assert f"segue: step must be one of the checkpoints [1] of {run_folder}, got 7" in text


def test_import_reads_an_exported_model_and_names_what_is_missing(run_folder: Path, tmp_path: Path) -> None:
    text = segue(tmp_path, "import", str(run_folder / "export"), "imported")
    count = sum(tensor.size for tensor in load_file(run_folder / "export" / "model.safetensors").values())
    # buffers are not parameters: the router's biases, one an expert of each of the three layers with experts
    config = json.loads((run_folder / "export" / "config.json").read_text())
    num_biases = config["num_experts"] * (config["num_hidden_layers"] - config["first_k_dense_replace"])
    assert f"{count - num_biases:,} parameters" in text
    (tmp_path / "imported" / "model.safetensors").unlink()
    text = segue(tmp_path, "import", "imported", "again", code=2)
    assert text.startswith("segue: ") and "safetensors" in text


def test_eval_plays_every_mode_of_a_finished_run(run_folder: Path, tmp_path: Path) -> None:
    text = segue(tmp_path, "eval", f"run.dir={run_folder}")
    (summary_path,) = tmp_path.glob("runs/*_eval/summary.json")
    summary = json.loads(summary_path.read_text())
    modes = summary["evaluations"]["after"]
    assert list(modes) == ["sampled", "greedy", "joins"]
    assert all(figures["episodes"] == 3 for figures in modes.values())
    assert summary["model"] == str(run_folder / "export")
    assert str(summary_path) in text
    lines = [json.loads(line) for line in (summary_path.parent / "metrics.jsonl").read_text().splitlines()]
    assert [line["metrics"][f"eval/{mode}/success"] for line, mode in zip(lines, modes, strict=True)] == [
        modes[mode]["success"] for mode in modes
    ]


def test_rollout_prints_what_was_read_said_and_earned(run_folder: Path, tmp_path: Path) -> None:
    text = segue(tmp_path, "rollout", f"run.dir={run_folder}", "--demonstrator", "pretrain.skill=expert")
    assert re.search(r'^  user  .*\n(?:.*\n)*turn 1\n  calls     query\(sql="', text, re.MULTILINE)
    # the flawless expert: a query, then the answer, rewarded in full
    assert re.search(r"^success, 2 turns, \d+ tokens, reward 1\.20 \(process \+0\.10, ", text, re.MULTILINE)
    text = segue(tmp_path, "rollout", f"run.dir={run_folder}", "--episodes", "2", "--raw")
    assert len(re.findall(r"^task rollout-\d+, seed \d+ .*\n<message role=", text, re.MULTILINE)) == 2
    assert re.search(r"^[012] of 2 succeeded, mean reward ", text, re.MULTILINE)


def test_multirun_runs_every_combination_and_reports_failure(tmp_path: Path) -> None:
    text = segue(tmp_path, "train", "-m", "seed=1,2", "run.init_from=nowhere", "run.dir=sweep", code=2)
    for number in (0, 1):
        assert f"segue train seed={number + 1} run.init_from=nowhere run.dir={tmp_path / 'sweep' / str(number)}" in text
    assert text.count("segue: run.init_from must be an exported model, warm_start or null, got ") == 2
    assert text.splitlines()[-1].split() == ["2", "seed=2", "code", "2", "–", "–", str(tmp_path / "sweep" / "1")]
