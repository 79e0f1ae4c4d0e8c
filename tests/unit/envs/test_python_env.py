"""The Python environment's tools, rewards and demonstrators, with programs that this process runs or that are told."""

import random
from collections.abc import Mapping
from typing import Any

import pytest
from env_cases import LocalRunner, make_env, measure_demonstrator

from segue.conf.schema import EnvConfig
from segue.envs.python.env import MAX_CODE_CHARS, PythonEnv
from segue.envs.python.program import ProgramReply
from segue.envs.tool import ToolCall
from segue.envs.truth import EFFICIENCY_REWARD, MAX_REWARD, PROCESS_REWARD

CHECK = "output_correct"


class ToldRunner:
    """Answers with what it was told, and remembers what it was asked."""

    def __init__(self, *replies: ProgramReply) -> None:
        self.replies = list(replies)
        self.asked: list[tuple[str, Mapping[str, bytes]]] = []

    def run(self, code: str, files: Mapping[str, bytes]) -> ProgramReply:
        self.asked.append((code, files))
        return self.replies.pop(0)


def make_python(**kwargs: Any) -> PythonEnv:
    env = make_env(EnvConfig(id="python", kwargs=kwargs))
    assert isinstance(env, PythonEnv)
    return env


def run(code: str) -> ToolCall:
    return ToolCall(name="run_python", arguments={"code": code})


def answer(text: str) -> ToolCall:
    return ToolCall(name="answer", arguments={"text": text})


@pytest.mark.parametrize("split", ["train", "heldout_seeds", "heldout_phrasings", "heldout_kinds"])
@pytest.mark.parametrize("level", [1, 2])
def test_the_expert_earns_all_there_is(level: int, split: str) -> None:
    report = measure_demonstrator(make_python(level=level, split=split), "expert", range(200), CHECK)
    assert (report.success, report.tool_correct, report.mean_reward) == (1.0, 1.0, pytest.approx(MAX_REWARD))
    # success 1 + process 0.1 + efficiency 0.1
    assert pytest.approx(1.2) == MAX_REWARD


def test_the_fallible_demonstrator_is_as_fallible_as_it_is_told() -> None:
    report = measure_demonstrator(make_python(), "fallible", range(2000), CHECK)
    # right programs: 0.75, and the slips that happen to print the truth; clean answers: 0.35 of them;
    # standard deviation at most 0.5 / sqrt(2000) = 0.011
    assert 0.72 < report.tool_correct < 0.82
    assert report.success == pytest.approx(0.35 * report.tool_correct, abs=0.04)
    always = measure_demonstrator(make_python(slip_rate=0.0, sloppy_rate=1.0), "fallible", range(100), CHECK)
    assert (always.success, always.tool_correct, always.mean_reward) == (0.0, 1.0, pytest.approx(PROCESS_REWARD))


def test_demonstrators_repeat_themselves_and_answer_with_what_was_printed() -> None:
    env = make_python(slip_rate=1.0, sloppy_rate=1.0)
    env.reset(seed=4)
    first = env.expert("fallible", random.Random(1))
    assert first == env.expert("fallible", random.Random(1))
    (call,) = first["calls"]
    observation, *_ = env.step(ToolCall(**call))
    assert env.expert("fallible", random.Random(1))["calls"] == [
        {"name": "answer", "arguments": {"text": f"it is {observation}"}}
    ]
    with pytest.raises(ValueError, match="skill must be expert or fallible, got 'master'"):
        env.expert("master", random.Random(1))


@pytest.mark.parametrize(
    ("reply", "observation"),
    [
        (ProgramReply(output="57\n", exit_status=0), "57"),
        (ProgramReply(output="", exit_status=0), "none"),
        (ProgramReply(output="a\nNameError: x\n", exit_status=1), "a\nNameError: x\nerror: exit status 1"),
        (ProgramReply(output="", exit_status=137), "error: ended by SIGKILL"),
        (ProgramReply(output="", exit_status=255), "error: exit status 255"),
        (
            ProgramReply(output="5\n", exit_status=None, stopped="it took longer than 5 s"),
            "5\nerror: stopped: it took longer than 5 s",
        ),
    ],
)
def test_what_a_program_did_is_the_observation(reply: ProgramReply, observation: str) -> None:
    runner = ToldRunner(reply)
    env = PythonEnv(runner=runner)
    env.reset(seed=3)
    shown, reward, terminated, truncated, _ = env.step(run("code"))
    assert (shown, reward, terminated, truncated) == (observation, 0.0, False, False)
    assert [code for code, _ in runner.asked] == ["code"]


def test_only_a_program_that_ends_well_and_prints_just_the_truth_earns_process_and_once() -> None:
    env = make_python()
    _, info = env.reset(seed=3)
    truth = info["truth"]
    replies = [
        ProgramReply(output=f"it is {truth}", exit_status=0),
        ProgramReply(output=truth, exit_status=1),
        ProgramReply(output=truth, exit_status=None, stopped="it took longer than 5 s"),
        ProgramReply(output=f" {truth}\n", exit_status=0),
        ProgramReply(output=truth, exit_status=0),
    ]
    env = PythonEnv(runner=ToldRunner(*replies))
    env.reset(seed=3)
    steps = [env.step(run("x")) for _ in replies]
    assert [reward for _, reward, *_ in steps] == [0.0, 0.0, 0.0, PROCESS_REWARD, 0.0]
    assert [info[CHECK] for *_, info in steps] == [False, False, False, True, True]


@pytest.mark.parametrize(("num_programs", "efficiency"), [(0, 1.0), (1, 1.0), (2, 0.75), (4, 0.25), (5, 0.0), (6, 0.0)])
def test_a_right_answer_is_worth_more_after_fewer_calls(num_programs: int, efficiency: float) -> None:
    env = make_python()
    _, info = env.reset(seed=3)
    for _ in range(num_programs):
        env.step(run("x=1"))
    observation, _, terminated, _, last = env.step(answer(f" {info['truth']}\n"))
    assert (observation, terminated, last["is_success"]) == ("right", True, True)
    assert last["reward_terms"] == {"success": 1.0, "efficiency": pytest.approx(EFFICIENCY_REWARD * efficiency)}


def test_a_wrong_answer_earns_nothing_whatever_programs_said() -> None:
    env = PythonEnv(runner=ToldRunner(ProgramReply(output='right\n{"is_success": true}', exit_status=0)))
    env.reset(seed=3)
    env.step(run("x"))
    observation, reward, terminated, _, info = env.step(answer("right"))
    assert (observation, reward, terminated, info["is_success"]) == ("wrong", 0.0, True, False)


def test_code_that_is_too_long_never_runs() -> None:
    runner = ToldRunner(ProgramReply(output="", exit_status=0))
    env = PythonEnv(runner=runner)
    env.reset(seed=3)
    observation, *_ = env.step(run("#" * (MAX_CODE_CHARS + 1)))
    assert observation == "error: code must have at most 16384 characters, got 16385"
    assert runner.asked == []
    env.step(run("#" * MAX_CODE_CHARS))
    assert len(runner.asked) == 1


def test_options_change_one_episode_and_unknown_ones_are_refused() -> None:
    env = make_python()
    _, info = env.reset(seed=1, options={"level": 2, "split": "heldout_kinds"})
    assert (info["level"], info["split"]) == (2, "heldout_kinds")
    _, info = env.reset(seed=1)
    assert (info["level"], info["split"], info[CHECK]) == (1, "train", False)
    with pytest.raises(ValueError, match=r"may be level and split, got \['size'\]"):
        env.reset(seed=1, options={"size": 1})
    for name in ("slip_rate", "sloppy_rate"):
        with pytest.raises(ValueError, match=rf"{name} must be in \[0, 1\], got 2"):
            make_python(**{name: 2.0})


def test_a_snapshot_goes_on_without_running_any_program_again() -> None:
    first = PythonEnv(runner=ToldRunner(ProgramReply(output="12:05", exit_status=0)), classes=["reverse"])
    _, info = first.reset(seed=5, options={"split": "heldout_phrasings"})
    assert info["question_class"] == "reverse"
    first.step(run("what time is it"))
    data = first.capture()
    assert data is not None
    second = PythonEnv(runner=LocalRunner(), classes=["reverse"])
    second.resume(data)
    rng = random.Random(0)
    assert second.expert("expert", rng) == first.expert("expert", rng)
    assert second.expert("expert", rng)["calls"][0]["arguments"] == {"text": "12:05"}
    # the same problem still has the same truth
    assert second.step(answer(info["truth"]))[4]["is_success"] is True
    assert first.step(answer(info["truth"]))[4]["is_success"] is True
