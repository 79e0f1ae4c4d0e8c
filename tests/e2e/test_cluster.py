"""Runs on a Ray cluster of several nodes: all on this machine, each with a server, a store and processes of its own.

Covered: where actors run, what is left behind, nodes that are lost mid-run, weights that cross to a node once, what a
node that lacks something says. Not covered: networks, file systems that are not shared (unit tests), other versions.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from run_cases import SMALL, TIMEOUT_S, has_steps, ledger, listeners, read_json, start, step_lines, wait_until

from segue.actors.recorder import read_faults
from segue.conf.environment import driver_environment

PLAYERS = {"rollout_node": 2}
TRAINERS = {"learner_node": 2}
NODES = {"players-0": PLAYERS, "players-1": PLAYERS, "trainers-0": TRAINERS, "trainers-1": TRAINERS}
WEIGHTS_BYTES = 16 * 2**20


class Cluster:
    """The cluster of `cluster_nodes.py`, asked from outside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address: str = self.ask("address")

    def ask(self, do: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def alive(self) -> dict[str, dict[str, Any]]:
        """Living actors by name."""
        return {actor["name"]: actor for actor in self.ask("actors") if actor["is_alive"]}

    def overrides(self, *more: str) -> list[str]:
        """A small run that plays on the one kind of node and trains on the other."""
        placed = ["cluster.rollout_resources={rollout_node: 1}", "cluster.learner_resources={learner_node: 1}"]
        return [*SMALL, "cluster.rollout_actors=2", f"cluster.address={self.address}", *placed, *more]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    command = [sys.executable, "-P", str(Path(__file__).parent / "cluster_nodes.py")]
    command += [f"{name}={json.dumps(resources)}" for name, resources in NODES.items()]
    # the paths of sockets are short
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="c", dir="/tmp") as folder:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        environment = {**os.environ, **driver_environment()}
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None
        yield Cluster(process)
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def refused(*overrides: str) -> str:
    """What a run that cannot start says last."""
    process = start("train", *overrides)
    text, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 2, text
    return text.strip().splitlines()[-1]


def test_actors_run_where_they_are_told_to_and_leave_the_cluster_as_it_was(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {actor["id"] for actor in cluster.ask("actors")}
    # a rank takes a whole node's share, so that their collectives go from node to node
    ranks = ("cluster.learner_ranks=2", "cluster.learner_resources={learner_node: 2}")
    # the one that was started last on this machine, with the token that is found
    monkeypatch.delenv("RAY_AUTH_MODE")
    changed = (*ranks, "cluster.address=auto", "train.steps=6", f"run.dir={tmp_path / 'run'}")
    process = start("train", *cluster.overrides(*changed))
    wait_until(lambda: has_steps(tmp_path / "run", 1))
    address = cluster.ask("nodes")["trainers-0"]
    pids = [actor["pid"] for name, actor in cluster.alive().items() if name.startswith("learner")]
    listening = {found for pid in pids for found in listeners(psutil.Process(pid))}
    text, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, text
    # Ray's own servers are at every address
    assert address in listening and listening <= {address, "0.0.0.0", "::"}
    actors = [actor for actor in cluster.ask("actors") if actor["id"] not in before]
    nodes = {actor["name"]: actor["node"] for actor in actors}
    assert {nodes["rollout-0"], nodes["rollout-1"]} == {"players-0", "players-1"}
    assert {nodes["learner-0"], nodes["learner-1"]} == {"trainers-0", "trainers-1"}
    summary = read_json(tmp_path / "run" / "summary.json")
    assert (summary["status"], summary["steps"], summary["num_groups"], summary["faults"]) == ("finished", 6, 12, [])
    assert {entry["record"]["made_by"] for entry in ledger(tmp_path / "run")} == {"rollout-0", "rollout-1"}
    assert not any(actor["is_alive"] for actor in actors) and len(nodes) == 4
    assert cluster.ask("nodes").keys() == {"head", *NODES}


def test_weights_cross_to_a_node_once_and_its_readers_share_the_pages(cluster: Cluster) -> None:
    readers = ["players-0", "players-0", "players-1"]
    shared = cluster.ask("share_weights", source="trainers-0", readers=readers, size_bytes=WEIGHTS_BYTES)
    first, second, other = shared["places"]
    # the same bytes of the same file of shared memory, in two processes; another node has a file of its own
    assert first == second and other[0] != first[0]
    for size_bytes in shared["bytes"].values():
        assert WEIGHTS_BYTES <= size_bytes < 1.01 * WEIGHTS_BYTES


def test_a_cluster_that_asks_for_a_token_says_so_at_once(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE")
    told = refused(*cluster.overrides(f"run.dir={tmp_path / 'run'}"))
    assert told.startswith(
        f"segue: the cluster at {cluster.address} asks for a token, and takes none from here; export "
    )


def test_a_place_that_no_node_has_is_named(cluster: Cluster, tmp_path: Path) -> None:
    wanted = ("cluster.learner_resources={learner_node: 3}", "cluster.start_timeout_s=2")
    told = refused(*cluster.overrides(*wanted, f"run.dir={tmp_path / 'run'}"))
    assert told == (
        "segue: the controller waited 2 s for the learner to start, without an answer from learner-0; no node of the "
        "cluster has CPU 1, learner_node 3"
    )


def test_a_module_that_other_nodes_lack_is_named_with_the_node(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the cluster was started without it
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "unit" / "envs"))
    told = refused(*cluster.overrides("env.id=faulty_envs:Faulty-v0", f"run.dir={tmp_path / 'run'}"))
    node = cluster.ask("nodes")["players-0"]
    assert told.startswith("segue: rollout-")
    assert f" on node {node} failed: EnvironmentSetupError: env.id=faulty_envs:Faulty-v0 names module" in told
    assert "; every node must have what the command and its configuration name: " in told


def test_a_run_goes_on_where_nodes_are_lost(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start("train", *cluster.overrides("cluster.learner_ranks=2", "train.steps=1000", f"run.dir={folder}"))
    try:
        lose_nodes(cluster, folder)
        process.send_signal(signal.SIGTERM)
        text, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 130, text
    # what Ray would say of it fills screens
    assert "(raylet)" not in text
    faults = read_faults(folder / "metrics.jsonl")
    assert {fault["who"] for fault in faults} == {"rollout-0", "learner"} and "node" in faults[0]["what"]
    summary = read_json(folder / "summary.json")
    assert summary["faults"] == faults
    # each step that counts trained its own batch, once
    assert summary["num_groups"] == 2 * summary["steps"]
    assert all(len(entry["uses"]) <= 1 for entry in ledger(folder))
    assert cluster.alive() == {}


def lose_nodes(cluster: Cluster, folder: Path) -> None:
    """Kill the node of a rollout actor, then that of a learner's rank, each with steps before and after."""
    wait_until(lambda: has_steps(folder, 2))
    first = cluster.alive()
    cluster.ask("kill", node=first["rollout-0"]["node"])
    # the other node has room for both
    wait_until(lambda: cluster.alive().get("rollout-0", first["rollout-0"])["id"] != first["rollout-0"]["id"])
    num_steps = len(step_lines(folder))
    wait_until(lambda: has_steps(folder, num_steps + 2))
    second = cluster.alive()
    assert second["rollout-0"]["node"] == second["rollout-1"]["node"] == first["rollout-1"]["node"]
    assert second["rollout-1"]["id"] == first["rollout-1"]["id"]
    lost = second["learner-0"]["node"]
    cluster.ask("kill", node=lost)
    wait_until(lambda: any(fault["who"] == "learner" for fault in read_faults(folder / "metrics.jsonl")))
    num_steps = len(step_lines(folder))
    wait_until(lambda: has_steps(folder, num_steps + 2))
    third = cluster.alive()
    # all ranks are new, on the node that is left; rollout is not
    left = {"trainers-0", "trainers-1"} - {lost}
    assert {third[name]["node"] for name in ("learner-0", "learner-1")} == left
    assert [third[name]["id"] for name in ("rollout-0", "rollout-1")] == [
        second[name]["id"] for name in ("rollout-0", "rollout-1")
    ]
