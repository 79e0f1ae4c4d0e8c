"""Tools of a real MCP server (`store_server.py`) in episodes, and who pays for its faults."""

import asyncio
import contextlib
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from segue.conf.load import load_config
from segue.conf.schema import EnvConfig
from segue.envs.adapters.mcp_tools import McpToolsEnv
from segue.envs.client import EnvClient
from segue.envs.errors import EnvironmentSetupError, InfrastructureFailure, RestoreFailure
from segue.envs.tool import ToolCall

FOLDER = Path(__file__).parent
COMMAND = [sys.executable, "-P", str(FOLDER / "store_server.py")]
PLAIN = [sys.executable, "-P", str(FOLDER / "plain_server.py")]
# a busy machine takes its time to start a server
KWARGS: dict[str, Any] = {"command": COMMAND, "task": "store_tasks:how_many", "timeout_s": 25.0}
# of seed 1: what `random.Random(1).randint(1, 9)` draws
TRUTH = 3


@pytest.fixture(autouse=True)
def tasks_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)


def servers() -> list[psutil.Process]:
    """Those that this process runs."""
    return [child for child in psutil.Process().children() if COMMAND[-1] in child.cmdline()]


@contextlib.contextmanager
def env_of(**kwargs: Any) -> Iterator[McpToolsEnv]:
    """An environment; neither a server nor a thread of it is left."""
    before = set(threading.enumerate())
    env = McpToolsEnv(**{**KWARGS, **kwargs})
    try:
        yield env
    finally:
        env.close()
        env.close()
    assert set(threading.enumerate()) == before
    assert servers() == []


def test_an_episode_of_a_servers_tools_is_judged_by_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIVEN", "yes")
    monkeypatch.setenv("KEPT", "secret")
    with env_of(environment=["GIVEN"]) as env:

        def step(tool: str, **arguments: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
            return env.step(ToolCall(name=tool, arguments=arguments))

        assert env.reset(seed=1) == ("how many mint?", {"truth": TRUTH, "system": ""})
        assert [spec.name for spec in env.tools] == ["count", "take", "report", "variable", "processes", "answer"]
        # default, title and null are gone; what must be given is what has no default
        assert env.tools[1].parameters == {
            "type": "object",
            "properties": {"item": {"type": "string"}, "number": {"type": "integer"}, "why": {"type": "string"}},
            "required": ["item"],
        }
        assert env.tools[1].description == "Takes some of an item."
        assert step("count", item="mint")[:2] == (str(TRUTH), 0.1)
        assert step("count", item="lily")[:2] == ("2", 0.0)
        # the tool raised: the policy reads it, and the episode goes on
        observation, *_, info = step("count", item="rose")
        assert observation.startswith("error: ") and "rose" in observation and info["is_error"] is True
        # ours: the server never hears of it
        assert step("take", item="mint", number="two")[4]["invalid_call"].startswith(
            "take.number must be of type integer"
        )
        assert step("take", item="mint", number=2)[0] == "took 2 mint"
        assert step("report", form="short")[0] == f"mint={TRUTH - 2} lily=2"
        assert step("variable", name="GIVEN")[0] == "yes"
        assert step("variable", name="KEPT")[0] == "none"
        assert step("answer", text=str(TRUTH)) == (
            "done",
            1.0,
            True,
            False,
            {"reward_terms": {"success": 1.0}, "is_success": True},
        )
        # the server has ended with the episode, and the next one has its own
        assert servers() == []
        assert env.reset(seed=1, options={"more": 10})[1]["truth"] == TRUTH + 10
        assert step("report", form="short")[0] == f"mint={TRUTH + 10} lily=2"
        assert step("answer", text=str(TRUTH))[1:3] == (0.0, True)


def test_what_is_no_text_is_said_in_words() -> None:
    with env_of(command=PLAIN) as env:
        env.reset(seed=1)
        assert [(spec.name, spec.description) for spec in env.tools[:2]] == [("fail", ""), ("other", "")]
        for how, observation in (
            ("picture", "[image, not shown]"),
            ("value", "2"),
            ("refuse", "error: not so"),
        ):
            assert env.step(ToolCall(name="fail", arguments={"how": how}))[0] == observation


def test_a_server_that_hangs_or_ends_in_a_call_fails_the_episode_in_time() -> None:
    with env_of(command=PLAIN, timeout_s=3.0, tools=["fail"]) as env:
        for how, words in (("hang", "timed out"), ("exit", "Connection closed")):
            env.reset(seed=1)
            assert [spec.name for spec in env.tools] == ["fail", "answer"]
            started = time.monotonic()
            with pytest.raises(RuntimeError, match=f"the server failed in fail: .*{words}"):
                env.step(ToolCall(name="fail", arguments={"how": how}))
            assert time.monotonic() - started < 10


def test_a_server_that_does_not_begin_is_no_fault_of_the_policy(capfd: pytest.CaptureFixture[str]) -> None:
    for code, timeout_s, words in (
        ("raise SystemExit(3)", 25.0, "Connection closed$"),
        ("import no_such", 25.0, r"Connection closed; it said: .* \| ModuleNotFoundError: No module named 'no_such'$"),
        ("import sys\nfor line in sys.stdin: pass", 0.5, "it said nothing for 0.5 s$"),
    ):
        words = f"the MCP server .* did not begin: {words}"
        command = [sys.executable, "-c", code]
        with env_of(command=command, timeout_s=timeout_s) as env, pytest.raises(InfrastructureFailure, match=words):
            env.reset(seed=1)
    # all of what it said
    assert capfd.readouterr().err.count("Traceback") == 1


def test_a_server_ends_with_its_worker_however_that_ends() -> None:
    config = EnvConfig(id="segue.envs.adapters.mcp_tools:McpTools-v0", kwargs=KWARGS, import_folder=str(FOLDER))

    async def scenario() -> psutil.Process:
        client = EnvClient(config, 1)
        await client.start()
        try:
            await client.reset("a", 1, None)
            reply = await client.step("a", ToolCall(name="processes"))
            server, worker = (psutil.Process(int(pid)) for pid in reply.observation.split())
            assert COMMAND[-1] in server.cmdline()
            worker.kill()
            # the episode is begun anew, with a new server: what it said of its process is not what it said before
            with pytest.raises(RestoreFailure, match="replayed, step gave"):
                await client.step("a", ToolCall(name="count", arguments={"item": "mint"}))
        finally:
            await client.stop()
        return server

    server = asyncio.run(scenario())
    gone, _ = psutil.wait_procs([server], timeout=10)
    assert gone == [server]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"command": "python a"},
            "command must be a list of a program and its arguments, got 'python a'",
        ),
        ({"command": ["no-such-program"]}, "command must begin with a program that can be found, got no-such-program"),
        (
            {"environment": ["NO_SUCH_VARIABLE"]},
            r"environment must name variables that are set, got \['NO_SUCH_VARIABLE'\]",
        ),
        ({"task": "store_tasks:no_such"}, "task must be a function .*got store_tasks:no_such: None"),
        (
            {"task": "no_such_module:f"},
            "env.kwargs.task=no_such_module:f names module no_such_module, which",
        ),
        ({"task": "store_tasks:__name__"}, "task must be a function .*got store_tasks:__name__"),
    ],
)
def test_arguments_that_cannot_work_are_refused_before_anything_starts(change: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=words):
        McpToolsEnv(**{**KWARGS, **change})


def test_what_is_no_task_and_tools_that_are_not_there_are_named() -> None:
    with (
        env_of(task="store_tasks:nothing") as env,
        pytest.raises(TypeError, match="must return an McpTask, got 'how many"),
    ):
        env.reset(seed=1)
    with (
        env_of(command=PLAIN, tools=["fail", "give"]) as env,
        pytest.raises(ValueError, match=r"\(fail, other\), got \['give'\]"),
    ):
        env.reset(seed=1)


def test_the_group_names_the_environment() -> None:
    config = load_config(["env=mcp", "env.kwargs.command=[python,server.py]", "env.kwargs.task=tasks:make"])
    assert config.env.id == "segue.envs.adapters.mcp_tools:McpTools-v0"
    assert config.env.kwargs == {"command": ["python", "server.py"], "task": "tasks:make"}


def test_the_documented_task_pays_for_the_right_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[4] / "docs" / "environments.md").read_text()
    (code,) = re.findall(r"```python\n([^`]*import McpTask.*?)```", text, re.DOTALL)
    (tmp_path / "documented_tasks.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    hours = {"Hours from UTC to Tokyo?": "9", "Hours from UTC to Delhi?": "5.5", "Hours from UTC to Lima?": "-5"}
    with env_of(command=PLAIN, task="documented_tasks:make") as env:
        for seed in (1, 2):
            user, _ = env.reset(seed=seed)
            assert env.step(ToolCall(name="fail", arguments={"how": "value"}))[:2] == ("2", 0.0)
            for text, reward in ((hours[user], 1.0), ("no", 0.0))[seed - 1 : seed]:
                assert env.step(ToolCall(name="answer", arguments={"text": text}))[1:3] == (reward, True)
