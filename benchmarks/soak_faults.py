"""What a soak does to a run: a seeded schedule of faults, and the hands that inflict them."""

import hashlib
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import IO

import psutil
from soak_env import Trouble
from soak_run import Role

# of a fault that is undone after a while
_HOLD_S = (1.0, 12.0)
# the share of the mean gap between two faults that a gap may be
_GAP = (0.2, 1.8)


class Act(Enum):
    """What is done."""

    signal = "signal"
    """A signal, and that is that."""
    pause = "pause"
    """SIGSTOP, and SIGCONT after a while."""
    no_room = "no room"
    """No file may grow, for a while."""
    trouble = "trouble"
    """In the environment's next call."""
    flip = "flip"
    """A bit in the middle of a finished group's file."""
    cut = "cut"
    """A finished group's file loses its end."""
    delete = "delete"
    """A finished group's file goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of fault."""

    act: Act
    role: Role | None = None
    number: signal.Signals | None = None
    trouble: Trouble | None = None


def _signal(role: Role, number: signal.Signals) -> Kind:
    return Kind(act=Act.signal, role=role, number=number)


KINDS: Mapping[str, Kind] = {
    "kill-rollout": _signal(Role.rollout, signal.SIGKILL),
    "kill-learner": _signal(Role.learner, signal.SIGKILL),
    "kill-env-worker": _signal(Role.env_worker, signal.SIGKILL),
    "kill-driver": _signal(Role.driver, signal.SIGKILL),
    "kill-raylet": _signal(Role.raylet, signal.SIGKILL),
    "kill-gcs": _signal(Role.gcs, signal.SIGKILL),
    "end-driver": _signal(Role.driver, signal.SIGTERM),
    "freeze-rollout": _signal(Role.rollout, signal.SIGSTOP),
    "freeze-learner": _signal(Role.learner, signal.SIGSTOP),
    "freeze-env-worker": _signal(Role.env_worker, signal.SIGSTOP),
    "pause-rollout": Kind(act=Act.pause, role=Role.rollout),
    "pause-learner": Kind(act=Act.pause, role=Role.learner),
    "pause-env-worker": Kind(act=Act.pause, role=Role.env_worker),
    "pause-driver": Kind(act=Act.pause, role=Role.driver),
    "no-room-rollout": Kind(act=Act.no_room, role=Role.rollout),
    "no-room-learner": Kind(act=Act.no_room, role=Role.learner),
    "no-room-driver": Kind(act=Act.no_room, role=Role.driver),
    "call-hangs": Kind(act=Act.trouble, trouble=Trouble.hang),
    "call-dawdles": Kind(act=Act.trouble, trouble=Trouble.dawdle),
    "call-fails": Kind(act=Act.trouble, trouble=Trouble.fail),
    "flip-group": Kind(act=Act.flip),
    "cut-group": Kind(act=Act.cut),
    "delete-group": Kind(act=Act.delete),
}

ENDS_PROCESS = {
    *("kill-driver", "kill-raylet", "kill-gcs", "end-driver"),
    *("kill-rollout", "kill-learner", "freeze-rollout", "freeze-learner"),
    # a checkpoint or a metric that cannot be written ends the command, a trajectory the actor
    *("no-room-driver", "no-room-learner", "no-room-rollout"),
}
"""Kinds after which a driver, a rollout actor or a learner rank is a new process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A fault to come."""

    kind: str
    gap_s: float
    """Seconds after the fault before."""
    hold_s: float
    """Seconds until it is undone, where it is."""
    pick: float
    """In [0, 1): which of the candidates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """A fault that was."""

    time: float
    """`time.time()`."""
    kind: str
    target: str
    """Of whom or what."""
    poisoned: str | None = None
    """Id of the group whose file was damaged."""
    digest: str | None = None
    """SHA-256 of the damaged file; None where it is gone, or there is none."""
    is_at_work: bool = True
    """The run folder knew of the launch, and not of its end."""


def schedule(seed: int, kinds: Sequence[str], mean_gap_s: float, *, gentle_after_s: float) -> Iterator[Planned]:
    """Faults without end, the same for the same arguments: every kind once, in a drawn order, and so on.

    Args:
        seed: of what is drawn.
        kinds: of `KINDS`.
        mean_gap_s: mean of `gap_s`.
        gentle_after_s: from so many seconds of gaps on, kinds of `ENDS_PROCESS` are left out, if there are others: so
            that processes live long enough for their memory to be judged.
    """
    rng = random.Random(seed)
    gentle = [kind for kind in kinds if kind not in ENDS_PROCESS] or kinds
    elapsed_s = 0.0
    while True:
        present = kinds if elapsed_s < gentle_after_s else gentle
        for kind in rng.sample(present, len(present)):
            gap_s = rng.uniform(*_GAP) * mean_gap_s
            elapsed_s += gap_s
            yield Planned(kind=kind, gap_s=gap_s, hold_s=rng.uniform(*_HOLD_S), pick=rng.random())


@dataclass(slots=True, kw_only=True)
class Scene:
    """What there is to strike at now."""

    processes: Mapping[Role, Sequence[psutil.Process]]
    ready: Sequence[Path]
    """Files of finished groups that have not trained yet, as far as can be seen."""
    is_at_work: bool
    """The run folder knows of the present launch, and not of its end."""


@dataclass(slots=True)
class Hands:
    """Inflicts faults, and undoes those that are to be undone."""

    trouble: Path
    """Folder in which the environment looks for trouble."""
    _laid: Path | None = None
    """Trouble that no call has met yet."""
    _held: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def inflict(self, planned: Planned, scene: Scene) -> Injected | None:
        """The fault, once it is one; None while nobody is there to have it."""
        kind = KINDS[planned.kind]
        if kind.trouble is not None:
            return self._lay(planned, kind.trouble)
        if kind.role is None:
            return _damage(planned, kind.act, scene.ready)
        candidates = scene.processes.get(kind.role, ())
        if not candidates:
            return None
        process = candidates[int(planned.pick * len(candidates))]
        try:
            self._strike(process, kind, time.time() + planned.hold_s)
        except psutil.NoSuchProcess:
            return None
        target = f"{kind.role.value} {process.pid}"
        return Injected(time=time.time(), kind=planned.kind, target=target, is_at_work=scene.is_at_work)

    def give_up(self) -> None:
        """Nobody came to have the fault."""
        if self._laid is not None:
            self._laid.unlink(missing_ok=True)
            self._laid = None

    def undo(self, *, everything: bool = False) -> None:
        """Undo what is due."""
        due = [entry for entry in self._held if everything or time.time() >= entry[0]]
        for entry in due:
            self._held.remove(entry)
            entry[1]()

    def _lay(self, planned: Planned, trouble: Trouble) -> Injected | None:
        path = self.trouble / trouble.value
        if self._laid is None:
            path.touch()
            self._laid = path
        if path.exists():
            return None
        self._laid = None
        return Injected(time=time.time(), kind=planned.kind, target="a call of the environment")

    def _strike(self, process: psutil.Process, kind: Kind, until: float) -> None:
        if kind.act is Act.signal:
            assert kind.number is not None
            process.send_signal(kind.number)
        elif kind.act is Act.pause:
            process.suspend()
            self._held.append((until, lambda: _resume(process)))
        else:
            _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
            process.rlimit(psutil.RLIMIT_FSIZE, (0, hard))
            self._held.append((until, lambda: _give_room(process)))


def _resume(process: psutil.Process) -> None:
    if process.is_running():
        process.resume()


def _give_room(process: psutil.Process) -> None:
    if not process.is_running():
        return
    # those that it started meanwhile have no room either
    for each in (process, *process.children(recursive=True)):
        try:
            _, hard = each.rlimit(psutil.RLIMIT_FSIZE)
            each.rlimit(psutil.RLIMIT_FSIZE, (hard, hard))
        except psutil.NoSuchProcess:
            continue


def _damage(planned: Planned, act: Act, ready: Sequence[Path]) -> Injected | None:
    if not ready:
        return None
    path = ready[int(planned.pick * len(ready))]
    digest: str | None = None
    try:
        if act is Act.delete:
            path.unlink()
        else:
            # in place, and only where it still is
            with path.open("r+b") as file:
                data = file.read()
                if act is Act.cut:
                    file.truncate(len(data) // 2)
                else:
                    _flip(file, data, planned.pick)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None
    return Injected(time=time.time(), kind=planned.kind, target=path.name, poisoned=path.stem, digest=digest)


def _flip(file: IO[bytes], data: bytes, pick: float) -> None:
    """One bit among the arrays, which lie behind the header, whose size is in the first eight bytes."""
    start = 8 + int.from_bytes(data[:8], "little")
    place = start + int(pick * (len(data) - start))
    file.seek(place)
    file.write(bytes([data[place] ^ 1]))
