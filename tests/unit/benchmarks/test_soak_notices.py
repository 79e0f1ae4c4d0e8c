"""Which faults a soak holds for noticed, overtaken, still open, or missed; and which ends of the command it accepts."""

from typing import Any

import pytest
from soak_faults import KINDS, Injected
from soak_notices import NOTICE_S, Notices, judge, judge_exits
from soak_watch import Exit

INFLICTED_AT = 100.0


def fault_line(who: str, time: float) -> dict[str, Any]:
    return {"kind": "fault", "time": time, "fault": {"who": who, "what": "", "done": ""}}


def step_line(num_failed: int, time: float) -> dict[str, Any]:
    return {"kind": "step", "time": time, "metrics": {"env/episodes/failed": num_failed}}


def judge_one(
    kind: str, *lines: dict[str, Any], exits: tuple[Exit, ...] = (), now: float = 1e9, is_at_work: bool = True
) -> Notices:
    fault = Injected(time=INFLICTED_AT, kind=kind, target="somebody", is_at_work=is_at_work)
    return judge([fault], lines, exits, now=now)


@pytest.mark.parametrize(
    ("kind", "who"),
    [
        ("kill-rollout", "rollout-1"),
        ("freeze-rollout", "rollout-0"),
        ("kill-learner", "learner"),
        ("freeze-learner", "learner"),
        ("kill-raylet", "ray"),
        ("kill-gcs", "ray"),
        ("kill-driver", "controller"),
        ("kill-env-worker", "env workers"),
        ("freeze-env-worker", "env workers"),
        ("call-hangs", "env workers"),
    ],
)
def test_a_fault_is_told_by_its_own_line_in_time_and_by_no_other(kind: str, who: str) -> None:
    assert judge_one(kind, fault_line(who, INFLICTED_AT + 1)).noticed == {kind: 1}
    missed = [f"unnoticed: {kind} of somebody, within {NOTICE_S:.0f} s"]
    assert judge_one(kind).breaches == missed
    assert judge_one(kind, fault_line("buffer", INFLICTED_AT + 1)).breaches == missed
    assert judge_one(kind, fault_line(who, INFLICTED_AT - 1)).breaches == missed
    assert judge_one(kind, fault_line(who, INFLICTED_AT + NOTICE_S + 1)).breaches == missed


def test_a_call_that_fails_is_counted_in_a_step() -> None:
    assert judge_one("call-fails", step_line(1, INFLICTED_AT + 1)).noticed == {"call-fails": 1}
    assert judge_one("call-fails", step_line(0, INFLICTED_AT + 1)).breaches


def test_there_is_time_to_notice() -> None:
    notices = judge_one("kill-learner", now=INFLICTED_AT + NOTICE_S - 1)
    assert [fault.kind for fault in notices.open] == ["kill-learner"] and not notices.breaches


def test_what_ended_the_one_who_would_have_told_overtakes() -> None:
    end = Exit(time=INFLICTED_AT + 1, code=2)
    for kind in ("kill-rollout", "kill-learner", "kill-env-worker", "kill-raylet"):
        assert judge_one(kind, exits=(end,)).overtaken == {kind: 1}
    assert judge_one("kill-rollout", fault_line("ray", INFLICTED_AT + 1)).overtaken == {"kill-rollout": 1}
    # the actor whose worker died was lost, and its counters with it
    assert judge_one("call-hangs", fault_line("rollout-0", INFLICTED_AT + 1)).overtaken == {"call-hangs": 1}
    assert judge_one("kill-learner", fault_line("rollout-0", INFLICTED_AT + 1)).breaches
    # an earlier end is none
    assert judge_one("kill-rollout", exits=(Exit(time=INFLICTED_AT - 1, code=2),)).breaches


def test_an_end_does_not_excuse_the_next_launch_from_telling_that_the_driver_was_killed() -> None:
    end = Exit(time=INFLICTED_AT, code=-9)
    assert judge_one("kill-driver", exits=(end,)).breaches
    # of a launch that had not begun nobody knows
    notices = judge_one("kill-driver", exits=(end,), is_at_work=False)
    assert not notices.breaches and not notices.noticed


def test_a_run_that_is_asked_to_end_does_so() -> None:
    assert judge_one("end-driver", exits=(Exit(time=INFLICTED_AT + 5, code=130),)).noticed == {"end-driver": 1}
    # before it listens, the signal does what it does to any process
    assert judge_one("end-driver", exits=(Exit(time=INFLICTED_AT + 5, code=-15),)).noticed == {"end-driver": 1}
    assert judge_one("end-driver", exits=(Exit(time=INFLICTED_AT + 5, code=2),)).overtaken == {"end-driver": 1}
    assert judge_one("end-driver").breaches


def test_what_need_not_be_noticed_is_not_judged() -> None:
    for kind in ("pause-rollout", "pause-driver", "call-dawdles", "no-room-rollout", "flip-group", "delete-group"):
        assert kind in KINDS
        assert judge_one(kind) == Notices()


def test_a_traceback_or_a_crash_is_no_way_to_end() -> None:
    codes = (0, 130, -9, -15, 1, -6, -11)
    assert [breach.split(":")[1] for breach in judge_exits([Exit(time=0, code=code) for code in codes])] == [
        " the command ended with code 0",
        " the command ended with code 1",
        " the command ended with code -6",
        " the command ended with code -11",
    ]


@pytest.mark.parametrize(
    ("reason", "is_fair"),
    [
        ("segue: run must be on a disk with room, and writable, got [Errno 27] File too large", True),
        ("segue: the learner was lost 4 times in a row, with no step in between; last: learner-0 died: …", True),
        ("segue: 4 in a row were given up, with nothing finished in between; task … gave no answer for 9 s", True),
        ("segue: eval-greedy (share 1 of 2) was lost 4 times with its actor, …; last: rollout-0 gave no answer", True),
        ("segue: Ray did not start: RuntimeError: Timed out", True),
        # a rank that hangs is to be replaced
        ("segue: learner-1 failed: RuntimeError: Timed out waiting 45000ms for send operation to complete", False),
        ("segue: the controller waited 150 s for groups for step 7 (0 are ready), without an answer", False),
        ("nothing", False),
    ],
)
def test_a_run_gives_up_only_for_a_reason_that_it_cannot_mend(reason: str, is_fair: bool) -> None:
    end = Exit(time=0, code=2, reason=reason)
    assert judge_exits([end]) == ([] if is_fair else [f"exit: the command ended with code 2: {reason}"])
