"""Double entry over a run: what was made against what became of it, from its folder and what was seen of it.

Laws; `check` names each breach:

    nothing lost     every group that was seen trained, waits, was dropped for a reason, or gave way to another group of
                     its task; every task that was drawn has such a group, or is still to be played
    nothing twice    a group trains at most `max_uses` times, and of a task only one group
    no gaps          steps follow each other, and each trained a whole batch
    nothing old      the learner masked what is too old by the ledger; nothing older trained
    nothing damaged  no group that trained, or is to, has the digest of a damaged file; none is called damaged that
                     nobody damaged
    all told         the summary has every fault and restore of `metrics.jsonl`, with what was done, and counts the
                     drops that the ledger has
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from soak_watch import GROUPS, LAUNCHES, METRICS, SUFFIX, SUMMARY, Checkpoint, Sightings, read_json, read_lines

# reasons of drops that leave an entry in the ledger
_KEPT_REASONS = ("stale", "lost_version", "empty", "given_up")
_DAMAGED = re.compile(r"group file (\S+) is damaged")


class Fate(Enum):
    """What became of a group."""

    trained = "trained"
    waiting = "waiting in the buffer"
    dropped = "dropped"
    damaged = "damaged"
    superseded = "superseded"
    """Another group of its task has taken its place."""
    lost = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the run was asked for."""

    groups_per_step: int
    max_uses: int
    max_staleness: int


@dataclass(slots=True, kw_only=True)
class Account:
    """What the books say."""

    fates: Counter[Fate]
    """Groups by what became of them."""
    dropped: Counter[str]
    """Dropped groups by reason."""
    num_steps: int
    num_restores: int
    num_faults: int
    """That the run told of."""
    num_stale_tokens: int
    """Tokens of trained groups that were masked as too old."""
    breaches: list[str]


@dataclass(slots=True)
class _Line:
    """What stands on the line of the run: what no restore has undone."""

    steps: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Step to its line in `metrics.jsonl`."""
    commits: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Step to the groups that trained in it, as far as checkpoints tell."""
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Group to its entry in the latest ledger that has one."""
    gaps: list[str] = field(default_factory=list)

    def restore(self, step: int) -> None:
        """What came after the step is undone."""
        self.steps = {s: line for s, line in self.steps.items() if s <= step}
        self.commits = defaultdict(set, {s: groups for s, groups in self.commits.items() if s <= step})
        for entry in self.entries.values():
            entry["uses"] = [use for use in entry["uses"] if use <= step]
            if entry["dropped"] is not None and entry["dropped_at"] > step:
                entry["dropped"] = None

    def add_step(self, line: dict[str, Any]) -> None:
        """A step was recorded."""
        expected = max(self.steps, default=0) + 1
        if line["step"] != expected:
            self.gaps.append(f"step {line['step']} is recorded where step {expected} should follow")
        self.steps[line["step"]] = line

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        """A ledger was written."""
        for entry in checkpoint.entries:
            group_id = entry["record"]["group_id"]
            self.entries[group_id] = {**entry}
            for step in entry["uses"]:
                self.commits[step].add(group_id)


class _Books:
    """Everything that is known of a run, looked up by group and task."""

    def __init__(self, folder: Path, sightings: Sightings, rules: Rules) -> None:
        self.rules = rules
        self.lines = read_lines(folder / METRICS)
        self.faults = [line["fault"] for line in self.lines if line["kind"] == "fault"]
        self.restores = [line for line in self.lines if line["kind"] == "restore"]
        self.summary = read_json(folder / SUMMARY, dict)
        self.restored_steps = [s for launch in read_json(folder / LAUNCHES, list) for s in launch["restored_steps"]]
        self.line = _replay(self.lines, sightings.checkpoints)
        last = max(sightings.checkpoints, key=lambda checkpoint: checkpoint.time, default=None)
        self.final = {} if last is None else {entry["record"]["group_id"]: entry for entry in last.entries}
        self.tasks = {"cursor": 0, "unfinished": []} if last is None else last.state["tasks"]
        self.final_step = 0 if last is None else last.step
        self.files = {path.stem: path for path in (folder / GROUPS).glob(f"[!.]*{SUFFIX}")}
        self.damaged_by_us = {fault.poisoned: fault.digest for fault in sightings.injected if fault.poisoned}
        self.called_damaged = {
            Path(match.group(1)).stem
            for fault in self.faults
            if fault["who"] == "buffer" and (match := _DAMAGED.search(fault["what"]))
        }
        self.trained = set().union(*self.line.commits.values())
        self.groups = sorted({*sightings.groups, *self.line.entries, *self.files})
        self.fates = {group_id: self._fate(group_id) for group_id in self.groups}
        for group_id in self._with(Fate.lost):
            if any(self.has_place(other) for other in self.groups if task_of(other) == task_of(group_id)):
                self.fates[group_id] = Fate.superseded

    def has_place(self, group_id: str) -> bool:
        """Whether a group stands for its task."""
        return self.fates[group_id] in (Fate.trained, Fate.waiting, Fate.dropped)

    def reason(self, group_id: str) -> str | None:
        """Why the ledger dropped a group; None where it did not."""
        entry = self.line.entries.get(group_id)
        return None if entry is None else entry["dropped"]

    def _with(self, fate: Fate) -> list[str]:
        return [group_id for group_id, found in self.fates.items() if found is fate]

    def _fate(self, group_id: str) -> Fate:
        if group_id in self.trained:
            return Fate.trained
        reason = self.reason(group_id)
        if reason is not None:
            return Fate.damaged if reason == "damaged" else Fate.dropped
        if group_id in self.final and (self._is_whole(group_id) or group_id in self.damaged_by_us):
            return Fate.waiting
        if group_id in self.called_damaged or group_id in self.damaged_by_us:
            return Fate.damaged
        is_found_later = group_id in self.files and self._is_open(number_of(group_id))
        return Fate.waiting if is_found_later else Fate.lost

    def _is_whole(self, group_id: str) -> bool:
        path = self.files.get(group_id)
        if path is None:
            return False
        return hashlib.sha256(path.read_bytes()).hexdigest() == self.final[group_id]["record"]["digest"]

    def _is_open(self, number: int) -> bool:
        return number >= self.tasks["cursor"] or number in self.tasks["unfinished"]


def check(folder: Path, sightings: Sightings, rules: Rules) -> Account:
    """Balance the books of a run that has ended.

    Args:
        folder: of the run.
        sightings: what was seen of it.
        rules: what it was asked for.
    """
    books = _Books(folder, sightings, rules)
    laws = (_lost_groups, _lost_tasks, _twice, _gaps, _old, _damaged, _untold)
    return Account(
        fates=Counter(books.fates.values()),
        dropped=Counter(reason for group_id in books.groups if (reason := books.reason(group_id)) is not None),
        num_steps=max(books.line.steps, default=0),
        num_restores=len(books.restored_steps) - 1,
        num_faults=len(books.faults),
        num_stale_tokens=sum(int(line["metrics"]["learner/tokens/stale"]) for line in books.line.steps.values()),
        breaches=[breach for law in laws for breach in law(books)],
    )


def task_of(group_id: str) -> str:
    """Id of a group's task."""
    return group_id.rpartition(".")[0]


def number_of(group_id: str) -> int:
    """Number of a group's task in the stream."""
    return int(task_of(group_id).rpartition("-")[2])


def _replay(lines: Iterable[dict[str, Any]], checkpoints: Iterable[Checkpoint]) -> _Line:
    """What the events of a run leave standing, in the order in which they came."""
    line = _Line()
    events: list[tuple[float, dict[str, Any] | Checkpoint]] = [(event["time"], event) for event in lines]
    events += [(checkpoint.time, checkpoint) for checkpoint in checkpoints]
    for _, event in sorted(events, key=lambda pair: pair[0]):
        if isinstance(event, Checkpoint):
            line.add_checkpoint(event)
        elif event["kind"] == "restore":
            line.restore(event["step"])
        elif event["kind"] == "step":
            line.add_step(event)
    return line


def _lost_groups(books: _Books) -> Iterator[str]:
    for group_id, fate in books.fates.items():
        if fate is Fate.lost:
            yield f"lost: group {group_id} was finished, and neither trained nor waits nor was dropped"


def _lost_tasks(books: _Books) -> Iterator[str]:
    # what was sampled by undone steps alone is drawn again
    held = {number_of(g) for g in books.groups if books.has_place(g) and books.reason(g) != "lost_version"}
    for number in range(books.tasks["cursor"]):
        if number not in held and number not in books.tasks["unfinished"]:
            yield f"lost: task {number} was drawn, has no group, and is not to be played again"


def _twice(books: _Books) -> Iterator[str]:
    uses = Counter(group_id for groups in books.line.commits.values() for group_id in groups)
    for group_id, count in uses.items():
        if count > books.rules.max_uses:
            yield f"twice: group {group_id} trained {count} times"
    for task, count in Counter(map(task_of, uses)).items():
        if count > 1:
            yield f"twice: {count} groups of task {task} trained"


def _gaps(books: _Books) -> Iterator[str]:
    yield from (f"gap: {gap}" for gap in books.line.gaps)
    last = max(books.line.steps, default=0)
    for name, step in (("the newest checkpoint", books.final_step), ("summary.json", books.summary.get("steps"))):
        if step != last:
            yield f"gap: {name} is of step {step}, the last one recorded is {last}"
    for step in range(1, last + 1):
        count = len(books.line.commits.get(step, ()))
        if count != books.rules.groups_per_step:
            yield f"gap: step {step} trained {count} groups by the ledger, not {books.rules.groups_per_step}"


def _old(books: _Books) -> Iterator[str]:
    bound = books.rules.max_staleness
    for step, line in books.line.steps.items():
        metrics = line["metrics"]
        if metrics["staleness/age/max_steps"] > bound:
            yield f"old: step {step} trained a token of age {metrics['staleness/age/max_steps']}"
        entries = [books.line.entries[group_id] for group_id in books.line.commits.get(step, ())]
        wanted = sum(
            _num_old(entry, step - 1, books.restored_steps[: line["incarnation"] + 1], bound) for entry in entries
        )
        masked = metrics["learner/tokens/stale"]
        # tokens of what failed in the infrastructure are masked whatever their age
        if masked > wanted or (masked < wanted and not metrics["batch/infrastructure/share"]):
            yield f"old: step {step} masked {masked:.0f} tokens, but {wanted} are too old by the ledger"


def _num_old(entry: dict[str, Any], step: int, restored_steps: list[int], bound: int) -> int:
    """Tokens of a group that are too old for weights of so many steps."""
    count = 0
    for version, num_tokens in entry["record"]["tokens_by_version"]:
        undone_after = min(restored_steps[version["incarnation"] + 1 :], default=version["step"])
        if version["step"] > undone_after or step - version["step"] > bound:
            count += num_tokens
    return count


def _damaged(books: _Books) -> Iterator[str]:
    digests = set(books.damaged_by_us.values())
    for group_id, entry in books.line.entries.items():
        if entry["dropped"] is None and entry["record"]["digest"] in digests:
            yield f"damaged: group {group_id} was taken for whole with the digest of its damaged file"
    for group_id in sorted(books.called_damaged - books.damaged_by_us.keys()):
        yield f"damaged: group {group_id} is called damaged, but nobody damaged it"


def _untold(books: _Books) -> Iterator[str]:
    if books.summary.get("faults") is None:
        yield "untold: there is no summary"
        return
    told = [{name: fault[name] for name in ("who", "what", "done")} for fault in books.summary["faults"]]
    if told != books.faults:
        yield f"untold: summary.json has {len(told)} faults, metrics.jsonl {len(books.faults)}, or others"
    yield from (f"untold: what was done about {fault['who']}: {fault['what']}" for fault in told if not fault["done"])
    restores = {restore["incarnation"]: restore["at_step"] for restore in books.summary["restores"]}
    for line in books.restores:
        if restores.get(line["incarnation"]) != line["step"]:
            yield f"untold: summary.json does not have the restore of incarnation {line['incarnation']}"
    kept = Counter(map(books.reason, books.groups))
    for reason in _KEPT_REASONS:
        count = books.summary["dropped"].get(reason, 0)
        if count != kept[reason]:
            yield f"untold: summary.json counts {count} groups as {reason}, the ledger {kept[reason]}"
