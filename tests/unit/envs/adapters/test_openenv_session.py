"""An OpenEnv server's sessions as episodes: what is asked, what becomes of the answers, who pays for faults."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from spoken_openenv import SpokenOpenEnv, observed, refused, spoken_openenv

from segue.conf.load import load_config
from segue.envs.adapters.openenv_session import OpenEnvSessionEnv
from segue.envs.errors import EnvironmentSetupError, InfrastructureFailure
from segue.envs.tool import ToolCall

# as pydantic declares an action of `openenv`
GUESS = {
    "additionalProperties": False,
    "description": "A guess.",
    "properties": {
        "metadata": {"additionalProperties": True, "title": "Metadata", "type": "object"},
        "number": {"maximum": 15, "minimum": 1, "title": "Number", "type": "integer"},
    },
    "required": ["number"],
    "title": "Guess",
    "type": "object",
}
TOOL_CALL = {
    "properties": {
        "type": {"const": "call_tool", "default": "call_tool", "type": "string"},
        "tool_name": {"type": "string"},
        "arguments": {"additionalProperties": True, "type": "object"},
    },
    "required": ["tool_name"],
    "type": "object",
}


@contextlib.contextmanager
def env_of(server: SpokenOpenEnv, **kwargs: Any) -> Iterator[OpenEnvSessionEnv]:
    env = OpenEnvSessionEnv(url=server.url, **kwargs)
    try:
        yield env
    finally:
        env.close()
        env.close()


def act(env: OpenEnvSessionEnv, number: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
    return env.step(ToolCall(name="act", arguments={"number": number}))


def test_an_episode_is_a_session_whose_rewards_come_to_success() -> None:
    answers = (
        observed({"message": "a number?"}),
        observed({"message": "lower", "tries": 1}, 0.25),
        observed({"message": "lower", "tries": None}),
        observed({"message": "right"}, 0.75, done=True),
    )
    with spoken_openenv(GUESS, *answers) as server:
        given = {"most": 7, "level": 1}
        with env_of(server, reset=given, instructions="Guess it.") as env:
            env.reset(seed=5, options={"level": 2})
            (spec,) = env.tools
            assert spec.parameters == {
                "type": "object",
                "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 15}},
                "required": ["number"],
            }
            assert (spec.name, spec.description) == ("act", "A guess.")
            # several fields stand in lines by name, one alone as it is
            assert act(env, 4)[:3] == ("message: lower\ntries: 1", 0.25, False)
            assert act(env, 99)[4]["invalid_call"] == "act.number must be at most 15, got 99"
            assert act(env, 3)[:3] == ("lower", 0.0, False)
            assert act(env, 2) == ("right", 0.75, True, False, {"reward_terms": {"reward": 0.75}, "is_success": True})
            # the next episode has a session of its own
            assert env.reset(seed=6) == ("a number?", {"system": "Guess it."})
    resets = [asked["data"] for asked in server.asked if asked["type"] == "reset"]
    assert resets == [{"most": 7, "level": 2, "seed": 5}, {"most": 7, "level": 1, "seed": 6}]
    kinds = [(asked["type"], asked.get("data", {}).get("number")) for asked in server.asked]
    assert kinds[:5] == [("reset", None), ("step", 4), ("step", 3), ("step", 2), ("close", None)]


def test_an_episode_that_ends_below_the_return_has_failed() -> None:
    with spoken_openenv(GUESS, observed({}), observed({"message": "no"}, 0.5, done=True)) as server:
        for success_return, is_success in ((0.5, True), (0.75, False)):
            with env_of(server, success_return=success_return) as env:
                env.reset(seed=1)
                assert act(env, 1)[4]["is_success"] is is_success


def test_tools_of_the_environment_itself_are_offered_as_they_are() -> None:
    schema = {"additionalProperties": False, "properties": {"number": {"type": "integer"}}, "type": "object"}
    tools = [{"name": "take", "description": "Takes some.", "input_schema": schema}]
    text = {"content": [{"type": "text", "text": "took 3"}], "structured_content": {"result": 3}, "is_error": False}
    answers = (
        observed({"tools": tools}),
        {
            "type": "observation",
            "data": {"observation": {"metadata": {"task": "empty it"}}, "reward": 0.0, "done": False},
        },
        observed({"tool_name": "take", "result": text, "error": None}, 0.0),
        observed({"tool_name": "take", "result": None, "error": {"error_type": "x", "message": "not so many"}}),
        observed({"tool_name": "take", "result": {**text, "is_error": True}, "error": None}),
        observed({"tool_name": "take", "result": [1, 2], "error": None}, True, done=True),
    )
    with spoken_openenv(TOOL_CALL, *answers) as server, env_of(server) as env:
        assert env.reset(seed=1)[0] == "empty it"
        assert [(spec.name, spec.description) for spec in env.tools] == [("take", "Takes some.")]
        replies = [env.step(ToolCall(name="take", arguments={"number": number})) for number in range(4)]
    assert [reply[0] for reply in replies] == ["took 3", "error: not so many", "error: took 3", "[1, 2]"]
    assert [(reply[1], reply[2]) for reply in replies] == [(0.0, False), (0.0, False), (0.0, False), (1.0, True)]
    assert server.asked[0] == {"type": "step", "data": {"type": "list_tools"}}
    assert server.asked[2]["data"] == {"type": "call_tool", "tool_name": "take", "arguments": {"number": 0}}


def test_what_is_no_action_there_is_an_observation() -> None:
    errors = [{"loc": ["number"], "msg": "must be odd", "input": 2}]
    with (
        spoken_openenv(
            GUESS,
            observed({}),
            refused("VALIDATION_ERROR", "Invalid message", errors=errors),
            observed({"message": "on"}),
        ) as server,
        env_of(server) as env,
    ):
        env.reset(seed=1)
        assert act(env, 2)[0] == "error: number: must be odd"
        assert act(env, 1)[0] == "on"


@pytest.mark.parametrize(
    ("answer", "failure", "words"),
    [
        (refused("EXECUTION_ERROR", "no luck"), RuntimeError, "step failed in the OpenEnv server: no luck"),
        (refused("CAPACITY_REACHED", "3/3 sessions"), InfrastructureFailure, "gives no session: 3/3 sessions"),
        (1011, InfrastructureFailure, "the OpenEnv server at .* is gone: .*1011"),
        (None, RuntimeError, r"did not answer step within 1\.5 s"),
    ],
    ids=["raises", "full", "gone", "hangs"],
)
def test_a_fault_in_a_step_is_put_down_to_whose_it_is(
    answer: dict[str, Any] | int | None, failure: type[Exception], words: str
) -> None:
    answers = [observed({}), *([] if answer is None else [answer])]
    with spoken_openenv(GUESS, *answers) as server, env_of(server, timeout_s=1.5) as env:
        env.reset(seed=1)
        started = time.monotonic()
        with pytest.raises(failure, match=words):
            act(env, 1)
        assert time.monotonic() - started < 10


def test_a_server_that_is_gone_before_an_episode_is_no_fault_of_the_environment() -> None:
    with spoken_openenv(GUESS) as server:
        env = OpenEnvSessionEnv(url=server.url)
    with pytest.raises(InfrastructureFailure, match=r"the OpenEnv server at ws://.* is gone: .*refused"):
        env.reset(seed=1)


def test_a_url_where_no_server_is_found_is_refused_before_anything_starts() -> None:
    with spoken_openenv(None) as server:
        for url, words in (
            ("127.0.0.1:8000", "url must begin with http:// or https://, got '127.0.0.1:8000'"),
            (server.url, f"url must be an OpenEnv server's, got {server.url}: HTTP Error 404"),
        ):
            with pytest.raises(EnvironmentSetupError, match=words):
                OpenEnvSessionEnv(url=url)
    with pytest.raises(EnvironmentSetupError, match=f"no OpenEnv server answers at {server.url}: .*env.kwargs.url"):
        OpenEnvSessionEnv(url=server.url)
    with spoken_openenv(["no schema"]) as server, pytest.raises(EnvironmentSetupError, match="must be a dictionary"):
        OpenEnvSessionEnv(url=server.url)


def test_the_group_names_the_environment() -> None:
    config = load_config(["env=openenv", "env.kwargs.url=http://127.0.0.1:9000"]).env
    assert (config.id, config.kwargs) == (
        "segue.envs.adapters.openenv_session:OpenEnv-v0",
        {"url": "http://127.0.0.1:9000"},
    )
