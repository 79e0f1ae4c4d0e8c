"""Findings of a check, and the bad calls that it makes."""

from segue.envs.check_bad_call import bad_calls
from segue.envs.check_report import CHECKS, Finding, Report, Verdict
from segue.envs.tool import ToolCall, ToolSpec, find_problem, object_schema


def test_the_worst_finding_of_a_check_counts_and_the_first_among_equals() -> None:
    told: list[Finding] = []
    report = Report(told.append)
    report.note("spaces", "cut", "raise it")
    report.passed("spaces", "all well")
    report.passed("time", "fast")
    report.fail("runs", "first")
    report.fail("runs", "second")
    # each that counts as it is added
    assert [(finding.check, finding.verdict) for finding in told] == [
        ("spaces", Verdict.note),
        ("time", Verdict.passed),
        ("runs", Verdict.failed),
    ]
    findings = {finding.check: finding for finding in report}
    assert list(findings) == list(CHECKS)
    assert (findings["spaces"].verdict, findings["spaces"].why, findings["spaces"].remedy) == (
        Verdict.note,
        "cut",
        "raise it",
    )
    assert (findings["runs"].why, findings["runs"].remedy) == ("first", CHECKS["runs"])
    assert findings["close"].verdict is Verdict.not_reached
    assert report.counts() == {"pass": 1, "note": 1, "fail": 1, "not reached": len(CHECKS) - 3}
    assert (report.has_failed(), report.has_failed("time"), report.has_failed("time", "runs")) == (True, False, True)


def test_bad_calls_have_one_fault_each_and_none_can_be_run() -> None:
    properties = {
        "n": {"type": "integer", "minimum": 0, "maximum": 3},
        "w": {"type": "string"},
        "l": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
    }
    tools = (ToolSpec(name="t", description="", parameters=object_schema(properties, optional=["w"])),)
    calls = list(bad_calls(tools))
    problems = [find_problem(tools, call) for call in calls]
    assert None not in problems
    assert calls[:2] == [ToolCall(name="no_such_tool"), ToolCall(name="")]
    # arguments that stand in the calls as they may be
    assert [problem.partition(", got")[0] for problem in problems if problem][2:] == [
        't takes no "no_such_argument"; it takes: n, w, l',
        "t needs n",
        "t.n must be of type integer",
        "t.n must be of type integer",
        "t.n must be at most 3",
        "t.n must be at least 0",
        "t.n must be of type integer",
        "t.w must be of type string",
        "t.w must be of type string",
        "t needs l",
        "t.l must be of type array",
        "t.l must be of type array",
        "t.l must have at most 2 items",
    ]
