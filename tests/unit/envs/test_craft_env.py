"""The workshop's environment: tools, rewards, dead ends, options, snapshots and demonstrators."""

import asyncio
import random
from typing import Any

import pytest
from env_cases import make_env, measure_demonstrator

from segue.conf.schema import EnvConfig
from segue.envs.client import EnvClient
from segue.envs.errors import EnvironmentSetupError
from segue.envs.tool import ToolCall
from segue.envs.tool_env import ToolEnv
from segue.envs.truth import PROCESS_REWARD, SUCCESS_REWARD

LOOK = ToolCall(name="look")
# team takes mint and kiosk, kiosk takes rock and lily: gather three, make two, deliver
SIX_STEPS: dict[str, Any] = {"steps": [6, 6]}
SEED = 0
SHOWN = """goal: team
kiosk: rock lily
shop: kiosk lotus
team: mint kiosk
market: lily
left: mint 1 lily 2 rock 2 lotus 1
held: none"""


def make_craft(**kwargs: Any) -> ToolEnv:
    return make_env(EnvConfig(id="craft", kwargs=kwargs))


def use(tool: str, item: str) -> ToolCall:
    return ToolCall(name=tool, arguments={"item": item})


@pytest.mark.parametrize("split", ["train", "heldout_seeds", "heldout_names"])
@pytest.mark.parametrize("steps", [[3, 8], [9, 12], [16, 16]])
def test_the_expert_earns_all_there_is(steps: list[int], split: str) -> None:
    report = measure_demonstrator(make_craft(steps=steps, split=split), "expert", range(100), "goal_reachable")
    # success 1 + process 0.1
    assert (report.success, report.tool_correct, report.mean_reward) == (1.0, 1.0, pytest.approx(1.1))


def test_the_fallible_demonstrator_fails_about_as_often_as_it_succeeds() -> None:
    report = measure_demonstrator(make_craft(), "fallible", range(1000), "goal_reachable")
    # measured: 0.49 and 0.86; standard deviation at most 0.5 / sqrt(1000) = 0.016
    assert 0.42 < report.success < 0.56
    assert 0.78 < report.tool_correct < 0.92
    never = measure_demonstrator(make_craft(slip_rate=0.0), "fallible", range(50), "goal_reachable")
    assert never.mean_reward == pytest.approx(1.1)


def test_a_demonstrator_at_a_dead_end_delivers_what_it_has() -> None:
    env, num_ends = make_craft(slip_rate=0.9, spare_calls=100), 0
    for seed in range(30):
        _, info = env.reset(seed=seed)
        has_ended, number = False, 0
        while not has_ended:
            turn = env.expert("fallible", random.Random(f"{seed} {number}"))
            assert turn == env.expert("fallible", random.Random(f"{seed} {number}"))
            if not info["goal_reachable"]:
                assert turn["calls"][0]["name"] == "deliver"
            *_, terminated, truncated, info = env.step(ToolCall(**turn["calls"][0]))
            has_ended, number = terminated or truncated, number + 1
        num_ends += terminated and not info["goal_reachable"]
        assert info["is_success"] is (terminated and info["goal_reachable"])
    assert num_ends > 5
    env.reset(seed=0)
    with pytest.raises(ValueError, match="skill must be expert or fallible"):
        env.expert("novice", random.Random(1))


def test_an_episode_from_the_order_to_the_delivery() -> None:
    env = make_craft(**SIX_STEPS)
    observation, info = env.reset(seed=SEED)
    # six steps, a look around, two to spare
    assert (observation, info["system"], info["question_class"]) == ("make and deliver team in 9 calls", "", "6_steps")
    assert (info["goal_reachable"], info["num_made"], info["num_calls"], info["goal"]) == (True, 0, 9, "team")
    assert [spec.name for spec in env.tools] == ["look", "gather", "make", "deliver"]
    assert env.step(LOOK)[0] == SHOWN
    for tool, item, observation, process in (
        ("gather", "lily", "held: lily 1", 0.0),
        ("make", "kiosk", "error: it takes rock lily", 0.0),
        ("gather", "rock", "held: lily 1 rock 1", 0.0),
        # two products share 0.1
        ("make", "kiosk", "held: kiosk 1", 0.05),
        ("gather", "mint", "held: kiosk 1 mint 1", 0.0),
        ("make", "team", "held: team 1", 0.05),
    ):
        shown, reward, terminated, truncated, info = env.step(use(tool, item))
        assert (shown, terminated, truncated) == (observation, False, False)
        assert info["reward_terms"] == ({"process": pytest.approx(process)} if process else {})
        assert reward == pytest.approx(process)
    observation, reward, terminated, truncated, info = env.step(use("deliver", "team"))
    assert (observation, reward, terminated, truncated) == ("right", SUCCESS_REWARD, True, False)
    assert (info["is_success"], info["num_made"]) == (True, 2)


def test_what_is_made_again_is_not_paid_again() -> None:
    """Every product twice, as often as the stock allows: never more than the term's whole."""
    for seed in range(40):
        env = make_craft(spare_calls=100)
        env.reset(seed=seed)
        recipes = [line.split(": ") for line in env.step(LOOK)[0].split("\n")[1:-2]]
        items = {name for product, parts in recipes for name in (product, *parts.split())}
        total = 0.0
        for _ in range(4):
            for call in (*(use("gather", item) for item in sorted(items)), *(use("make", name) for name, _ in recipes)):
                _, reward, terminated, truncated, _ = env.step(call)
                total += reward
                if terminated or truncated:
                    break
            if terminated or truncated:
                break
        assert total <= PROCESS_REWARD + 1e-9


def test_a_dead_end_is_for_the_records_alone_and_stays() -> None:
    env = make_craft(**SIX_STEPS)
    env.reset(seed=SEED)
    # a market wastes a lily, of which there are two
    for call, is_reachable in (("gather", True), ("make", True), ("gather", True), ("make", False)):
        item = "lily" if call == "gather" else "market"
        observation, reward, terminated, _, info = env.step(use(call, item))
        assert (reward, terminated, info["goal_reachable"]) == (0.0, False, is_reachable)
    assert observation == "held: market 2"
    assert env.step(use("deliver", "team"))[0] == "error: not held"
    observation, reward, terminated, _, info = env.step(use("deliver", "market"))
    assert (observation, reward, terminated, info["is_success"]) == ("wrong", 0.0, True, False)


@pytest.mark.parametrize("item", ["", "x" * 100_000, "wood ", "WOOD", "no such thing", "\x00", "0"])
@pytest.mark.parametrize(
    ("tool", "observation"),
    [("gather", "error: none left"), ("make", "error: no recipe"), ("deliver", "error: not held")],
)
def test_a_thing_that_is_not_there_is_an_observation_and_changes_nothing(
    tool: str, observation: str, item: str
) -> None:
    env = make_craft(**SIX_STEPS)
    env.reset(seed=SEED)
    before = env.snapshot()
    shown, reward, terminated, _, info = env.step(use(tool, item))
    assert (shown, reward, terminated, info["goal_reachable"]) == (observation, 0.0, False, True)
    assert env.snapshot() == before


def test_what_nobody_has_cannot_be_used() -> None:
    env = make_craft(**SIX_STEPS)
    env.reset(seed=SEED)
    assert env.step(use("make", "team"))[0] == "error: it takes mint kiosk"
    # a product does not lie around, and a material has no recipe
    assert env.step(use("gather", "kiosk"))[0] == "error: none left"
    assert env.step(use("make", "mint"))[0] == "error: no recipe"
    assert env.step(use("gather", "mint"))[0] == "held: mint 1"
    assert env.step(use("gather", "mint"))[0] == "error: none left"


def test_calls_are_bounded_by_the_steps_and_some_more() -> None:
    env = make_craft(steps=[5, 5], spare_calls=1)
    for options, num_steps in (({}, 5), ({"steps": [9, 9]}, 9), ({}, 5)):
        env.reset(seed=0, options=options)
        for number in range(num_steps + 2):
            *_, terminated, truncated, info = env.step(LOOK)
            assert (terminated, truncated) == (False, number == num_steps + 1)
        assert info["is_success"] is False


def test_an_interrupted_episode_goes_on_as_an_uninterrupted_one() -> None:
    options = {"steps": [8, 10], "split": "heldout_seeds"}
    for seed in range(5):
        env = make_craft(spare_calls=30)
        env.reset(seed=seed, options=options)
        calls, log = [LOOK], [env.step(LOOK)]
        for number in range(20):
            turn = env.expert("fallible", random.Random(f"{seed} {number}"))
            calls.append(ToolCall(**turn["calls"][0]))
            log.append(env.step(calls[-1]))
            if log[-1][2]:
                break
        for cut in range(len(calls)):
            env.reset(seed=seed, options=options)
            for call in calls[:cut]:
                env.step(call)
            data = env.capture()
            assert data is not None
            other = make_craft(spare_calls=30)
            other.resume(data)
            assert other.capture() == data
            assert other.expert("fallible", random.Random(cut)) == env.expert("fallible", random.Random(cut))
            assert [other.step(call) for call in calls[cut:]] == log[cut:]
            # an instance that has played something else
            env.reset(seed=seed + 1)
            env.resume(data)
            assert [env.step(call) for call in calls[cut:]] == log[cut:]


def test_reset_options_hold_for_one_episode() -> None:
    env = make_craft(steps=[3, 3])
    _, info = env.reset(seed=1, options={"steps": [12, 12], "split": "heldout_names"})
    assert (info["question_class"], info["split"], info["num_calls"]) == ("12_steps", "heldout_names", 15)
    _, info = env.reset(seed=1)
    assert (info["question_class"], info["split"], info["num_calls"]) == ("3_steps", "train", 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": 2}, r"reset options of craft may be split and steps, got \['level'\]"),
        ({"steps": [3, 30]}, "steps must be two integers from 3 to 16"),
        ({"split": "test"}, "'test' is not a valid Split"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_craft().reset(seed=0, options=options)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"steps": [1, 2]}, "steps must be two integers from 3 to 16"),
        ({"slip_rate": 1.5}, r"slip_rate must be in \[0, 1\], got 1.5"),
        ({"spare_calls": 1.5}, "spare_calls must be an integer of at least 0, got 1.5"),
    ],
)
def test_wrong_arguments_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=f"env.id=craft cannot be built: ValueError: {message}"):
        make_craft(**kwargs)


def test_a_worker_plays_the_same_episode() -> None:
    config = EnvConfig(id="craft")

    async def play_in_worker() -> list[str]:
        client = EnvClient(config, 1)
        await client.start()
        log, has_ended = [(await client.reset("e", 7, None)).observation], False
        while not has_ended:
            (call,) = (await client.expert("e", "expert"))["calls"]
            step = await client.step("e", ToolCall(**call))
            log.append(step.observation)
            has_ended = step.terminated or step.truncated
        await client.close("e")
        await client.stop()
        return log

    env = make_env(config)
    log, has_ended = [env.reset(seed=7)[0]], False
    while not has_ended:
        (call,) = env.expert("expert", random.Random(0))["calls"]
        observation, _, terminated, truncated, _ = env.step(ToolCall(**call))
        log.append(observation)
        has_ended = terminated or truncated
    assert asyncio.run(play_in_worker()) == log
