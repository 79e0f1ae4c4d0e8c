"""`docs/failures.md` names a test for each case, which is there. That each passes: `benchmarks/case_table.py`."""

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
from case_table import Case, read_cases  # noqa: E402

MIN_CASES = 60
CASES = read_cases()


def test_the_table_is_long_and_no_cell_is_empty() -> None:
    assert len(CASES) >= MIN_CASES
    for case in CASES:
        assert all((case.name, case.given, case.outcome, case.unharmed, case.test)), case


def test_no_case_is_told_twice_and_no_test_stands_for_two_claims() -> None:
    names = Counter((case.section, case.name) for case in CASES)
    assert [name for name, count in names.items() if count > 1] == []
    tests = Counter((case.test, case.part) for case in CASES)
    assert [test for test, count in tests.items() if count > 1] == []
    # one that stands for several says each time which of its cases is meant
    several = {test for test, count in Counter(case.test for case in CASES).items() if count > 1}
    assert [case for case in CASES if case.test in several and case.part is None] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_cases_test_is_there(case: Case) -> None:
    source = (ROOT / "tests" / case.file).read_text()
    functions = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    assert case.function in functions, case
    assert case.part is None or case.part in source, case


def test_the_page_is_linked() -> None:
    for path in ("README.md", "docs/operations.md"):
        assert "failures.md" in (ROOT / path).read_text(), path
