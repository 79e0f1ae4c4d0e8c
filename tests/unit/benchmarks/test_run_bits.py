"""The comparison of two runs sees every last bit that tells of what was learnt, and nothing of a launch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_bits import differing_metrics, differing_weights
from safetensors.numpy import save_file


def line(kind: str, step: int, **metrics: float | None) -> dict[str, Any]:
    names = {"loss": "update/loss/total", "wall": "loop/step/wall_s", "success": "eval/greedy/success"}
    return {
        "kind": kind,
        "step": step,
        "incarnation": 0,
        "time": 0.0,
        "metrics": {names[name]: value for name, value in metrics.items()},
    }


def make_run(folder: Path, *lines: dict[str, Any], weights: dict[str, Any] | None = None) -> Path:
    (folder / "export").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    if weights is not None:
        save_file(weights, folder / "export" / "model.safetensors")
    return folder


def test_times_and_undone_steps_do_not_count(tmp_path: Path) -> None:
    first = make_run(tmp_path / "first", line("step", 1, loss=0.5, wall=2.0), line("eval", 1, success=None))
    second = make_run(
        tmp_path / "second",
        line("step", 1, loss=0.7, wall=1.0),
        line("restore", 0),
        line("step", 1, loss=0.5, wall=3.0),
        line("eval", 1, success=None),
    )
    assert differing_metrics(first, second) == ([], 2)


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (float(np.nextafter(0.5, 1.0)), ["step 1 update/loss/total: 0.5, 0.5000000000000001"]),
        (None, ["step 1 update/loss/total: 0.5, None"]),
    ],
)
def test_a_last_bit_of_a_metric_counts(tmp_path: Path, loss: float | None, told: list[str]) -> None:
    first = make_run(tmp_path / "first", line("step", 1, loss=0.5))
    assert differing_metrics(first, make_run(tmp_path / "second", line("step", 1, loss=loss))) == (told, 1)


def test_a_missing_line_counts(tmp_path: Path) -> None:
    first = make_run(tmp_path / "first", line("step", 1, loss=0.5), line("step", 2, loss=0.25))
    second = make_run(tmp_path / "second", line("step", 1, loss=0.5))
    assert differing_metrics(first, second) == (["step 2 update/loss/total: 0.25, 'no value'"], 2)


def test_a_last_bit_of_a_weight_its_type_and_its_name_count(tmp_path: Path) -> None:
    one = np.ones(3, np.float32)
    moved = one.copy()
    moved[1] = np.nextafter(np.float32(1.0), np.float32(2.0))
    first = make_run(tmp_path / "first", weights={"a": one, "b": one, "c": one, "zero": np.zeros(1), "d": one})
    others = {"a": moved, "b": one.astype(np.float64), "c": one, "zero": -np.zeros(1), "e": one}
    second = make_run(tmp_path / "second", weights=others)
    assert differing_weights(first, second) == (["a", "b", "d", "e", "zero"], 6)
