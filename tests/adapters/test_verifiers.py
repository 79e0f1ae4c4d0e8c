"""A taskset of the real `verifiers` package (`sums_taskset.py`), scored by its own rewards."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from segue.conf.load import load_config
from segue.conf.schema import EnvConfig
from segue.envs.adapters.verifiers_taskset import VerifiersEnv
from segue.envs.check_report import Finding
from segue.envs.errors import EnvironmentSetupError, InfrastructureFailure
from segue.envs.tool import ToolCall

pytestmark = pytest.mark.adapters
ENV_ID = "segue.envs.adapters.verifiers_taskset:Verifiers-v0"
FOLDER = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def tasksets_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)


def answer(env: VerifiersEnv, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
    return env.step(ToolCall(name="answer", arguments={"text": text}))


def test_a_taskset_keeps_the_contract(checked: Callable[[EnvConfig], dict[str, Finding]]) -> None:
    config = EnvConfig(id=ENV_ID, kwargs={"taskset": "sums_taskset"}, import_folder=FOLDER, start_timeout_s=180.0)
    # there is no demonstrator
    assert set(checked(config)) == {"demonstrator"}


def test_a_seed_is_a_task_whose_rewards_are_terms() -> None:
    env = VerifiersEnv(taskset="sums_taskset", config={"count": 5})
    for seed, text, right, is_number in (
        (2, "6", 1.0, 0.1),
        (7, " 6 ", 1.0, 0.1),
        (3, "6", 0.0, 0.1),
        (4, "x", 0.0, 0.0),
    ):
        # after its last task the taskset begins again
        index = seed % 5
        user, info = env.reset(seed=seed)
        assert (user, info["system"], info["task_index"]) == (f"{index} + {2 * index}?", "Answer with a number.", index)
        observation, _, terminated, truncated, info = answer(env, text)
        assert info["reward_terms"] == {"right": right, "is_number": pytest.approx(is_number)}
        assert (observation, terminated, truncated) == ("right" if right else "wrong", True, False)
        assert info["is_success"] is bool(right) and info["metrics"] == {"length": len(text.strip())}


def test_selected_tasks_are_held_out() -> None:
    env = VerifiersEnv(taskset="sums_taskset", select={"exclude": {"idx": ["0:6"]}}, success_reward=0.1)
    trained = {env.reset(seed=seed)[1]["task_index"] for seed in range(20)}
    assert trained == {6, 7, 8, 9}
    held_out = {"select": {"include": {"idx": ["0:6"]}}}
    assert {env.reset(seed=seed, options=held_out)[1]["task_index"] for seed in range(20)} == set(range(6))
    # a number alone suffices here
    assert answer(env, "1")[4]["is_success"] is True
    with pytest.raises(ValueError, match=r"options must be select, got \['split'\]"):
        env.reset(seed=1, options={"split": "train"})


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("endless", "must end, got odd_taskset; set env.kwargs.select.limit"),
        ("boxed", "BoxedTask needs a container"),
        ("looking", "look of LookingTask looks into a runtime"),
        ("tools", "Search shares a state with the task"),
        ("far", "Near runs elsewhere"),
        ("prepared", "PreparedTask has a set-up in a runtime"),
        ("silent", "a task of SilentTask has no prompt"),
    ],
)
def test_what_a_taskset_needs_and_is_not_here_is_named(kind: str, words: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=words):
        VerifiersEnv(taskset="odd_taskset", config={"kind": kind})


def test_no_end_of_tasks_is_cut_by_a_limit_and_no_task_at_all_is_named() -> None:
    env = VerifiersEnv(taskset="odd_taskset", config={"kind": "endless"}, select={"limit": 3})
    assert [env.reset(seed=seed)[1]["task_index"] for seed in range(4)] == [0, 1, 2, 0]
    with pytest.raises(EnvironmentSetupError, match="select must leave a task of sums_taskset"):
        VerifiersEnv(taskset="sums_taskset", config={"count": 0})


def test_a_tasks_tools_run_in_an_episode_and_stand_in_what_is_scored() -> None:
    env = VerifiersEnv(taskset="stock_taskset", timeout_s=2.0)
    for seed in (1, 2):
        assert env.reset(seed=seed)[0] == "how many?"
        assert [spec.name for spec in env.tools] == ["stock_count", "stock_wait", "answer"]
        assert env.tools[0].parameters["properties"]["item"] == {"type": "string"}
        assert env.step(ToolCall(name="stock_count", arguments={"item": "mint"}))[0] == str(seed)
        observation = env.step(ToolCall(name="stock_count", arguments={"item": "rose"}))[0]
        assert observation.startswith("error: ") and "rose" in observation
        # the same number is worth less where it was not looked up
        assert answer(env, str(seed))[4]["reward_terms"] == {"right": 1.0, "looked": 2.0}
    env.reset(seed=2)
    assert answer(env, "2")[4]["reward_terms"] == {"right": 1.0, "looked": 0.0}
    env.reset(seed=1)
    with pytest.raises(TimeoutError):
        env.step(ToolCall(name="stock_wait", arguments={"seconds": 60.0}))
    env.close()
    env.close()


def test_a_tasks_tools_keep_the_contract(checked: Callable[[EnvConfig], dict[str, Finding]]) -> None:
    kwargs = {"taskset": "stock_taskset", "config": {"task": {"waits": False}}}
    assert set(checked(EnvConfig(id=ENV_ID, kwargs=kwargs, import_folder=FOLDER, start_timeout_s=180.0))) <= {
        "demonstrator",
        # arbitrary words find no item whatever the seed
        "seeds",
    }


def test_who_fails_in_scoring_pays_for_it() -> None:
    env = VerifiersEnv(taskset="odd_taskset", config={"kind": "failing"}, timeout_s=0.3)
    for text, failure, words in (
        ("raise", Exception, "no such reward"),
        ("judge", InfrastructureFailure, "a judge of the taskset odd_taskset failed: down"),
        ("hang", TimeoutError, None),
    ):
        env.reset(seed=0)
        with pytest.raises(failure, match=words):
            answer(env, text)


def test_the_group_leaves_time_to_import_what_brings_no_torch() -> None:
    config = load_config(["env=verifiers", "env.kwargs.taskset=sums"]).env
    assert (config.id, config.kwargs, config.start_timeout_s) == (ENV_ID, {"taskset": "sums"}, 180.0)
    code = "import sys, verifiers.v1; print({'torch', 'transformers', 'datasets'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.strip() == "set()"
