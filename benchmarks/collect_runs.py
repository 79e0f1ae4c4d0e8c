"""A report from finished runs of the default recipe, beside more imitation at the same cost.

segue train seed=0 run.dir=runs/seed0            (likewise 1 and 2)
segue pretrain run.init_from=warm_start pretrain.steps=<as many as the same CPU-seconds take> run.dir=runs/imitation
python benchmarks/collect_runs.py runs/seed0 runs/seed1 runs/seed2 --imitation runs/imitation
"""

import argparse
import json
from pathlib import Path
from typing import Any

from report import Row, write_report

from segue.conf.rules import GREEDY_MODE, SAMPLED_MODE

MINUTES, GIGABYTES = 60.0, 1e9


def rows_of(name: str, summary: dict[str, Any]) -> list[Row]:
    """What one run was asked for."""
    before, after = summary["evaluations"]["before"], summary["evaluations"]["after"]
    gain = after[GREEDY_MODE]["success"] - before[GREEDY_MODE]["success"]
    rows = [
        Row(name=f"{name}: sampled success before", value=before[SAMPLED_MODE]["success"], unit="", must="at most 0.6"),
        Row(name=f"{name}: sampled success after", value=after[SAMPLED_MODE]["success"], unit="", must="at least 0.9"),
        Row(name=f"{name}: greedy success before", value=before[GREEDY_MODE]["success"], unit=""),
        Row(name=f"{name}: greedy success after", value=after[GREEDY_MODE]["success"], unit=""),
        Row(name=f"{name}: greedy gain", value=gain, unit="", must="at least 0.15"),
        Row(name=f"{name}: wall", value=summary["wall_s"] / MINUTES, unit="minutes", must="under 12"),
        Row(name=f"{name}: CPU", value=summary["cpu_s"], unit="CPU-s"),
        Row(name=f"{name}: peak memory", value=summary["peak_memory_bytes"] / GIGABYTES, unit="GB", must="under 6"),
    ]
    for when, modes in (("before", before), ("after", after)):
        right_rows = modes[SAMPLED_MODE]["checks"]["query_correct"]
        rows.append(Row(name=f"{name}: right rows returned, sampled, {when}", value=right_rows, unit=""))
    return [*rows, *split_rows(name, after)]


def split_rows(name: str, after: dict[str, Any]) -> list[Row]:
    """Sampled success after a run on each variant of the tasks, and on each class of them."""
    variants = [(mode, after[mode]) for mode in sorted(set(after) - {SAMPLED_MODE, GREEDY_MODE})]
    return [
        Row(name=f"{name}: sampled success after, {part}", value=result["success"], unit="")
        for part, result in [*variants, *sorted(after[SAMPLED_MODE]["success_by_class"].items())]
    ]


def common_commit(summaries: dict[str, dict[str, Any]], *, allow_dirty: bool) -> str:
    """The commit that all launches of all runs were made from.

    Raises:
        SystemExit: there are several, or none is known, or a tree had changes.
    """
    sources = [launch["source"] for summary in summaries.values() for launch in summary["launches"]]
    commits = {source["commit"] for source in sources}
    if len(commits) != 1 or None in commits:
        raise SystemExit(f"the runs must be of one known commit, got {', '.join(sorted(map(str, commits)))}")
    if not allow_dirty and any(source["is_dirty"] for source in sources):
        raise SystemExit(f"the runs' trees must have been clean, got changes beside {commits.pop()}")
    return str(commits.pop())


def main() -> None:
    """Read the summaries and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--imitation", type=Path)
    parser.add_argument("--allow-dirty", action="store_true", help="report although the tree has changes")
    args = parser.parse_args()
    summaries = {folder.name: json.loads((folder / "summary.json").read_text()) for folder in args.runs}
    rows = [row for name, summary in summaries.items() for row in rows_of(name, summary)]
    if args.imitation is not None:
        imitation = json.loads((args.imitation / "summary.json").read_text())
        for mode in (SAMPLED_MODE, GREEDY_MODE):
            worst = min(summary["evaluations"]["after"][mode]["success"] for summary in summaries.values())
            rows.append(
                Row(
                    name=f"worst seed's {mode} success after",
                    value=worst,
                    unit="",
                    peer=f"more imitation, {imitation['cpu_s']:.0f} CPU-s",
                    peer_value=imitation["evaluations"]["after"][mode]["success"],
                    must="ahead",
                )
            )
        summaries[args.imitation.name] = imitation
    commit = common_commit(summaries, allow_dirty=args.allow_dirty)
    print(write_report("default_run", rows, allow_dirty=args.allow_dirty, commit=commit))


if __name__ == "__main__":
    main()
