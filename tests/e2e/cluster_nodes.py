"""A Ray cluster of several nodes on this machine, for the tests: answers one command a line, in JSON, until its input
ends.

Usage: cluster_nodes.py <node>=<JSON of its resources> …, with `driver_environment` in its own.

    {"do": "address"}                       where to join it
    {"do": "nodes"}                         the living: name to address
    {"do": "kill", "node": name}            all processes of a node at once, as where its machine is gone
    {"do": "actors"}                        every actor that there was: id, name, node, process, whether it lives
    {"do": "share_weights", ...}            see `share_weights`
"""

import json
import os
import sys
from typing import Any

import numpy as np
import ray
from ray._private import internal_api, state
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from segue.actors.weight_channel import WeightTicket, get_weights, put_weights
from segue.model.weights import WeightUpdate
from segue.rollout.trajectory import PolicyVersion

# a lost node is noticed in 3 s instead of 20; no processes that nobody asked for
_SYSTEM = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
    "prestart_worker_first_driver": False,
}
_STORE_BYTES = 100 * 2**20


class Publisher:
    """Publishes weights as a learner's rank does."""

    def put(self, size_bytes: int) -> WeightTicket:
        return put_weights(WeightUpdate(manifest=(), data=np.ones(size_bytes, np.uint8)), PolicyVersion(0, 0))


class Reader:
    """Takes weights up as a rollout actor does."""

    async def take(self, ticket: WeightTicket) -> tuple[int, int]:
        """Where the weights lie: the file that is mapped, by its number, and the place in it."""
        self._update = await get_weights(ticket)
        address = self._update.data.ctypes.data
        with open("/proc/self/maps") as maps:
            for line in maps:
                bounds, _, offset, _, inode, *_ = line.split()
                start, end = (int(bound, 16) for bound in bounds.split("-"))
                if start <= address < end:
                    return int(inode), int(offset, 16) + address - start
        raise AssertionError("an address that nothing is mapped at")


class Nodes:
    """The cluster and its nodes by name."""

    def __init__(self, resources: dict[str, dict[str, float]]) -> None:
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": _SYSTEM}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes = {
            name: self._cluster.add_node(num_cpus=2, resources=kinds, object_store_memory=_STORE_BYTES)
            for name, kinds in resources.items()
        }
        self._names = {node.node_id: name for name, node in self._nodes.items()}
        ray.init(address=self._cluster.address, namespace="watch", log_to_driver=False, logging_level="ERROR")

    def address(self) -> str:
        return self._cluster.address

    def nodes(self) -> dict[str, str]:
        return {self._names.get(n["NodeID"], "head"): n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"]}

    def kill(self, node: str) -> None:
        self._cluster.remove_node(self._nodes.pop(node), allow_graceful=False)

    def actors(self) -> list[dict[str, Any]]:
        return [
            {
                "id": actor["ActorID"],
                "name": actor["Name"],
                "node": self._names.get(actor["Address"]["NodeID"]),
                "pid": actor["Pid"],
                "is_alive": actor["State"] == "ALIVE",
            }
            for actor in state.actors().values()
        ]

    def share_weights(self, source: str, readers: list[str], size_bytes: int) -> dict[str, Any]:
        """Publish weights on one node and have them read on others, by one reader for each time that a node is named.

        Returns:
            For each reader, where it has them; and for each node, how many bytes its store took in.
        """
        publisher = self._actor(Publisher, source)
        ticket = ray.get(publisher.put.remote(size_bytes))
        before = {node: self._bytes_taken_in(node) for node in {*readers}}
        actors = [self._actor(Reader, node) for node in readers]
        places = ray.get([actor.take.remote(ticket) for actor in actors])
        after = {node: self._bytes_taken_in(node) for node in before}
        return {"places": places, "bytes": {node: after[node] - before[node] for node in before}}

    def stop(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()

    def _actor(self, kind: type, node: str) -> Any:
        strategy = NodeAffinitySchedulingStrategy(self._nodes[node].node_id, soft=False)
        return ray.remote(kind).options(num_cpus=0, scheduling_strategy=strategy).remote()

    def _bytes_taken_in(self, node: str) -> int:
        """Of all objects so far: what was put there, and what came from other nodes."""
        (entry,) = (n for n in ray.nodes() if n["NodeID"] == self._nodes[node].node_id)
        stats = internal_api.node_stats(entry["NodeManagerAddress"], entry["NodeManagerPort"]).store_stats
        return stats.cumulative_created_bytes


def main(nodes: list[str]) -> None:
    cluster = Nodes({name: json.loads(resources) for name, _, resources in (text.partition("=") for text in nodes)})
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(getattr(cluster, command.pop("do"))(**command)), flush=True)
    cluster.stop()


if __name__ == "__main__":
    # workers put this folder first on their path
    os.chdir("/")
    main(sys.argv[1:])
