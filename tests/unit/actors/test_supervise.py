"""What an error of Ray's in an answer's place is taken for; real ones come in tests/e2e/test_supervise.py."""

from pathlib import Path

import pytest
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ActorUnschedulableError,
    GetTimeoutError,
    LocalRayletDiedError,
    NodeDiedError,
    OutOfMemoryError,
    OwnerDiedError,
    RayError,
    RaySystemError,
    RuntimeEnvSetupError,
    TaskCancelledError,
    WorkerCrashedError,
)

from segue.actors.errors import ActorLost, NeverBegan, RayLost
from segue.actors.interrupt import Interrupt
from segue.actors.supervise import RayFleet, fresh_namespace
from segue.conf.schema import ClusterConfig, SegueConfig

FULL = (
    "Memory on the node (IP: 10.0.0.7, ID: ab) where the task (actor ID: cd, name=RolloutActor) was running was "
    "15.3GB / 16.0GB (0.96), which exceeds the memory usage threshold of 0.95.\nSet max_restarts to try again."
)

NODE_DIED = "The actor died because its node has died. Node Id: ab\n\tthe actor's node was terminated unexpectedly: so"
PROCESS_DIED = "Its worker process has died. Exit detail: exit code 1. Some common causes include: (1) the OOM killer"


class RaylessFleet(RayFleet):
    """A fleet whose Ray is there, or not."""

    is_alive = True

    def check_alive(self) -> None:
        if not self.is_alive:
            raise RayLost("Ray is gone")


def make_fleet() -> RaylessFleet:
    config = SegueConfig(cluster=ClusterConfig(address="auto"))
    return RaylessFleet(config, run_folder=Path("run"), interrupt=Interrupt(print))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ActorUnavailableError("so", None), "rollout-0 died: it cannot be reached: its process or its node is gone"),
        (OutOfMemoryError(FULL), "rollout-0 died: Ray ended it, as the memory of its node 10.0.0.7 was full"),
        (WorkerCrashedError(), "rollout-0 died: The worker died unexpectedly while executing this task."),
        (NodeDiedError("the node is gone"), "rollout-0 died: the node is gone"),
        (OwnerDiedError("ab", None, "call site"), "rollout-0 died: "),
        (GetTimeoutError("so"), "rollout-0 answered, but its answer did not arrive"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_an_actors_loss(error: RayError, told: str) -> None:
    found = make_fleet()._explain("rollout-0", error)
    assert isinstance(found, ActorLost) and str(found).startswith(told) and "\n" not in str(found)
    assert found.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        ActorUnschedulableError("no such node"),
        RaySystemError(ValueError("unknown answer"), "Traceback:\nValueError: unknown answer"),
        RuntimeEnvSetupError("no such file"),
        TaskCancelledError(error_message="so"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_other_error_of_rays_is_one_line_and_no_loss(error: RayError) -> None:
    found = make_fleet()._explain("rollout-0", error)
    assert not isinstance(found, ActorLost)
    assert str(found).startswith(f"rollout-0 failed: {type(error).__name__}: ") and "\n" not in str(found)
    # where Ray is gone it is Ray's loss instead
    fleet = make_fleet()
    fleet.is_alive = False
    with pytest.raises(RayLost):
        fleet._explain("rollout-0", error)


def test_a_lost_server_of_the_commands_own_node_is_rays_loss() -> None:
    with pytest.raises(RayLost):
        make_fleet()._explain("rollout-0", LocalRayletDiedError())


def test_an_actor_that_was_sent_to_a_node_that_is_gone_never_began() -> None:
    context = ActorDiedErrorContext(actor_id=bytes(16), never_started=True, error_message=NODE_DIED)
    assert isinstance(make_fleet()._explain("rollout-0", ActorDiedError(context)), NeverBegan)
    # one whose process ends before it begins would do so for ever
    context = ActorDiedErrorContext(actor_id=bytes(16), never_started=True, error_message=PROCESS_DIED)
    found = make_fleet()._explain("rollout-0", ActorDiedError(context))
    assert type(found) is ActorLost
    assert str(found) == f"rollout-0 died: {PROCESS_DIED.partition(' Some common')[0]}"


def test_a_launch_does_not_meet_the_actors_of_the_one_before() -> None:
    first, second = (fresh_namespace(Path("runs/mine")) for _ in range(2))
    assert first != second and first.startswith("segue-mine-") and second.startswith("segue-mine-")


def test_a_process_is_noticed_sooner_than_a_node() -> None:
    config = SegueConfig(cluster=ClusterConfig(address="auto"))
    on_cluster = RayFleet(config, run_folder=Path("run"), interrupt=Interrupt(print)).loss_noticed_s()
    alone = RayFleet(SegueConfig(), run_folder=Path("run"), interrupt=Interrupt(print)).loss_noticed_s()
    # 62 s were measured with Ray's defaults
    assert alone == 30.0 and 62.0 < on_cluster < 120.0
