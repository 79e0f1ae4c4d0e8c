"""What an experiment learns: a report and a figure from runs of several seeds that began with one imitation.

segue pretrain experiment=craft run.dir=runs/imitated
segue train experiment=craft run.init_from=runs/imitated/export seed=0 run.dir=runs/seed0      (likewise 1 and 2)
python benchmarks/collect_curves.py craft --imitated runs/imitated runs/seed0 runs/seed1 runs/seed2
"""

import argparse
import json
from pathlib import Path
from typing import Any

from collect_runs import GIGABYTES, MINUTES, common_commit, split_rows
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from report import Row, write_report

from segue.actors.recorder import read_metrics
from segue.conf.rules import GREEDY_MODE, SAMPLED_MODE

DOCS = Path(__file__).parents[1] / "docs"
SUCCESS = "batch/success/mean"
# steps of a moving mean: a batch is a few dozen episodes
SMOOTHED = 5


def demonstrator_success(imitated: dict[str, Any]) -> float:
    """Share of the imitated episodes that solved their task."""
    return float(imitated["outcomes"].get("success", 0) / imitated["num_episodes"])


def cost_rows(name: str, summary: dict[str, Any]) -> list[Row]:
    """What a run took."""
    return [
        Row(name=f"{name}: wall", value=summary["wall_s"] / MINUTES, unit="minutes"),
        Row(name=f"{name}: CPU", value=summary["cpu_s"], unit="CPU-s"),
        Row(name=f"{name}: peak memory", value=summary["peak_memory_bytes"] / GIGABYTES, unit="GB"),
        Row(name=f"{name}: tokens", value=summary["num_tokens"], unit=""),
    ]


def seed_rows(name: str, summary: dict[str, Any], demonstrated: float) -> list[Row]:
    """What one seed came to, beside the demonstrator."""
    before, after = summary["evaluations"]["before"], summary["evaluations"]["after"]
    rows = []
    for mode in (SAMPLED_MODE, GREEDY_MODE):
        must = "ahead" if mode == SAMPLED_MODE else None
        success = after[mode]["success"]
        rows += [
            Row(name=f"{name}: {mode} success before", value=before[mode]["success"], unit=""),
            Row(
                name=f"{name}: {mode} success after", value=success, unit="", peer="demonstrator",
                peer_value=demonstrated, must=must,
            ),
        ]  # fmt: skip
    for check in after[SAMPLED_MODE]["checks"]:
        for when, modes in (("before", before), ("after", after)):
            rows.append(
                Row(name=f"{name}: {check}, sampled, {when}", value=modes[SAMPLED_MODE]["checks"][check], unit="")
            )
    return [*rows, *split_rows(name, after), *cost_rows(name, summary)]


def training_curve(folder: Path) -> list[float]:
    """Success of each step's episodes."""
    return [line["metrics"][SUCCESS] for line in read_metrics(folder / "metrics.jsonl") if SUCCESS in line["metrics"]]


def draw(
    experiment: str, curves: dict[str, list[float]], summaries: dict[str, dict[str, Any]], demonstrated: float
) -> Path:
    """Draw the seeds' curves, and the held-out figures at both ends."""
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, curve in curves.items():
        windows = [curve[max(0, n + 1 - SMOOTHED) : n + 1] for n in range(len(curve))]
        means = [sum(window) / len(window) for window in windows]
        (line,) = axes.plot(range(1, len(curve) + 1), means, label=f"{name}, training")
        held_out = [summaries[name]["evaluations"][when][SAMPLED_MODE]["success"] for when in ("before", "after")]
        axes.plot([0, len(curve)], held_out, "o", color=line.get_color(), markersize=5, label=f"{name}, held out")
    axes.axhline(demonstrated, color="grey", linestyle="--", linewidth=1, label="demonstrator")
    axes.set_title(f"experiment={experiment}: success, sampled at temperature 1", fontsize=10)
    axes.set_xlabel(f"step (training: mean of {SMOOTHED})", fontsize=8)
    axes.set_ylabel("share of episodes", fontsize=8)
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6, ncols=2, loc="lower right")
    path = DOCS / f"curves_{experiment}.png"
    figure.savefig(path, format="png", dpi=100)
    return path


def main() -> None:
    """Read the summaries, write the report and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--imitated", type=Path, required=True, help="run folder that all seeds began with")
    parser.add_argument("--allow-dirty", action="store_true", help="report although the tree has changes")
    args = parser.parse_args()
    summaries = {folder.name: json.loads((folder / "summary.json").read_text()) for folder in args.runs}
    imitated = json.loads((args.imitated / "summary.json").read_text())
    demonstrated = demonstrator_success(imitated)
    rows = [Row(name="demonstrator: success", value=demonstrated, unit="")]
    rows += [
        Row(name=f"imitation: {mode} success", value=imitated["evaluations"]["after"][mode]["success"], unit="")
        for mode in (SAMPLED_MODE, GREEDY_MODE)
    ]
    rows += cost_rows("imitation", imitated)
    for name, summary in summaries.items():
        rows += seed_rows(name, summary, demonstrated)
    curves = {folder.name: training_curve(folder) for folder in args.runs}
    commit = common_commit(summaries, allow_dirty=args.allow_dirty)
    details = {
        "imitation_commit": common_commit({"imitated": imitated}, allow_dirty=args.allow_dirty),
        "curves": curves,
    }
    path = write_report(
        f"experiment_{args.experiment}", rows, allow_dirty=args.allow_dirty, commit=commit, details=details
    )
    print(path, draw(args.experiment, curves, summaries, demonstrated), sep="\n")


if __name__ == "__main__":
    main()
