"""Ray itself: started or joined for a run, asked whether it is still there."""

import os
import re
import socket
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import psutil
import ray
from ray._private import state
from ray._private.services import canonicalize_bootstrap_address
from ray._private.worker import global_worker
from ray._raylet import Config
from ray.exceptions import AuthenticationError
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from segue.actors.errors import RunError
from segue.actors.loopback import ADDRESS
from segue.actors.provenance import program
from segue.actors.ray_errors import explain_version_clash
from segue.actors.ray_files import ray_folder
from segue.conf.environment import forget_authentication_mode, has_token_authentication
from segue.conf.placement import GPU
from segue.conf.schema import ClusterConfig

# for Ray to say which nodes are alive
_ANSWER_S = 15.0
# the cluster's directory, and the node's own server
_SERVERS = ("gcs_server", "raylet")
# for a cluster's server to say that it is there
_CONNECT_S = 5.0
_ADDRESS = re.compile(r"cluster at (\S+:\d+)")
# any call of the server that tells of the cluster
_CALL = "/ray.rpc.NodeInfoGcsService/CheckAlive"


def start_ray(cluster: ClusterConfig, *, namespace: str, num_actors: int, num_gpus: int) -> str | None:
    """Start a Ray of the run's own, or join the cluster that the configuration names.

    Args:
        num_actors, num_gpus: that a Ray of the run's own is to have room for.
    Returns:
        Where the dashboard is and who may read it, in words; None where there is none.
    Raises:
        RunError: it did not start, or there is no such cluster.
    """
    if cluster.address is None:
        forget_authentication_mode()
    else:
        _check_address(cluster.address)
    try:
        context = ray.init(**_init_arguments(cluster, namespace, num_actors, num_gpus))
    # Ray's own errors have no common class
    except Exception as error:
        raise RunError(_explain_no_ray(cluster, error)) from error
    return _describe_dashboard(context.dashboard_url, cluster)


def reserve_gpus(gpu_of: Mapping[str, int], timeout_s: float) -> dict[str, Any]:
    """Reserve GPUs of a Ray of the run's own, so that each actor can be sent to one.

    Ray alone would fill one GPU with actors that ask for parts before it takes the next.

    Args:
        gpu_of: number of an actor's GPU by the actor's name.
        timeout_s: for Ray to grant them.
    Returns:
        Ray's scheduling strategy of each actor.
    """
    if not gpu_of:
        return {}
    num_actors = Counter(gpu_of.values())
    numbers = sorted(num_actors)
    group = placement_group([{GPU: 1, "CPU": num_actors[number]} for number in numbers])
    if not group.wait(timeout_s):
        raise RunError(f"Ray on this machine did not grant {len(numbers)} GPUs in {timeout_s:.0f} s")
    return {
        name: PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=numbers.index(gpu))
        for name, gpu in gpu_of.items()
    }


def own_session() -> Path:
    """Folder of the sockets and logs of the Ray that this process has started."""
    return Path(global_worker.node.get_session_dir_path())


def own_servers() -> list[psutil.Process]:
    """Ray's servers that this process has started and that live; none where it joined a cluster."""
    return [child for child in psutil.Process().children() if child.name() in _SERVERS and not has_died(child)]


def has_died(server: psutil.Process) -> bool:
    """Whether a server of `own_servers` is gone: seen at once, while Ray itself takes up to a minute to notice."""
    try:
        return not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def is_ray_alive() -> bool:
    """Whether Ray still counts this process's node among the living; False also where it gives no answer."""
    nodes: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: nodes.extend(ray.nodes()), daemon=True)
    asking.start()
    asking.join(_ANSWER_S)
    own = ray.get_runtime_context().get_node_id()
    return any(node["NodeID"] == own and node["Alive"] for node in nodes)


def lost_node_noticed_s() -> float:
    """Seconds that the joined cluster takes to notice that a node is silent: so many of its health checks expire."""
    check_ms = Config.health_check_period_ms() + Config.health_check_timeout_ms()
    return (Config.health_check_initial_delay_ms() + Config.health_check_failure_threshold() * check_ms) / 1000


def has_place(actor: Any) -> bool:
    """Whether the cluster has a process for an actor, be it at its beginning still.

    Args:
        actor: Ray's handle.
    """
    # one that was asked for a moment ago may not be in the table yet
    address = state.actors(actor._actor_id.hex()).get("Address", {})
    return bool(address.get("Port"))


def explain_no_place(demand: dict[str, float]) -> str | None:
    """Why the cluster may have no place for an actor; None where it has room.

    Args:
        demand: what the actor, which has no process yet, asks one node for, by Ray's names.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return describe_lack(demand, nodes, list(state.available_resources_per_node().values()))


def describe_lack(
    demand: dict[str, float], nodes: Sequence[Mapping[str, float]], free: Sequence[Mapping[str, float]]
) -> str | None:
    """Why no node has room for a demand; None where one has.

    Args:
        nodes: what each node has.
        free: what of it nobody has taken, in any order.
    Example:
        "no node of the cluster has CPU 1, GPU 2 free; `ray status` shows more", where two nodes have a GPU free each
    """

    def has_room(node: Mapping[str, float]) -> bool:
        return all(node.get(kind, 0) >= amount for kind, amount in demand.items())

    listed = ", ".join(f"{kind} {amount:g}" for kind, amount in demand.items())
    if not any(map(has_room, nodes)):
        return f"no node of the cluster has {listed}"
    return None if any(map(has_room, free)) else f"no node of the cluster has {listed} free; `ray status` shows more"


def _check_address(address: str) -> None:
    """Hold an address against what is there, as Ray would for minutes; for `auto`, where Ray would look.

    Raises:
        RunError: nothing is there, or it asks for a token and this process has none.
    """
    if "://" in address:
        raise RunError(
            f"cluster.address must be auto or host:port, got {address}; run the command on a node of the cluster"
        )
    found = _found_address() if address == "auto" else address
    place = _place(found)
    if place is None:
        return
    try:
        socket.create_connection(place, timeout=_CONNECT_S).close()
    except OSError as error:
        raise RunError(f"cluster.address must be that of a cluster, got {found}, where nothing is: {error}") from error
    # for `auto` Ray takes a token that it finds
    if address != "auto" and not has_token_authentication() and _asks_for_token(found):
        raise RunError(_token_remedy(found))


def _found_address() -> str:
    """What Ray takes `auto` for: RAY_ADDRESS, else the last cluster started here, which may be gone; else `auto`.

    Raises:
        RunError: RAY_ADDRESS is no cluster's that a run can join.
    """
    rule = "RAY_ADDRESS must be host:port, which cluster.address=auto joins"
    try:
        found = canonicalize_bootstrap_address("auto")
    except ConnectionError:
        return "auto"
    except ValueError as error:
        raise RunError(f"{rule}, got another: {error}") from error
    if found is None:
        raise RunError(f"{rule}, got local")
    return str(found)


def _place(address: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(f"//{address}")
        return None if parts.hostname is None or parts.port is None else (parts.hostname, parts.port)
    except ValueError:
        return None


def _asks_for_token(address: str) -> bool:
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(_CALL)(b"", timeout=_CONNECT_S)
        except grpc.RpcError as error:
            return error.code() is grpc.StatusCode.UNAUTHENTICATED
    return False


def _token_remedy(address: str) -> str:
    return (
        f"the cluster at {address} asks for a token, and takes none from here; export RAY_AUTH_MODE=token, and have "
        "its token, which `ray get-auth-token` prints on its head node, in ~/.ray/auth_token or RAY_AUTH_TOKEN"
    )


def _init_arguments(cluster: ClusterConfig, namespace: str, num_actors: int, num_gpus: int) -> dict[str, Any]:
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
        "num_gpus": num_gpus,
        "include_dashboard": cluster.dashboard,
        "dashboard_host": ADDRESS,
        # Ray's own servers bind to the node's address; see `loopback.py`
        "_node_ip_address": ADDRESS,
    }


def _explain_no_ray(cluster: ClusterConfig, error: Exception) -> str:
    clash = explain_version_clash(error)
    if clash is not None:
        return clash
    joined = _ADDRESS.search(str(error))
    if joined is not None and _asks_for_token(joined.group(1)):
        return _token_remedy(joined.group(1))
    if isinstance(error, AuthenticationError):
        return _token_remedy(str(cluster.address))
    first_line = next(iter(str(error).strip().splitlines()), "no reason given").rstrip(".")
    logs = ray_folder() / "session_latest" / "logs"
    remedy = f"free memory, disk or processes, then run the command again; Ray's own words are in {logs}"
    if cluster.address is not None:
        remedy = (
            f"is a cluster up at {cluster.address}, and this machine one of its nodes? "
            "leave cluster.address out to start one"
        )
    return f"Ray did not start: {type(error).__name__}: {first_line}; {remedy}"


def _describe_dashboard(url: str | None, cluster: ClusterConfig) -> str | None:
    if not url:
        return None
    if cluster.address is not None:
        return f"http://{url} (of the cluster that the run joined)"
    if has_token_authentication():
        return f"http://{url} (asks for a token: `{program('ray')} get-auth-token` prints it)"
    return f"http://{url} (open to every user of this machine)"
