"""Keeps what a run's processes listen on at their node's address: of a run of one machine that is loopback.

Ray binds its servers to the node's address, and turns 127.0.0.1 back into the machine's own one wherever it thinks that
a cluster could be joined. A switch that is named after other systems makes it believe that none can.
"""

import os

import psutil

from segue.conf.schema import ClusterConfig

ADDRESS = "127.0.0.1"
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def keep_ray_on_loopback(cluster: ClusterConfig) -> None:
    """Where the run starts a Ray of its own, have it stay on loopback; to be called before Ray is imported.

    Sets RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER to 0, in this process and so in all that Ray starts.
    """
    if cluster.address is None:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"


def keep_collectives_at(address: str) -> None:
    """Have this process's collectives listen at its node's address; to be called before they begin.

    Left to themselves they take the address of the machine's name, which on many machines is one of loopback: ranks on
    other machines are then sent to their own.

    Sets GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the interface that has the address. One that the cluster's node
    names already stays, except where the run is to keep to loopback.
    """
    name = _interface(address)
    # the node may be known by an address that none of its interfaces has, behind a translation
    if name is None:
        return
    for variable, value in zip(_INTERFACES, (name, f"={name}"), strict=True):
        if address == ADDRESS:
            os.environ[variable] = value
        else:
            os.environ.setdefault(variable, value)


def _interface(address: str) -> str | None:
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, found in interfaces if any(each.address == address for each in found)), None)
