"""Where collectives listen; that they do is in tests/e2e/test_train.py and tests/e2e/test_cluster.py."""

import os
import socket
from ipaddress import ip_address

import psutil
import pytest

from segue.actors.loopback import ADDRESS, keep_collectives_at

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
# every address of this machine and its interface; loopback is always one
INTERFACES = {
    each.address: name
    for name, found in psutil.net_if_addrs().items()
    for each in found
    if each.family is socket.AF_INET
}


def keep_at(address: str, before: str | None, monkeypatch: pytest.MonkeyPatch) -> tuple[str | None, ...]:
    """What the variables are afterwards."""
    for name in VARIABLES:
        # set first, so that what is set here is taken back
        monkeypatch.setenv(name, before or "")
        if before is None:
            monkeypatch.delenv(name)
    keep_collectives_at(address)
    return tuple(os.environ.get(name) for name in VARIABLES)


@pytest.mark.parametrize("address", INTERFACES)
def test_collectives_take_the_interface_of_their_nodes_address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = INTERFACES[address]
    assert keep_at(address, None, monkeypatch) == (name, f"={name}")
    # what a cluster's node names stays, but a run that keeps to loopback keeps to it
    stays = not ip_address(address).is_loopback
    assert keep_at(address, "named", monkeypatch) == (("named", "named") if stays else (name, f"={name}"))


def test_loopback_is_an_interface() -> None:
    assert ADDRESS in INTERFACES


def test_an_address_that_no_interface_has_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert keep_at("203.0.113.1", None, monkeypatch) == (None, None)
