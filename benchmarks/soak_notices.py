"""Whether a run noticed what was done to it: each fault that it can notice, against what it told."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from soak_faults import Injected
from soak_watch import Exit

NOTICE_S = 180.0
"""Within so many seconds a fault is to be told: the longest deadline of the run, and a machine that others use."""
EXIT_INTERRUPTED, EXIT_USER_ERROR, KILLED, TERMINATED = 130, 2, -9, -15

# why a run may give up with a message: no room on the disk, a Ray that did not come up, loss after loss, or one before
# there is anything to go back to
_FAIR_ERROR = re.compile(
    "File too large|No space left|No usable temporary directory|Ray did not start|times in a row"
    "|in a row were given up|times with its actor|died: |for the learner to start|could not begin|did not come within"
)

Line = dict[str, Any]


def _tells(who: str) -> Callable[[Line], bool]:
    return lambda line: line["kind"] == "fault" and line["fault"]["who"].startswith(who)


def _tells_failed_call(line: Line) -> bool:
    return line["kind"] == "step" and line["metrics"]["env/episodes/failed"] > 0


_RAY, _ROLLOUT, _WORKERS = _tells("ray"), _tells("rollout-"), _tells("env workers")
# kind of fault: what tells it, and what, told meanwhile, has taken away the process that would have
_NOTICES: dict[str, tuple[Callable[[Line], bool], tuple[Callable[[Line], bool], ...]]] = {
    "kill-rollout": (_ROLLOUT, (_RAY,)),
    "freeze-rollout": (_ROLLOUT, (_RAY,)),
    "kill-learner": (_tells("learner"), (_RAY,)),
    "freeze-learner": (_tells("learner"), (_RAY,)),
    "kill-raylet": (_RAY, ()),
    "kill-gcs": (_RAY, ()),
    "kill-env-worker": (_WORKERS, (_RAY, _ROLLOUT)),
    "freeze-env-worker": (_WORKERS, (_RAY, _ROLLOUT)),
    "call-hangs": (_WORKERS, (_RAY, _ROLLOUT)),
    "call-fails": (_tells_failed_call, (_RAY, _ROLLOUT)),
}


@dataclass(slots=True, kw_only=True)
class Notices:
    """What became of the faults that are to be noticed."""

    noticed: Counter[str] = field(default_factory=Counter)
    """By kind."""
    overtaken: Counter[str] = field(default_factory=Counter)
    """Likewise: before the run could tell, something else ended the process that would have."""
    open: list[Injected] = field(default_factory=list)
    """Not told yet, and still in time."""
    breaches: list[str] = field(default_factory=list)


def judge(injected: Sequence[Injected], lines: Sequence[Line], exits: Sequence[Exit], *, now: float) -> Notices:
    """Hold faults against what was told.

    Args:
        injected: what was done.
        lines: of `metrics.jsonl`.
        exits: of the command.
        now: `time.time()` of the reading.
    """
    notices = Notices()
    for fault in injected:
        until = fault.time + NOTICE_S
        told = [line for line in lines if fault.time <= line["time"] <= until]
        ended = [end.code for end in exits if fault.time <= end.time <= until]
        verdict = _verdict(fault, told, ended)
        if verdict is _UNTOLD and now < until:
            notices.open.append(fault)
        elif verdict is _UNTOLD:
            notices.breaches.append(f"unnoticed: {fault.kind} of {fault.target}, within {NOTICE_S:.0f} s")
        elif verdict is not None:
            (notices.noticed if verdict else notices.overtaken)[fault.kind] += 1
    return notices


_UNTOLD = object()


def _verdict(fault: Injected, told: Sequence[Line], ended: Sequence[int]) -> Any:
    """True: noticed; False: overtaken; None: there is nothing to notice; else `_UNTOLD`."""
    if fault.kind == "end-driver":
        return _UNTOLD if not ended else ended[0] in (EXIT_INTERRUPTED, TERMINATED)
    if fault.kind == "kill-driver":
        # the next launch tells it, unless this one had not begun, or had told its end already
        return (True if any(map(_tells("controller"), told)) else _UNTOLD) if fault.is_at_work else None
    if fault.kind not in _NOTICES:
        return None
    tells, overtakers = _NOTICES[fault.kind]
    if any(map(tells, told)):
        return True
    is_overtaken = bool(ended) or any(overtaker(line) for overtaker in overtakers for line in told)
    return False if is_overtaken else _UNTOLD


def judge_exits(exits: Sequence[Exit]) -> list[str]:
    """Breaches: ends of the command that are no answer to what was done to it."""
    return [f"exit: the command ended with code {end.code}: {end.reason}" for end in exits if not _is_fair(end)]


def _is_fair(end: Exit) -> bool:
    if end.code == EXIT_USER_ERROR:
        return _FAIR_ERROR.search(end.reason) is not None
    return end.code in (EXIT_INTERRUPTED, KILLED, TERMINATED)
