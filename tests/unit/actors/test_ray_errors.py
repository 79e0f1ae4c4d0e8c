"""Ray's errors in our words, on the errors that Ray itself raises."""

import platform

import pytest
from ray import __version__ as our_ray
from ray._private.utils import check_version_info
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, ActorUnavailableError

from segue.actors.ray_errors import explain_failure, explain_loss, explain_version_clash, has_never_begun, node_of

OUR_PYTHON = platform.python_version()


@pytest.mark.parametrize(("their_ray", "their_python"), [("2.9.0", OUR_PYTHON), (our_ray, "3.10.1")])
def test_a_cluster_of_another_version_is_told_with_both_versions_and_the_remedy(
    their_ray: str, their_python: str
) -> None:
    with pytest.raises(RuntimeError) as caught:
        check_version_info({"ray_version": their_ray, "python_version": their_python}, "node 10.0.0.1:6379")
    assert explain_version_clash(caught.value) == (
        f"a cluster to join must run the same Ray and Python, got Ray {their_ray} with Python {their_python} there and "
        f"Ray {our_ray} with Python {OUR_PYTHON} here; install ray=={our_ray} under Python {OUR_PYTHON} on every node "
        "and start the cluster again, or leave cluster.address out to start one"
    )


def test_any_other_error_is_not_explained() -> None:
    assert explain_version_clash(ConnectionError("Version mismatch: none of these")) is None


def test_a_loss_is_told_in_one_line() -> None:
    reset = str(
        ActorUnavailableError("The actor is temporarily unavailable: RPC error: Socket closed rpc_code: 14", None)
    )
    assert explain_loss(reset) == "it cannot be reached: its process or its node is gone"
    # of a process that was killed by signal 9, as Ray tells it
    killed = (
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
        "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) memory"
    )
    said = "its process ended without a word: killed by a signal (9, where memory was full), or crashed"
    assert explain_loss(killed) == said
    exited = "The actor died.\n\tip: 10.0.0.7\nWorker exits with an exit code 3. Some common causes include: (1)"
    assert explain_loss(exited) == "Worker exits with an exit code 3."
    node = "The actor died.\n\tip: 10.0.0.7\n\tthe actor's node was terminated unexpectedly: health check failed"
    assert explain_loss(node) == "its node 10.0.0.7 is gone: health check failed"
    assert not has_never_begun(reset)


def test_an_actor_that_never_ran_is_told_from_one_that_died() -> None:
    def died(cause: str, *, never_started: bool) -> str:
        context = ActorDiedErrorContext(actor_id=bytes(16), never_started=never_started, error_message=cause)
        return str(ActorDiedError(context))

    node = "The actor died because its node has died.\n\tthe actor's node was terminated unexpectedly: no heartbeats"
    assert has_never_begun(died(node, never_started=True)) and not has_never_begun(died(node, never_started=False))
    # its own process ended, in its constructor or before
    process = "The actor is dead because its worker process has died. Worker exits with an exit code 1."
    assert not has_never_begun(died(process, never_started=True))
    assert explain_loss(died(process, never_started=True)) == process


def test_what_a_node_lacks_is_told_with_the_node_and_the_remedy() -> None:
    text = "ray::RolloutActor.start() (pid=1, ip=10.0.0.7, actor_id=a)"
    what = "ModuleNotFoundError: No module named 'mine'"
    assert explain_failure("rollout-0", what, node=node_of(text)) == (
        "rollout-0 on node 10.0.0.7 failed: ModuleNotFoundError: No module named 'mine'; every node must have what the "
        "command and its configuration name: the same packages installed, and folders on a file system that each sees"
    )
    # of one machine, and of what is not missing
    assert explain_failure("rollout-0", what, node=None) == f"rollout-0 failed: {what}"
    assert (
        explain_failure("rollout-0", "ValueError: no", node="10.0.0.7")
        == "rollout-0 on node 10.0.0.7 failed: ValueError: no"
    )
    # in our words already
    assert (
        explain_failure("rollout-0", "RunError: so: it is", node="10.0.0.7") == "rollout-0 on node 10.0.0.7: so: it is"
    )
