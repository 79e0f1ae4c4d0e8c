"""The command of a benchmark that puts questions to a toy: settings are compared in runs of several seeds."""

import argparse
import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import torch
from report import Row, refuse_changes, write_report

T = TypeVar("T")


def put_questions(
    topic: str,
    description: str | None,
    questions: Mapping[str, Mapping[str, T]],
    measure: Callable[[str, T, int, int], list[Row]],
    *,
    length: tuple[str, int, str],
    before: Callable[[Collection[str]], list[Row]] = lambda chosen: [],
) -> None:
    """Learn, print, and write the report, which is named for its questions where some are not put.

    Args:
        topic: of the report.
        description: for the command's help.
        questions: names of settings, and what they are.
        measure: rows of a run, by its label, setting, seed and length.
        length: of a run: option, default and help.
        before: rows of what comes before all runs, by the questions that are put.
    """
    option, default, words = length
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(option, dest="length", metavar="N", type=int, default=default, help=f"{words} ({default})")
    parser.add_argument("--seeds", type=int, default=3, help="of each setting (3)")
    parser.add_argument("--only", nargs="+", choices=list(questions), default=list(questions))
    parser.add_argument("--no-report", action="store_true", help="print the rows and write nothing")
    args = parser.parse_args()
    if not args.no_report:
        refuse_changes()
    torch.set_num_threads(1)
    rows = before(args.only)
    for question in args.only:
        for seed in range(args.seeds):
            for name, setting in questions[question].items():
                label, begun = f"{question}: {name}, seed {seed}", time.process_time()
                rows += measure(label, setting, seed, args.length)
                print(f"{label}: {time.process_time() - begun:.0f} CPU s", flush=True)
    if args.no_report:
        for row in rows:
            print(f"{row.name:64} {row.value:8.3f}")
    else:
        print(write_report(topic if args.only == list(questions) else "_".join([topic, *args.only]), rows))
