"""Which tasks are played, in which order: a stream with a cursor that a checkpoint can hold.

Task number i of a run is the same task whenever it is drawn: its seed is a function of the run's seed, the kind of
task and i alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from segue.actors.stages import StepPlan


class TaskKind(Enum):
    """What a task is for; each kind draws seeds of its own."""

    train = "train"
    demonstration = "demonstration"
    measurement = "measurement"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one group is about."""

    number: int
    """Place in the stream, from 0."""
    task_id: str
    seed: int
    """Seed of the environment's task; below the held-out seeds."""
    incarnation: int
    """Incarnation of the run that drew it; a task drawn again has another group id."""
    budgets: dict[str, int] = field(default_factory=dict)
    """See `TaskSpec`."""
    plan: StepPlan | None = None
    """What an imitation's group holds; None where the task is played by the policy."""

    @property
    def group_id(self) -> str:
        """Unique in the run folder."""
        return f"{self.task_id}.{self.incarnation}"


def member_seed(task: Task, index: int, seed_limit: int) -> int:
    """Seed of one member of a group whose members play tasks of their own; in [0, seed_limit)."""
    return _draw_seed([task.seed, index], seed_limit)


class TaskStream:
    """Draws tasks in order; every task from 0 on is drawn until its group is in the buffer.

    Promises:
        `draw` yields pending tasks first, in order, then new ones; a task is never outstanding twice. After
        `restore`, tasks that were outstanding at the checkpoint or whose group is gone are drawn again, and those
        whose group was found in the buffer, or is played still, are skipped: tests/unit/actors/test_task.py.
    """

    def __init__(self, *, kind: TaskKind, run_seed: int, seed_limit: int) -> None:
        self._kind = kind
        self._run_seed = run_seed
        self._seed_limit = seed_limit
        self._incarnation = 0
        self._cursor = 0
        self._again: list[int] = []
        self._skip: set[int] = set()
        self._outstanding: set[int] = set()

    def number_of(self, task_id: str) -> int | None:
        """Place in the stream of one of its tasks; None for what is none."""
        kind, _, number = task_id.rpartition("-")
        is_task = kind == self._kind.value and number.isdecimal() and number.isascii()
        return int(number) if is_task and task_id == _task_id(self._kind, int(number)) else None

    def __contains__(self, task_id: object) -> bool:
        """Whether the group of a task is still to come."""
        number = self.number_of(task_id) if isinstance(task_id, str) else None
        return number is not None and (number in self._outstanding or is_open(self.state(), number))

    @property
    def next_number(self) -> int:
        """Of the next task that has not been drawn before, nor found played."""
        number = self._cursor
        while number in self._skip:
            number += 1
        return number

    def draw(self) -> Task:
        """The next task; it is outstanding until `settle`."""
        if self._again:
            number = self._again.pop(0)
        else:
            while self._cursor in self._skip:
                self._skip.remove(self._cursor)
                self._cursor += 1
            number = self._cursor
            self._cursor += 1
        self._outstanding.add(number)
        return Task(
            number=number,
            task_id=_task_id(self._kind, number),
            seed=self._seed(number),
            incarnation=self._incarnation,
        )

    def settle(self, number: int) -> None:
        """The task's group is in the buffer."""
        self._outstanding.remove(number)

    def put_back(self, number: int) -> None:
        """The task's group is gone: draw it again."""
        self._again = sorted({*self._again, number})

    def state(self) -> dict[str, object]:
        """What `restore` needs, as JSON values."""
        return {"cursor": self._cursor, "unfinished": sorted(self._outstanding | set(self._again))}

    def restore(
        self,
        state: dict[str, object],
        incarnation: int,
        *,
        finished: Iterable[int],
        lost: Iterable[int] = (),
        in_flight: Iterable[int] = (),
    ) -> None:
        """Return to a checkpoint's cursor.

        Args:
            state: of `state()`; empty for the start of the stream.
            incarnation: of the run that draws from now on.
            finished: numbers of tasks whose groups stand in the buffer.
            lost: numbers of tasks whose groups stood there and are gone: drawn again, unless another group of theirs
                stands there.
            in_flight: numbers of tasks that are played still.
        """
        self._incarnation = incarnation
        self._outstanding = set(in_flight)
        done = {*finished, *self._outstanding}
        cursor, unfinished = _cursor_of(state)
        self._cursor = cursor
        # from the cursor on, a task comes in its turn
        self._again = sorted({n for n in (*unfinished, *lost) if n < cursor and n not in done})
        self._skip = {number for number in done if number >= cursor}

    def _seed(self, number: int) -> int:
        return _draw_seed([self._run_seed, list(TaskKind).index(self._kind), number], self._seed_limit)


def is_open(state: dict[str, object], number: int) -> bool:
    """Whether a task's group was still to come in a state of `TaskStream.state`."""
    cursor, unfinished = _cursor_of(state)
    return number >= cursor or number in unfinished


def _cursor_of(state: dict[str, object]) -> tuple[int, list[int]]:
    cursor, unfinished = state.get("cursor", 0), state.get("unfinished", [])
    assert isinstance(cursor, int) and isinstance(unfinished, list), state
    return cursor, unfinished


def _task_id(kind: TaskKind, number: int) -> str:
    return f"{kind.value}-{number:07d}"


def _draw_seed(key: list[int], seed_limit: int) -> int:
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] % seed_limit)
