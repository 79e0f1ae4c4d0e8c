"""What went wrong in a run, short of its end, and what was done about it: said at once, kept in `metrics.jsonl`."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that went wrong."""

    who: str
    """A process (`controller`, `ray`, `rollout-0`, `learner`), `task …`, `reward term …`, `evaluation (…)`, `buffer` of
    a group's file, `checkpoint`, and the like."""
    what: str
    """What happened to it."""
    done: str
    """What the run did about it."""


class FaultLog:
    """Says each fault, and hands it on to be kept: those that come before there is a place to keep them, later."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._keep: Callable[[Fault], None] | None = None
        self._early: list[Fault] = []
        self.count = 0
        """Of this launch."""

    def note(self, fault: Fault) -> None:
        """Something went wrong."""
        self.count += 1
        self._say(f"{fault.who}: {fault.what}; {fault.done}")
        if self._keep is None:
            self._early.append(fault)
        else:
            self._keep(fault)

    def keep_with(self, keep: Callable[[Fault], None]) -> None:
        """From now on there is a place."""
        self._keep = keep
        for fault in self._early:
            keep(fault)
        self._early = []
