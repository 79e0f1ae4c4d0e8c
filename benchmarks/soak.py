"""Chaos for a training run: faults on a seeded schedule while it trains, and its books balanced at the end.

    python benchmarks/soak.py                                  # 30 minutes
    python benchmarks/soak.py --faults 6 --gap 3               # a minute or two
    python benchmarks/soak.py --only kill-learner,call-hangs   # some kinds alone

A small run (sql, bound 1, two rollout actors, two learner ranks) is begun by the command that a user gives, and given
again whenever it ends. Meanwhile its processes are killed, stopped and denied room on the disk, calls of its
environment hang, dawdle and fail, and files of finished groups are damaged. Then it is asked to end.

Laws (soak_ledger.py, soak_notices.py): nothing lost, nothing trained twice, no gap between steps, nothing too old and
nothing damaged trained; every fault that the run can notice told, with what was done; no process left behind, no exit
code but those of the manual, never stuck; memory flat. A breach is named, and the exit code is 1.
"""

import argparse
import sys
import time
from collections import Counter
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from report import Row, refuse_changes, write_report
from soak_faults import KINDS, schedule
from soak_ledger import Fate, Rules
from soak_memory import MemoryWatch
from soak_play import Result, Soak
from soak_run import Role

RULES = Rules(groups_per_step=2, max_uses=1, max_staleness=1)
DAWDLE_S = 3.0
OVERRIDES = (
    "env.id=soak_env:SoakSql-v0",
    f"env.import_folder={Path(__file__).parent.resolve()}",
    # random weights call no tools
    "run.init_from=warm_start",
    "run.console=false",
    # a weak policy earns the same in a whole group; its tokens train all the same
    "learner.advantage.zero_variance=keep",
    "train.steps=1000000",
    f"train.groups_per_step={RULES.groups_per_step}",
    "train.group_size=2",
    f"train.max_uses={RULES.max_uses}",
    f"train.max_staleness={RULES.max_staleness}",
    "train.checkpoint_every=3",
    "train.keep_checkpoints=3",
    "train.eval_every=0",
    "eval.episodes=2",
    "rollout.max_sessions=8",
    "rollout.max_turn_tokens=64",
    # a part at every turn
    "rollout.journal_tokens=1",
    "cluster.dashboard=false",
    "cluster.rollout_actors=2",
    "cluster.learner_ranks=2",
    # a hang is to be noticed while the soak lasts
    "env.call_timeout_s=6",
    "learner.step_timeout_s=45",
    "cluster.answer_timeout_s=30",
    "cluster.start_timeout_s=90",
    "train.wait_timeout_s=150",
)
JUDGED_MINUTES = 5.0
"""Minutes that a role's processes were observed, added up, below which a slope is noise."""
FLAT_MB_PER_H = 100.0
"""The steepest that passes for flat."""
ROLES = (Role.driver, Role.rollout, Role.learner)


def main() -> None:
    """Soak, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="during which faults are inflicted (30)")
    parser.add_argument("--faults", type=int, help="end after so many faults")
    parser.add_argument("--seed", type=int, default=0, help="of kinds, gaps and targets (0)")
    parser.add_argument("--gap", type=float, default=15.0, help="mean seconds between two faults (15)")
    parser.add_argument("--only", default=",".join(KINDS), help=f"kinds, of {', '.join(KINDS)}")
    parser.add_argument("--folder", type=Path, help="a new folder for the run and what was done to it (under runs/)")
    parser.add_argument("--no-report", action="store_true", help="print the rows and write nothing")
    parser.add_argument("--allow-dirty", action="store_true", help="report although the tree has changes")
    args = parser.parse_args()
    kinds = args.only.split(",")
    if unknown := sorted(set(kinds) - KINDS.keys()):
        parser.error(f"--only must name kinds of faults, got {', '.join(unknown)}")
    if not args.no_report and not args.allow_dirty:
        # before the half hour, not after it
        refuse_changes()
    folder = (args.folder or Path("runs") / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_soak").resolve()
    folder.mkdir(parents=True)
    print(f"folder: {folder}", flush=True)
    overrides = (*OVERRIDES, f"env.kwargs={{trouble: {folder}, dawdle_s: {DAWDLE_S}}}")
    max_s = args.minutes * 60.0
    faults = islice(schedule(args.seed, kinds, args.gap, gentle_after_s=max_s / 3.0), args.faults)
    result = Soak(folder, overrides, RULES, faults, max_s=max_s).run()
    rows = rows_of(result)
    breaches = [*result.breaches, *memory_breaches(result.memory)]
    if args.no_report:
        for row in rows:
            print(f"{row.name:48} {row.value:12,.4g} {row.unit}")
    else:
        details = {"schedule": [asdict(planned) for planned in result.planned], "breaches": breaches}
        print(write_report("soak", rows, allow_dirty=args.allow_dirty, details=details))
    for breach in breaches:
        print(f"BREACH {breach}")
    sys.exit(1 if breaches else 0)


def rows_of(result: Result) -> list[Row]:
    """The figures."""
    account, notices = result.account, result.notices
    inflicted = Counter(fault.kind for fault in result.sightings.injected)
    rows = [
        Row(name="time", value=result.minutes, unit="min"),
        Row(name="steps on the line", value=account.num_steps, unit=""),
        Row(name="launches", value=result.num_launches, unit=""),
        Row(name="restores", value=account.num_restores, unit=""),
        Row(name="faults inflicted", value=inflicted.total(), unit=""),
        *(Row(name=f"  {kind}", value=inflicted[kind], unit="") for kind in KINDS if inflicted[kind]),
        Row(name="faults that nobody was there to have", value=result.not_inflicted.total(), unit=""),
        Row(name="faults that the run can notice, noticed", value=notices.noticed.total(), unit=""),
        Row(name="  overtaken by another fault", value=notices.overtaken.total(), unit=""),
        Row(name="  unnoticed", value=len(notices.breaches), unit="", must="0"),
        Row(name="faults told by the run", value=account.num_faults, unit=""),
        Row(name="groups made", value=account.fates.total(), unit=""),
        *(
            Row(name=f"  {fate.value}", value=account.fates[fate], unit="", must="0" if fate is Fate.lost else None)
            for fate in Fate
        ),
        *(
            Row(name=f"  in the ledger dropped as {why}", value=n, unit="")
            for why, n in sorted(account.dropped.items())
        ),
        Row(name="tokens masked as too old", value=account.num_stale_tokens, unit=""),
        *(
            Row(name=f"ended with code {code}", value=count, unit="")
            for code, count in sorted(Counter(end.code for end in result.sightings.exits).items())
        ),
        Row(name="processes left behind", value=len(result.sightings.left_behind), unit="", must="0"),
        Row(name="  longest that one outlived its launch", value=result.longest_left_s, unit="s"),
        Row(name="memory of all processes, peak", value=result.memory.peak_bytes / 1e6, unit="MB"),
    ]
    for role in ROLES:
        growth = result.memory.growth(role)
        if growth is not None:
            must = f"at most {FLAT_MB_PER_H:.0f}, over {JUDGED_MINUTES:.0f} min and more"
            rows.append(Row(name=f"memory of a {role.value}, growth", value=growth.slope, unit="MB/h", must=must))
            rows.append(Row(name=f"  seen over, {growth.num_processes} processes", value=growth.minutes, unit="min"))
    rows.append(Row(name="laws broken", value=len(result.breaches), unit="", must="0"))
    return rows


def memory_breaches(memory: MemoryWatch) -> list[str]:
    """Roles whose processes grow."""
    grown = {role: growth for role in ROLES if (growth := memory.growth(role)) is not None}
    return [
        f"memory: a {role.value} grows by {growth.slope:.0f} MB an hour"
        for role, growth in grown.items()
        if growth.minutes >= JUDGED_MINUTES and growth.slope > FLAT_MB_PER_H
    ]


if __name__ == "__main__":
    main()
