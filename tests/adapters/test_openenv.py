"""Servers of the real `openenv` package, each a process of its own, hold the environments' contract."""

from collections.abc import Callable
from random import Random

import pytest

from segue.conf.schema import EnvConfig
from segue.envs.adapters.openenv_session import OpenEnvSessionEnv
from segue.envs.check_report import Finding
from segue.envs.errors import InfrastructureFailure
from segue.envs.tool import ToolCall

pytestmark = pytest.mark.adapters
Checked = Callable[[EnvConfig], dict[str, Finding]]
ENV_ID = "segue.envs.adapters.openenv_session:OpenEnv-v0"


@pytest.mark.parametrize("name", ["guess", "store"])
def test_servers_keep_the_contract(name: str, openenv_url: Callable[[str], str], checked: Checked) -> None:
    findings = checked(EnvConfig(id=ENV_ID, kwargs={"url": openenv_url(name)}))
    # an arbitrary policy may come to no end of the store
    assert set(findings) <= {"demonstrator", "ends", "success"}, findings


def test_the_number_of_a_seed_is_found_by_halving(openenv_url: Callable[[str], str]) -> None:
    env = OpenEnvSessionEnv(url=openenv_url("guess"), instructions="Guess.")
    for seed in range(4):
        truth = Random(seed).randint(1, 7)
        assert env.reset(seed=seed, options={"most": 7}) == ("a number from 1 to 7", {"system": "Guess."})
        low, high, reply = 1, 7, ("", 0.0, False, False, {})
        while not reply[2]:
            middle = (low + high) // 2
            reply = env.step(ToolCall(name="act", arguments={"number": middle}))
            low, high = (middle + 1, high) if reply[0] == "higher" else (low, middle - 1)
        assert (reply[0], reply[1], middle) == ("right", 1.0, truth)
        assert reply[4]["is_success"] is True


def test_tools_inside_of_a_server_are_ours(openenv_url: Callable[[str], str]) -> None:
    env = OpenEnvSessionEnv(url=openenv_url("store"))
    truth = Random(1).randint(1, 9)
    assert env.reset(seed=1)[0] == "empty the store"
    assert [spec.name for spec in env.tools] == ["count", "take"]
    calls = [("count", {}), ("take", {"number": truth + 1}), ("take", {"number": truth})]
    replies = [env.step(ToolCall(name=name, arguments=arguments)) for name, arguments in calls]
    assert replies[0][0] == str(truth)
    assert replies[1][0].startswith("error: ") and "not so many" in replies[1][0]
    assert replies[2][:3] == (f"took {truth}", 1.0, True) and replies[2][4]["is_success"] is True


def test_an_environment_that_raises_and_a_server_that_is_full_are_told_apart(openenv_url: Callable[[str], str]) -> None:
    url = openenv_url("guess")
    env = OpenEnvSessionEnv(url=url)
    env.reset(seed=1, options={"unlucky": 3})
    with pytest.raises(RuntimeError, match="step failed in the OpenEnv server: no luck"):
        env.step(ToolCall(name="act", arguments={"number": 3}))
    env.close()
    # the server holds three sessions; each that has closed makes room at once
    envs = [OpenEnvSessionEnv(url=url) for _ in range(4)]
    for each in envs[:3]:
        each.reset(seed=1)
    with pytest.raises(InfrastructureFailure, match=r"gives no session: .*capacity"):
        envs[3].reset(seed=1)
    envs[3].close()
    envs[0].close()
    assert envs[3].reset(seed=1)[0] == "a number from 1 to 15"
    for each in envs:
        each.close()
