"""A run under faults, from its first launch to its end."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from soak_faults import Hands, Planned, Scene
from soak_ledger import Account, Rules, check
from soak_memory import MemoryWatch
from soak_notices import NOTICE_S, Notices, judge, judge_exits
from soak_run import Command
from soak_watch import METRICS, Exit, Sightings, Watcher, read_lines

TICK_S = 0.3
SAMPLE_EVERY_S = 5.0
SAY_EVERY_S = 30.0
PATIENCE_S = 60.0
"""For somebody to come who can have a fault."""
MAX_IDLE_LAUNCHES = 5
"""Launches in a row that wrote no checkpoint; one more, and the run is stuck."""
STUCK_S = 420.0
"""Seconds without a step, beyond which the run is stuck: its longest deadlines, one after another."""
END_S = 120.0
"""For a run that is asked to end."""
LEFT_S = 120.0
"""For its processes to follow it: Ray's agents first try for a minute to tell the dead who has died."""


class StuckError(Exception):
    """The run does not get on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a soak."""

    minutes: float
    planned: list[Planned]
    """Faults whose turn came."""
    not_inflicted: Counter[str]
    """Those of them that nobody was there to have, by kind."""
    num_launches: int
    sightings: Sightings
    account: Account
    notices: Notices
    memory: MemoryWatch
    longest_left_s: float
    """Longest that a process outlived its launch."""
    breaches: list[str]
    """Of all laws but those of memory."""


class Soak:
    """Gives the command, inflicts faults, gives it again whenever it ended, asks it to end, balances the books."""

    def __init__(
        self, folder: Path, overrides: Sequence[str], rules: Rules, faults: Iterator[Planned], *, max_s: float
    ) -> None:
        """Prepares.

        Args:
            folder: takes the run (`run`), its output (`command.log`), what was done to it (`injected.jsonl`) and its
                memory (`memory.jsonl`).
            overrides: of the command, but for the folder.
            rules: what they ask for.
            faults: in order.
            max_s: seconds after which no more are inflicted.
        """
        self._run = folder / "run"
        self._injected = folder / "injected.jsonl"
        self._rules = rules
        self._faults = faults
        self._max_s = max_s
        self._command = Command(["train", *overrides, f"run.dir={self._run}"], folder / "command.log")
        self._hands = Hands(folder)
        self._sightings = Sightings()
        self._watcher = Watcher(self._run, self._sightings)
        self._memory = MemoryWatch(folder / "memory.jsonl")
        self._planned: list[Planned] = []
        self._not_inflicted: Counter[str] = Counter()
        self._breaches: list[str] = []
        self._is_ending = False
        self._longest_left_s = 0.0
        self._num_idle = 0
        self._num_checkpoints_before = 0
        self._started = self._sampled_at = self._said_at = self._advanced_at = time.monotonic()
        self._num_steps = 0

    def run(self) -> Result:
        """From the first launch to the balance."""
        try:
            self._command.launch()
            try:
                self._inflict_all()
                self._settle()
                self._end()
            except StuckError as error:
                self._breach(f"stuck: {error}")
        finally:
            self._hands.undo(everything=True)
            self._command.end_all()
        self._watcher.look()
        notices, account = self._judge(), check(self._run, self._sightings, self._rules)
        exits = judge_exits(self._sightings.exits)
        return Result(
            minutes=(time.monotonic() - self._started) / 60.0,
            planned=self._planned,
            not_inflicted=self._not_inflicted,
            num_launches=len(self._command.launches),
            sightings=self._sightings,
            account=account,
            notices=notices,
            memory=self._memory,
            longest_left_s=self._longest_left_s,
            breaches=[*self._breaches, *exits, *notices.breaches, *account.breaches],
        )

    def _inflict_all(self) -> None:
        self._wait(lambda: self._num_steps > 0, STUCK_S)
        end = self._started + self._max_s
        for planned in self._faults:
            self._wait(lambda: time.monotonic() > end, planned.gap_s)
            if time.monotonic() > end:
                return
            self._planned.append(planned)
            if not self._wait(lambda planned=planned: self._has_inflicted(planned), PATIENCE_S):
                self._hands.give_up()
                self._not_inflicted[planned.kind] += 1
                self._say(f"{planned.kind}: nobody to have it")

    def _has_inflicted(self, planned: Planned) -> bool:
        is_at_work = not self._watcher.has_told_end()
        scene = Scene(processes=self._command.look(), ready=self._watcher.ready(), is_at_work=is_at_work)
        injected = self._hands.inflict(planned, scene)
        if injected is None:
            return False
        self._sightings.injected.append(injected)
        with self._injected.open("a") as file:
            file.write(json.dumps({**asdict(injected), "hold_s": planned.hold_s}) + "\n")
        self._say(f"{injected.kind}: {injected.target}")
        return True

    def _settle(self) -> None:
        """Let the run tell what was done to it, and write a checkpoint undisturbed."""
        self._hands.undo(everything=True)
        self._say("no more faults")
        before = len(self._sightings.checkpoints)
        self._wait(lambda: len(self._sightings.checkpoints) > before and not self._judge().open, NOTICE_S)

    def _end(self) -> None:
        """Ask the run to end, and see who stays behind."""
        self._is_ending = True
        self._say("asked to end")
        self._command.present.process.terminate()
        before = len(self._sightings.exits)
        if not self._wait(lambda: len(self._sightings.exits) > before, END_S):
            raise StuckError(f"asked to end, the run did not within {END_S:.0f} s")
        code = self._sightings.exits[-1].code
        if code != 130:
            self._breach(f"exit: asked to end, the run ended with code {code}")
        # beyond the time that it has, so that whoever stays is seen
        self._wait(lambda: not self._command.left_behind(), LEFT_S + 2.0)

    def _wait(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Look after the run until something holds, or time is up; whether it holds."""
        deadline = time.monotonic() + timeout_s
        while not (has_come := holds()) and time.monotonic() < deadline:
            time.sleep(TICK_S)
            self._tick()
        return has_come

    def _tick(self) -> None:
        self._hands.undo()
        processes = self._command.look()
        self._watcher.look()
        now = time.monotonic()
        if now > self._sampled_at + SAMPLE_EVERY_S:
            self._sampled_at = now
            self._memory.sample(processes)
        num_steps = self._watcher.count_steps()
        if num_steps > self._num_steps:
            self._num_steps, self._advanced_at = num_steps, now
        if now > self._said_at + SAY_EVERY_S:
            self._say(f"{len(self._sightings.injected)} faults, {len(self._command.launches)} launches")
        self._see_left_behind()
        self._see_exit()
        if now > self._advanced_at + STUCK_S and not self._is_ending:
            raise StuckError(f"no step for {STUCK_S:.0f} s")

    def _see_exit(self) -> None:
        launch = self._command.present
        if launch.ended_at is not None or (code := self._command.poll()) is None:
            return
        end = Exit(time=time.time(), code=code, reason=self._command.last_words())
        self._sightings.exits.append(end)
        self._say(f"the command ended with code {code}: {end.reason}")
        if not self._is_ending:
            self._launch_again()

    def _launch_again(self) -> None:
        num_checkpoints = len(self._sightings.checkpoints)
        self._num_idle = 0 if num_checkpoints > self._num_checkpoints_before else self._num_idle + 1
        self._num_checkpoints_before = num_checkpoints
        if self._num_idle > MAX_IDLE_LAUNCHES:
            raise StuckError(f"{self._num_idle} launches in a row wrote no checkpoint")
        self._command.launch()

    def _see_left_behind(self) -> None:
        for since_s, process in self._command.left_behind():
            self._longest_left_s = max(self._longest_left_s, since_s)
            if since_s > LEFT_S:
                with process.oneshot():
                    words = f"{process.name()} ({process.status()}): {' '.join(process.cmdline()).strip()[:80]}"
                self._sightings.left_behind.append(words)
                self._breach(f"left behind: {since_s:.0f} s after its launch's end lives {words}")
                process.kill()

    def _judge(self) -> Notices:
        lines = read_lines(self._run / METRICS)
        return judge(self._sightings.injected, lines, self._sightings.exits, now=time.time())

    def _breach(self, text: str) -> None:
        self._breaches.append(text)
        self._say(f"BREACH {text}")

    def _say(self, text: str) -> None:
        self._said_at = time.monotonic()
        elapsed_s = int(self._said_at - self._started)
        print(f"{elapsed_s // 60:3}:{elapsed_s % 60:02}  step {self._num_steps:5}  {text}", flush=True)
