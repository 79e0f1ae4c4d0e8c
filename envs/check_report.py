"""What `segue check-env` finds: one finding for each check, in a fixed order."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """Whether a check holds; `note` is for what works but may not be meant."""

    passed = "pass"
    note = "note"
    failed = "fail"
    not_reached = "not reached"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One check's outcome."""

    check: str
    verdict: Verdict
    why: str
    remedy: str = ""
    """What to do; given with `note` and `fail` where anything is to be done."""


CHECKS = {
    "builds": "",
    "begins": "reset must take every seed and the options of env.eval_options and env.variants",
    "runs": "answer what cannot be done with an observation; raise nothing that a policy can cause",
    "time": "make the call shorter, or raise env.call_timeout_s",
    "tools": "set tools to specs with different names, at least one",
    "spaces": "return what the spaces declare; declare what is returned, and what gymnasium can draw",
    "rewards": "return one finite number, or named terms within ±1e6",
    "ends": "say terminated where the task is over, truncated where it was cut; each true or false at every step",
    "success": "",
    "info": "keep to a dictionary of numbers, text, lists, dictionaries and small arrays",
    "seeds": "draw from self.np_random alone, which super().reset(seed=seed) seeds; keep nothing for the next episode",
    "bad calls": "leave calls that no tool accepts to the base class, which answers them",
    "restore": "snapshot must hold all that later calls depend on, and restore take all of it up",
    "demonstrator": "expert must play each task to success, drawing from its rng alone, and change nothing when asked",
    "close": "end in close what was started, and let it be called twice",
}
"""Every check, in the order in which they are made, with the remedy where it fails,
or nothing where what is found says it."""


class Report:
    """Collects findings; of each check the worst one counts, and the first among equals."""

    def __init__(self, tell: Callable[[Finding], None] | None = None) -> None:
        """Begins an empty one.

        Args:
            tell: is given each finding that counts, as it is added.
        """
        self._tell = tell
        self._findings: dict[str, Finding] = {}

    def passed(self, check: str, why: str) -> None:
        """The check holds."""
        self._add(Finding(check=check, verdict=Verdict.passed, why=why))

    def note(self, check: str, why: str, remedy: str = "") -> None:
        """It holds, and there is something to know."""
        self._add(Finding(check=check, verdict=Verdict.note, why=why, remedy=remedy))

    def fail(self, check: str, why: str, remedy: str | None = None) -> None:
        """It does not hold; None is the check's own remedy."""
        remedy = CHECKS[check] if remedy is None else remedy
        self._add(Finding(check=check, verdict=Verdict.failed, why=why, remedy=remedy))

    def has_failed(self, *checks: str) -> bool:
        """True where one of these, or any at all, has failed."""
        return any(finding.verdict is Verdict.failed for finding in self if not checks or finding.check in checks)

    def counts(self) -> dict[str, int]:
        """How many checks came to each verdict, by its word."""
        counts = Counter(finding.verdict for finding in self)
        return {verdict.value: counts[verdict] for verdict in Verdict}

    def __iter__(self) -> Iterator[Finding]:
        """Every check's finding, in order; one without has not been reached."""
        for check in CHECKS:
            yield self._findings.get(check) or Finding(check=check, verdict=Verdict.not_reached, why="")

    def _add(self, finding: Finding) -> None:
        order = [Verdict.passed, Verdict.note, Verdict.failed]
        present = self._findings.get(finding.check)
        if present is None or order.index(finding.verdict) > order.index(present.verdict):
            self._findings[finding.check] = finding
            if self._tell is not None:
                self._tell(finding)
