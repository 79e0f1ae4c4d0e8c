"""The processes of a run: starting Ray and the actors, waiting for them with a deadline, ending them.

Every wait of the controller goes through `Fleet.wait` or `Fleet.wait_any`: it has a deadline, says who waited for what,
names an actor that died, and notices that the user asked the run to end.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from segue.actors.errors import Interrupted, RunError
from segue.actors.learner_actor import LearnerActor
from segue.actors.loopback import ADDRESS, collectives_environment
from segue.actors.provenance import program
from segue.actors.rollout_actor import RolloutActor
from segue.conf.environment import actor_environment, forget_authentication_mode, has_token_authentication
from segue.conf.schema import ClusterConfig, SegueConfig

# how often a wait looks at its deadline and at the user's wish to end
_POLL_S = 0.5
# for an actor to say good-bye before it is killed
_STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class Member:
    """One actor."""

    name: str
    handle: Any
    """Ray's handle."""


class Interrupt:
    """Remembers that the user asked the run to end: the first Ctrl-C asks, a second one does not wait.

    SIGTERM, and SIGHUP where it is not ignored (as under nohup), ask for the same.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.is_set = False
        self._say = say
        self._earlier: dict[int, Any] = {}

    def install(self) -> None:
        """Take over these signals; also again, where another library took them over meanwhile."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            present = signal.getsignal(number)
            if number == signal.SIGHUP and present == signal.SIG_IGN:
                continue
            self._earlier.setdefault(number, present)
            signal.signal(number, self._on_signal)

    def uninstall(self) -> None:
        """Give them back to whom they were with first."""
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        self._earlier = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_set:
            self.uninstall()
            raise KeyboardInterrupt
        self.is_set = True
        self._say("ending: the step at hand, then a checkpoint; again to end at once")


class Fleet:
    """The actors of one run."""

    def __init__(self, config: SegueConfig, *, run_folder: Path, interrupt: Interrupt) -> None:
        self._config = config
        self._run_folder = run_folder
        self._launch_folder = os.getcwd()
        self._interrupt = interrupt
        self._owners: dict[Any, str] = {}
        self.rollout: list[Member] = []
        self.learners: list[Member] = []
        self.dashboard: str | None = None
        """Where the dashboard is and who may read it, in words."""

    def start(self, *, num_rollout: int, num_learners: int, exported_model: Path | None) -> None:
        """Start Ray, unless a cluster runs, and the actors.

        Args:
            exported_model: folder of the model to start from. Where there are learners they take it up and rollout
                waits for what they publish; None is random weights.
        Raises:
            RunError: Ray did not start, or an actor failed or was not ready in time.
        """
        cluster = self._config.cluster
        # workers put the driver's folder first on their path: it must hold no folder named like a package
        os.chdir(self._run_folder)
        if cluster.address is None:
            forget_authentication_mode()
        try:
            context = ray.init(**_init_arguments(cluster, self._namespace, num_rollout + num_learners))
        # Ray's own errors have no common class
        except Exception as error:
            raise RunError(_explain_no_ray(cluster, error)) from error
        # Ray takes SIGTERM for itself
        self._interrupt.install()
        self.dashboard = _describe_dashboard(context.dashboard_url, cluster)
        self.rollout = [self._start_rollout(i) for i in range(num_rollout)]
        self.learners = [self._start_learner(rank) for rank in range(num_learners)]
        ready = [self.call(m, "start", None if self.learners else exported_model) for m in self.rollout]
        if self.learners:
            address = self._wait_for_start([self.call(self.learners[0], "open_store")])[0]
            ready += [self.call(member, "start", address, exported_model) for member in self.learners]
        self._wait_for_start(ready)

    def call(self, member: Member, method: str, *arguments: Any) -> Any:
        """Ask an actor for something; the answer is to be waited for."""
        reference = getattr(member.handle, method).options(name=f"{member.name}.{method}").remote(*arguments)
        self._owners[reference] = member.name
        return reference

    def ask_all(
        self, members: Sequence[Member], method: str, *arguments: Any, timeout_s: float, what: str
    ) -> list[Any]:
        """Ask several actors the same, and wait for all; learner ranks meet in collectives inside."""
        calls = [self.call(member, method, *arguments) for member in members]
        return self.wait(calls, timeout_s=timeout_s, what=what)

    def wait(
        self,
        references: Sequence[Any],
        *,
        timeout_s: float,
        what: str,
        is_interruptible: bool = False,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> list[Any]:
        """Wait until all are answered.

        Args:
            what: completes "waited for …" in the message.
            is_interruptible: raise `Interrupted` once the user asks the run to end; else finish first.
            meanwhile: called about twice a second.
        Returns:
            The answers, in order.
        Raises:
            RunError: an actor died, its code failed, or the deadline passed.
        """
        deadline = time.monotonic() + timeout_s
        waiting = list(references)
        answers: dict[Any, Any] = {}
        while waiting:
            done, waiting = self._poll(waiting, deadline, what, timeout_s, is_interruptible)
            # taken as they come: an error must not wait for the slowest
            answers |= {reference: self._take(reference) for reference in done}
            if waiting:
                meanwhile()
        return [answers[reference] for reference in references]

    def take_if_ready(self, references: Sequence[Any]) -> list[Any] | None:
        """The answers, in order, where all are there; None without waiting where one is not."""
        _, waiting = ray.wait(list(references), num_returns=len(references), timeout=0)
        return None if waiting else [self._take(reference) for reference in references]

    def wait_any(
        self, references: Sequence[Any], *, timeout_s: float, what: str, is_interruptible: bool = True
    ) -> list[tuple[Any, Any]]:
        """Wait until at least one is answered; see `wait`.

        Returns:
            (reference, answer) of each that is.
        """
        deadline = time.monotonic() + timeout_s
        done: list[Any] = []
        while not done:
            done, _ = self._poll(list(references), deadline, what, timeout_s, is_interruptible)
        return [(reference, self._take(reference)) for reference in done]

    def stop(self) -> None:
        """End every actor and, if it was started here, Ray."""
        if self.rollout:
            goodbyes = [member.handle.stop.remote() for member in self.rollout]
            ray.wait(goodbyes, num_returns=len(goodbyes), timeout=_STOP_S)
        for member in (*self.rollout, *self.learners):
            ray.kill(member.handle)
        self.rollout, self.learners, self._owners = [], [], {}
        ray.shutdown()
        os.chdir(self._launch_folder)

    @property
    def _namespace(self) -> str:
        """Two runs on one cluster do not see each other's actors."""
        return f"segue-{self._run_folder.name}-{os.getpid()}"

    def _wait_for_start(self, references: list[Any]) -> list[Any]:
        timeout_s = self._config.cluster.start_timeout_s
        return self.wait(references, timeout_s=timeout_s, what="actors to start", is_interruptible=True)

    def _start_rollout(self, index: int) -> Member:
        name = f"rollout-{index}"
        options = actor_options(self._config.cluster, name)
        handle = ray.remote(RolloutActor).options(**options).remote(
            self._config, name=name, run_folder=self._run_folder
        )  # fmt: skip
        return Member(name, handle)

    def _start_learner(self, rank: int) -> Member:
        name = f"learner-{rank}"
        options = actor_options(self._config.cluster, name)
        handle = ray.remote(LearnerActor).options(**options).remote(self._config, rank=rank)
        return Member(name, handle)

    def _poll(
        self, waiting: list[Any], deadline: float, what: str, timeout_s: float, is_interruptible: bool
    ) -> tuple[list[Any], list[Any]]:
        if is_interruptible and self._interrupt.is_set:
            raise Interrupted
        # the first answer ends the wait; what else is there comes with it
        ray.wait(waiting, num_returns=1, timeout=_POLL_S)
        done, rest = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        if not done and time.monotonic() > deadline:
            owners = ", ".join(sorted({self._owners[reference] for reference in rest}))
            raise RunError(f"the controller waited {timeout_s:.0f} s for {what}, without an answer from {owners}")
        return done, rest

    def _take(self, reference: Any) -> Any:
        owner = self._owners.pop(reference)
        try:
            return ray.get(reference, timeout=_STOP_S)
        except RayActorError as error:
            raise RunError(f"{owner} died: {_last_line(error)}") from error
        except RayTaskError as error:
            cause = error.cause if error.cause is not None else error
            raise RunError(f"{owner} failed: {type(cause).__name__}: {cause}") from error
        except GetTimeoutError as error:
            raise RunError(f"{owner} answered, but the answer did not arrive in {_STOP_S:.0f} s") from error


@contextmanager
def supervised(config: SegueConfig, run_folder: Path, say: Callable[[str], None]) -> Iterator[Fleet]:
    """A fleet, not started, that is ended with the block; Ctrl-C ends the block at its next wait."""
    interrupt = Interrupt(say)
    fleet = Fleet(config, run_folder=run_folder, interrupt=interrupt)
    interrupt.install()
    try:
        yield fleet
    finally:
        fleet.stop()
        interrupt.uninstall()


def actor_options(cluster: ClusterConfig, name: str) -> dict[str, Any]:
    """Ray's options of an actor.

    On a cluster that is there, CPUs spread actors over nodes, so an actor asks for one a thread. A Ray of the run's own
    is one machine and takes all of its actors, however small it is.
    """
    num_cpus = 1 if cluster.address is None else cluster.threads
    environment = {"env_vars": {**actor_environment(cluster.threads), **collectives_environment(cluster)}}
    return {"name": name, "num_cpus": num_cpus, "runtime_env": environment}


def _init_arguments(cluster: ClusterConfig, namespace: str, num_actors: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {"namespace": namespace, "log_to_driver": False, "logging_level": "ERROR"}
    if cluster.address is not None:
        return {**arguments, "address": cluster.address}
    # CPUs are a promise to the scheduler and not a limit: one an actor, however small the machine
    num_cpus = max(os.cpu_count() or 1, num_actors)
    return {
        **arguments,
        # never one that happens to run on this machine
        "address": "local",
        "num_cpus": num_cpus,
        "include_dashboard": cluster.dashboard,
        "dashboard_host": ADDRESS,
        # Ray's own servers bind to the node's address; see `loopback.py`
        "_node_ip_address": ADDRESS,
    }


def _explain_no_ray(cluster: ClusterConfig, error: Exception) -> str:
    remedy = "free memory, disk or processes, then run the command again; Ray's own words are in its temporary folder"
    if cluster.address is not None:
        remedy = f"is a cluster up at {cluster.address}? leave cluster.address out to start one"
    return f"Ray did not start: {type(error).__name__}: {_first_line(error)}; {remedy}"


def _describe_dashboard(url: str | None, cluster: ClusterConfig) -> str | None:
    if not url:
        return None
    if cluster.address is not None:
        return f"http://{url} (of the cluster that the run joined)"
    if has_token_authentication():
        return f"http://{url} (asks for a token: `{program('ray')} get-auth-token` prints it)"
    return f"http://{url} (open to every user of this machine)"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "no reason given")


def _last_line(error: BaseException) -> str:
    """The cause, which Ray prints below its traceback."""
    return str(error).strip().splitlines()[-1]
