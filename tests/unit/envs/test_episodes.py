"""The episodes of one process: what an environment that failed leaves behind."""

from pathlib import Path
from typing import Any

import pytest

from segue.conf.schema import EnvConfig
from segue.envs.episodes import EpisodeTable
from segue.envs.errors import EnvironmentFailure
from segue.envs.factory import EnvFactory
from segue.envs.tool import ToolCall, ToolSpec, object_schema

CONFIG = EnvConfig(id="faulty_envs:Faulty-v0", import_folder=str(Path(__file__).parent))
SPEC = ToolSpec(name="say", description="", parameters=object_schema({}))


def test_an_environment_that_failed_is_closed_and_never_used_again() -> None:
    table = EpisodeTable(EnvFactory(CONFIG), 100)
    table.reset("good", 1, None)
    closed = type(table._episodes["good"].env).closed
    closed.clear()
    table.reset("step", 2, None)
    with pytest.raises(EnvironmentFailure, match="broken inside"):
        table.step("step", ToolCall(name="fail"))
    table.reset("demonstrator", 3, None)
    with pytest.raises(EnvironmentFailure, match="has no demonstrator"):
        table.expert("demonstrator", "expert")
    table.reset("done", 4, None)
    table.close("done")
    # the one that was free begins anew, and fails with the value of the episode before
    with pytest.raises(EnvironmentFailure, match="no such task"):
        table.reset("reset", 5, {"fault": "raise"})
    # each by its value, though closing raises, too; the names are free, and the good one goes on
    assert closed == [2, 3, 4]
    for name in ("step", "demonstrator", "reset"):
        table.reset(name, 6, None)
    assert table.step("good", ToolCall(name="add", arguments={"amount": 1})).observation == "2"


def test_a_failed_sql_episode_gives_its_database_back() -> None:
    factory = EnvFactory(EnvConfig())
    table = EpisodeTable(factory, 100)
    table.reset("a", 1, None)
    with pytest.raises(EnvironmentFailure, match="skill must be"):
        table.expert("a", "novice")
    assert not factory._executor._databases  # type: ignore[union-attr]


def call(**changes: Any) -> dict[str, Any]:
    return {"name": "finish", "arguments": {}} | changes


@pytest.mark.parametrize(
    "turn",
    [
        None,
        "finish",
        {"calls": []},
        {"response": "", "calls": [], "think": ""},
        {"response": None, "calls": []},
        {"response": "", "calls": call()},
        {"response": "", "calls": ["finish"]},
        {"response": "", "calls": [call(name=None)]},
        {"response": "", "calls": [call(arguments=[1])]},
        {"response": "", "calls": [call(arguments={1: 2})]},
        {"response": "", "calls": [{"name": "finish"}]},
    ],
)
def test_a_demonstrators_turn_of_another_form_ends_its_episode_alone(
    turn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = EpisodeTable(EnvFactory(CONFIG), 100)
    table.reset("good", 1, None)
    table.reset("bad", 2, None)
    monkeypatch.setattr(table._episodes["bad"].env, "expert", lambda skill, rng: turn, raising=False)
    with pytest.raises(EnvironmentFailure, match=r'demonstrator of episode bad: TypeError: expert must return \{"resp'):
        table.expert("bad", "expert")
    assert table.step("good", ToolCall(name="add", arguments={"amount": 1})).observation == "2"


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        (None, "tools must be a tuple of ToolSpec, got None"),
        ([{"name": "x"}], "tools must be a tuple of ToolSpec, got "),
        ([SPEC, SPEC], "tools must have different names, got \\['say', 'say'\\]"),
    ],
)
def test_tools_of_another_form_are_named_at_the_beginning(
    tools: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = EpisodeTable(EnvFactory(CONFIG), 100)
    table.reset("a", 1, None)
    env = table._episodes["a"].env
    table.close("a")
    monkeypatch.setattr(env, "tools", tools)
    with pytest.raises(EnvironmentFailure, match=f"reset of episode b: .*Error: {message}"):
        table.reset("b", 1, None)
