"""The processes of a run: starting Ray and actors, asking them, seeing who answered and who is lost, ending them.

What an answer or a loss means is decided above: `rollout_pool.py` replaces an actor and has its work done again,
`learner_ranks.py` reports that the learner has to start anew.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import ray
from ray.exceptions import (
    GetTimeoutError,
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

from segue.actors.errors import ActorLost, Interrupted, NeverBegan, RayLost, RunError
from segue.actors.fleet import Answer, Member, learner_name, rollout_name
from segue.actors.interrupt import Interrupt
from segue.actors.learner_actor import LearnerActor
from segue.actors.ray_errors import explain_failure, explain_loss, has_never_begun, last_line, node_of
from segue.actors.ray_files import delete_session
from segue.actors.ray_runtime import (
    explain_no_place,
    has_died,
    has_place,
    is_ray_alive,
    lost_node_noticed_s,
    own_servers,
    own_session,
    reserve_gpus,
    start_ray,
)
from segue.actors.rollout_actor import RolloutActor
from segue.actors.shared_folder import FolderMark, read_mark
from segue.conf.environment import actor_environment
from segue.conf.placement import GPU, learner_gpus, placed, rollout_gpus
from segue.conf.schema import ClusterConfig, SegueConfig
from segue.model.device import count_gpus

# how often a wait looks at its deadline and at the user's wish to end
POLL_S = 0.5
# for an actor to say good-bye before it is killed, and for an answer to arrive
_STOP_S = 10.0
# for Ray to tell of a process that died
_PROCESS_NOTICED_S = 30.0
# what Ray answers for an actor whose process is gone: of these, some are no errors of actors to Ray
_LOSSES = (RayActorError, ObjectLostError, NodeDiedError, OutOfMemoryError, WorkerCrashedError)


class RayFleet:
    """A `Fleet` of Ray's actors."""

    def __init__(self, config: SegueConfig, *, run_folder: Path, interrupt: Interrupt) -> None:
        """`config` may leave open how many actors there are and what they compute on.

        Raises:
            ConfigError: this machine lacks the GPUs that are asked for.
        """
        self._num_gpus = count_gpus()
        self.config = placed(config, self._num_gpus)
        """With that settled."""
        self._strategies: dict[str, Any] = {}
        self._run_folder = run_folder
        self._launch_folder = os.getcwd()
        self._interrupt = interrupt
        self._owners: dict[Any, str] = {}
        self._members: list[Member] = []
        self._servers: list[Any] = []
        self._mark: FolderMark | None = None
        self._is_ray_lost = False
        self._session: Path | None = None
        self.dashboard: str | None = None
        """Where the dashboard is and who may read it, in words."""

    def start(self) -> None:
        """Start Ray, or join the cluster that the configuration names.

        Raises:
            RunError: there is none.
            Interrupted: the user asked the run to end meanwhile.
        """
        cluster = self.config.cluster
        # workers put the driver's folder first on their path: it must hold no folder named like a package
        os.chdir(self._run_folder)
        namespace = fresh_namespace(self._run_folder)
        num_actors = cluster.num_rollout_actors + cluster.num_learner_ranks
        gpus = self._gpus()
        num_gpus = len(set(gpus.values()))
        try:
            self.dashboard = start_ray(cluster, namespace=namespace, num_actors=num_actors, num_gpus=num_gpus)
        # how Ray answers SIGTERM, which it takes for itself
        except SystemExit as end:
            raise Interrupted from end
        if cluster.address is None:
            self._session = own_session()
        self._strategies = reserve_gpus(gpus, cluster.start_timeout_s)
        self._servers = own_servers()
        self._mark = read_mark(self._run_folder)
        self._interrupt.install()

    def spawn_rollout(self, name: str) -> Member:
        """See `Fleet`."""
        options = actor_options(self.config.cluster, name, self.config.cluster.rollout_resources)
        # a learner's ranks want to be near each other, rollout actors want memory
        elsewhere = None if self.config.cluster.address is None else "SPREAD"
        options["scheduling_strategy"] = self._strategies.get(name, elsewhere)
        actor = ray.remote(RolloutActor).options(**options)
        handle = actor.remote(self.config, name=name, run_folder=self._run_folder, mark=self._mark)
        return self._join(name, handle, demand_of(options))

    def spawn_learner(self, rank: int) -> Member:
        """See `Fleet`."""
        name = learner_name(rank)
        options = actor_options(self.config.cluster, name, self.config.cluster.learner_resources)
        options["scheduling_strategy"] = self._strategies.get(name)
        handle = ray.remote(LearnerActor).options(**options).remote(self.config, rank=rank, mark=self._mark)
        return self._join(name, handle, demand_of(options))

    def call(self, member: Member, method: str, *arguments: Any) -> Any:
        """See `Fleet`."""
        reference = getattr(member.handle, method).options(name=f"{member.name}.{method}").remote(*arguments)
        self._owners[reference] = member.name
        return reference

    def heed_interrupt(self) -> None:
        """See `Fleet`."""
        if self._interrupt.is_set:
            raise Interrupted

    def look(self, references: Sequence[Any], *, is_interruptible: bool = False) -> list[Answer]:
        """See `Fleet`; waits at most half a second."""
        if is_interruptible:
            self.heed_interrupt()
        if any(map(has_died, self._servers)):
            self._lose_ray()
        waiting = list(references)
        # the first answer ends the wait; what else is there comes with it
        ray.wait(waiting, num_returns=1, timeout=POLL_S)
        done, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        return [self._take(reference) for reference in done]

    def cancel(self, reference: Any) -> None:
        """See `Fleet`."""
        ray.cancel(reference)

    def kill(self, member: Member) -> None:
        """See `Fleet`."""
        self._members.remove(member)
        ray.kill(member.handle)

    def check_alive(self) -> None:
        """See `Fleet`."""
        if any(map(has_died, self._servers)) or not is_ray_alive():
            self._lose_ray()

    def loss_noticed_s(self) -> float:
        """See `Fleet`."""
        if self.config.cluster.address is None:
            return _PROCESS_NOTICED_S
        return max(_PROCESS_NOTICED_S, lost_node_noticed_s())

    def explain_absence(self, members: Sequence[Member]) -> str:
        """See `Fleet`."""
        if self.config.cluster.address is None:
            return ""
        # one that has its place may have taken the last
        reasons = (explain_no_place(member.demand) for member in members if not has_place(member.handle))
        return next((f"; {reason}" for reason in reasons if reason is not None), "")

    def stop(self) -> None:
        """End every actor and, if it was started here, Ray."""
        if not self._is_ray_lost:
            self._say_goodbye()
        self._members, self._owners = [], {}
        ray.shutdown()
        os.chdir(self._launch_folder)

    def forget(self) -> None:
        """After the end, delete the logs and sockets of a Ray that was started here."""
        if self._session is not None:
            delete_session(self._session)

    def _gpus(self) -> dict[str, int]:
        """Actors of a Ray of the run's own that compute on a GPU, and its number; elsewhere Ray chooses."""
        cluster = self.config.cluster
        if cluster.address is not None:
            return {}
        gpus = {rollout_name(i): gpu for i, gpu in enumerate(rollout_gpus(cluster, self._num_gpus))}
        return gpus | {learner_name(i): gpu for i, gpu in enumerate(learner_gpus(cluster))}

    def _lose_ray(self) -> NoReturn:
        self._is_ray_lost = True
        raise RayLost("Ray on this machine died, or gives no answer, and the run's processes with it")

    def _say_goodbye(self) -> None:
        goodbyes = [member.handle.stop.remote() for member in self._members if hasattr(member.handle, "stop")]
        if goodbyes:
            ray.wait(goodbyes, num_returns=len(goodbyes), timeout=_STOP_S)
        for member in list(self._members):
            self.kill(member)

    def _join(self, name: str, handle: Any, demand: dict[str, float]) -> Member:
        member = Member(name, handle, demand)
        self._members.append(member)
        return member

    def _take(self, reference: Any) -> Answer:
        owner = self._owners.pop(reference)
        try:
            return Answer(reference=reference, value=ray.get(reference, timeout=_STOP_S))
        except RayError as error:
            return Answer(reference=reference, error=self._explain(owner, error))

    def _explain(self, owner: str, error: RayError) -> RunError:
        """What an error of Ray's in an answer's place means.

        Raises:
            RayLost: Ray is gone.
        """
        # first: it is also of its cause's class, and an actor that found another one lost is none that is
        if isinstance(error, RayTaskError):
            cause = error.cause if error.cause is not None else error
            return _caused(self._failure(owner, f"{type(cause).__name__}: {cause}", error), cause)
        if isinstance(error, LocalRayletDiedError):
            self._lose_ray()
        self.check_alive()
        if isinstance(error, GetTimeoutError):
            return _caused(ActorLost(f"{owner} answered, but its answer did not arrive"), error)
        if isinstance(error, _LOSSES):
            return _caused(self._loss(owner, error), error)
        # an answer that cannot be read, an actor that cannot be placed or set up, …
        return _caused(self._failure(owner, f"{type(error).__name__}: {last_line(str(error))}", error), error)

    def _failure(self, owner: str, what: str, error: BaseException) -> RunError:
        node = None if self.config.cluster.address is None else node_of(str(error))
        return RunError(explain_failure(owner, what, node=node))

    def _loss(self, owner: str, error: BaseException) -> RunError:
        text = str(error)
        if isinstance(error, RayActorError) and error.actor_init_failed:
            return self._failure(owner, last_line(text), error)
        if has_never_begun(text):
            return NeverBegan(f"{owner} never began: its node was lost first")
        return ActorLost(f"{owner} died: {explain_loss(text)}")


@contextmanager
def supervised(config: SegueConfig, run_folder: Path, say: Callable[[str], None]) -> Iterator[RayFleet]:
    """A fleet, not started, that is ended with the block, and leaves nothing where that ends well; Ctrl-C ends the
    block at its next wait.

    Raises:
        Interrupted: Ray is gone, but the user asked the run to end: who signals a process may have signalled Ray's too.
    """
    interrupt = Interrupt(say)
    fleet = RayFleet(config, run_folder=run_folder, interrupt=interrupt)
    interrupt.install()
    try:
        yield fleet
    except RayLost as loss:
        if interrupt.is_set:
            raise Interrupted from loss
        raise
    finally:
        fleet.stop()
        interrupt.uninstall()
    # where something failed its reason may be in there
    fleet.forget()


def fresh_namespace(run_folder: Path) -> str:
    """Where a launch's actors have their names.

    Two runs on one cluster do not see each other's actors, nor does a launch see those of the one before, which a
    cluster may still be ending.
    """
    return f"segue-{run_folder.name}-{secrets.token_hex(4)}"


def actor_options(cluster: ClusterConfig, name: str, resources: dict[str, float]) -> dict[str, Any]:
    """Ray's options of an actor.

    On a cluster that is there, CPUs spread actors over nodes, so an actor asks for one a thread. A Ray of the run's own
    is one machine and takes all of its actors, however small it is.

    Args:
        resources: Ray's resources that the actor takes beside, `GPU` or a name of the cluster's own.
    """
    return {
        "name": name,
        "num_cpus": 1 if cluster.address is None else cluster.threads,
        "num_gpus": resources.get(GPU, 0),
        "resources": {kind: amount for kind, amount in resources.items() if kind != GPU},
        "runtime_env": {"env_vars": actor_environment(cluster.threads)},
    }


def demand_of(options: dict[str, Any]) -> dict[str, float]:
    """What an actor of these options asks one node for, by Ray's names."""
    demand = {"CPU": options["num_cpus"], GPU: options["num_gpus"], **options["resources"]}
    return {kind: amount for kind, amount in demand.items() if amount}


def _caused(error: RunError, cause: BaseException) -> RunError:
    error.__cause__ = cause
    return error
