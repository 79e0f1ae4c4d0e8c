"""Runs the test of each case in docs/failures.md, and reports which cases hold.

python benchmarks/case_table.py                  as root or with bubblewrap's rights, for the tests of the sandbox
python benchmarks/case_table.py --no-system      without them
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from report import Row, write_report

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "failures.md"
TIMEOUT_S = 3600
_COLUMNS = 5
_TEST = re.compile(r"`(?P<test>(?P<file>[\w/]+\.py)::(?P<function>test_\w+))(?:\[(?P<part>.*)\])?`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row of the table."""

    section: str
    name: str
    given: str
    outcome: str
    unharmed: str
    test: str
    """`<file below tests/>::<function>`."""
    file: str
    function: str
    part: str | None
    """What the file calls the case, where its test holds several."""


def read_cases() -> list[Case]:
    """The rows of the page's tables, in order.

    Raises:
        ValueError: a row has other columns, or names no test.
    """
    cases, section = [], ""
    for line in TABLE.read_text().splitlines():
        section = line.removeprefix("## ") if line.startswith("## ") else section
        if not line.startswith("| ") or line.startswith(("| case |", "|---")):
            continue
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        found = _TEST.fullmatch(cells[-1])
        if len(cells) != _COLUMNS or found is None:
            raise ValueError(f"a row must have {_COLUMNS} columns, the last a test in backquotes, got {line}")
        name, given, outcome, unharmed, _ = cells
        cases.append(
            Case(
                section=section, name=name, given=given, outcome=outcome, unharmed=unharmed, test=found["test"],
                file=found["file"], function=found["function"], part=found["part"],
            )
        )  # fmt: skip
    return cases


def run_tests(tests: Iterable[str]) -> dict[str, str]:
    """Runs tests by pytest.

    Returns:
        Test to `passed` or to what became of its first case that did not pass; one that did not run is missing.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        paths = [f"tests/{test}" for test in sorted(set(tests))]
        command = [sys.executable, "-P", "-m", "pytest", *paths, f"--junit-xml={report}", "-o", "junit_family=xunit1"]
        subprocess.run(command, cwd=ROOT, timeout=TIMEOUT_S, check=False)
        found: dict[str, str] = {}
        for node in ElementTree.parse(report).iter("testcase"):
            file = node.attrib["file"].removeprefix("tests/")
            test = f"{file}::{node.attrib['name'].partition('[')[0]}"
            fault = next((child.tag for child in node if child.tag in ("failure", "error", "skipped")), "passed")
            if found.get(test, "passed") == "passed":
                found[test] = fault
    return found


def main() -> None:
    """Run the tests and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-system", action="store_true", help="leave out what needs Debian packages")
    parser.add_argument("--allow-dirty", action="store_true", help="report although the tree has changes")
    args = parser.parse_args()
    cases = [case for case in read_cases() if not (args.no_system and case.file.startswith("system/"))]
    found = run_tests(case.test for case in cases)
    outcomes = {case: found.get(case.test, "not run") for case in cases}
    rows = [
        Row(name="cases", value=len(cases), unit="", must="at least 60"),
        Row(
            name="cases that hold", value=sum(outcome == "passed" for outcome in outcomes.values()), unit="", must="all"
        ),
        Row(name="tests", value=len({case.test for case in cases}), unit=""),
    ]
    for section in dict.fromkeys(case.section for case in cases):
        own = [outcome for case, outcome in outcomes.items() if case.section == section]
        rows.append(
            Row(name=f"{section}: cases that hold", value=own.count("passed"), unit=f"of {len(own)}", must="all")
        )
    rows += [
        Row(name=f"{case.section}: {case.name}", value=float(outcome == "passed"), unit=outcome, must="1")
        for case, outcome in outcomes.items()
    ]
    path = write_report("cases", rows, allow_dirty=args.allow_dirty)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
