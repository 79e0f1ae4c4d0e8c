"""Keeps a run of one machine off the network: whatever its processes listen on is bound to loopback.

Ray binds its servers to the node's address, and turns 127.0.0.1 back into the machine's own one wherever it thinks that
a cluster could be joined. A switch that is named after other systems makes it believe that none can.
"""

import os

import psutil

from segue.conf.schema import ClusterConfig

ADDRESS = "127.0.0.1"


def keep_ray_on_loopback(cluster: ClusterConfig) -> None:
    """Where the run starts a Ray of its own, have it stay on loopback; to be called before Ray is imported.

    Sets RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER to 0, in this process and so in all that Ray starts.
    """
    if cluster.address is None:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"


def collectives_environment(cluster: ClusterConfig) -> dict[str, str]:
    """Variables of an actor's process: of a run of one machine, collectives run over loopback too.

    GLOO_SOCKET_IFNAME: the interface that has `ADDRESS`.
    """
    if cluster.address is not None:
        return {}
    return {"GLOO_SOCKET_IFNAME": _interface()}


def _interface() -> str:
    interfaces = psutil.net_if_addrs().items()
    return next(name for name, addresses in interfaces if any(address.address == ADDRESS for address in addresses))
