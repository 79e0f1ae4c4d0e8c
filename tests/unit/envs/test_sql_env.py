"""The SQL environment's tools, rewards and demonstrators, in this process and through the client."""

import asyncio
import random
from typing import Any

import pytest
from env_cases import make_env, measure_demonstrator

from segue.conf.schema import EnvConfig
from segue.envs.client import EnvClient
from segue.envs.episodes import EpisodeTable
from segue.envs.factory import EnvFactory
from segue.envs.tool import ToolCall
from segue.envs.tool_env import ToolEnv
from segue.envs.truth import EFFICIENCY_REWARD, MAX_REWARD, PROCESS_REWARD, SUCCESS_REWARD

SPLITS = ("train", "heldout_seeds", "heldout_schemas", "heldout_phrasings")


def make_sql(**kwargs: Any) -> ToolEnv:
    return make_env(EnvConfig(kwargs=kwargs))


def query(sql: str) -> ToolCall:
    return ToolCall(name="query", arguments={"sql": sql})


def answer(value: str) -> ToolCall:
    return ToolCall(name="answer", arguments={"value": value})


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_expert_earns_all_there_is(level: int, split: str) -> None:
    report = measure_demonstrator(make_sql(level=level, split=split), "expert", range(200))
    assert (report.success, report.tool_correct, report.mean_reward) == (1.0, 1.0, pytest.approx(MAX_REWARD))
    # success 1 + process 0.1 + efficiency 0.1
    assert pytest.approx(1.2) == MAX_REWARD


def test_the_fallible_demonstrator_is_as_fallible_as_it_is_told() -> None:
    num = 2000
    report = measure_demonstrator(make_sql(), "fallible", range(num))
    # right queries: 0.75, and the slips that happen to return the truth; clean answers: 0.35 of them;
    # standard deviation at most 0.5 / sqrt(2000) = 0.011
    assert 0.72 < report.tool_correct < 0.80
    assert report.success == pytest.approx(0.35 * report.tool_correct, abs=0.04)
    never = measure_demonstrator(make_sql(slip_rate=0.0, sloppy_rate=0.0), "fallible", range(100))
    assert never.mean_reward == pytest.approx(MAX_REWARD)
    always = measure_demonstrator(make_sql(slip_rate=0.0, sloppy_rate=1.0), "fallible", range(100))
    # the rows are right, the form of the answer is not
    assert (always.success, always.tool_correct, always.mean_reward) == (0.0, 1.0, pytest.approx(PROCESS_REWARD))


def test_demonstrators_repeat_themselves_and_answer_from_the_rows_they_saw() -> None:
    env = make_sql(slip_rate=1.0, sloppy_rate=1.0)
    env.reset(seed=4)
    first = env.expert("fallible", random.Random(1))
    assert first == env.expert("fallible", random.Random(1))
    assert first["response"] == ""
    (call,) = first["calls"]
    observation, *_ = env.step(ToolCall(**call))
    cell = observation.split("\n")[0].split("|")[0]
    assert env.expert("fallible", random.Random(1))["calls"] == [
        {"name": "answer", "arguments": {"value": f"it is {cell}"}}
    ]
    env.step(query("SELECT nothing"))
    assert env.expert("expert", random.Random(1))["calls"] == [{"name": "answer", "arguments": {"value": "none"}}]
    with pytest.raises(ValueError, match="skill must be expert or fallible"):
        env.expert("novice", random.Random(1))


def test_rewards_are_named_and_paid_once() -> None:
    env = make_sql()
    _, task = env.reset(seed=1)
    # film(title,speed,score,season), "speed of psycho in film?"
    assert (task["question_class"], task["truth"], task["level"], task["split"]) == ("lookup_number", "12", 1, "train")
    right = "SELECT speed FROM film WHERE title='psycho'"
    *_, info = env.step(query("SELECT * FROM film"))
    assert (info["reward_terms"], info["query_correct"]) == ({}, False)
    *_, info = env.step(query(right))
    assert (info["reward_terms"], info["query_correct"]) == ({"process": PROCESS_REWARD}, True)
    *_, info = env.step(query(right))
    assert (info["reward_terms"], info["query_correct"]) == ({}, True)
    _, reward, terminated, truncated, info = env.step(answer(" 12\n"))
    # the fourth call: two beyond the free two, a quarter of the efficiency each
    assert info["reward_terms"] == {"success": SUCCESS_REWARD, "efficiency": pytest.approx(EFFICIENCY_REWARD / 2)}
    assert reward == pytest.approx(1.05)
    assert (terminated, truncated, info["is_success"], info["query_correct"]) == (True, False, True, True)


@pytest.mark.parametrize("value", ["it is 12", "12.0", "", "13", "'12'"])
def test_an_answer_in_another_form_is_wrong_and_earns_nothing(value: str) -> None:
    env = make_sql()
    env.reset(seed=1)
    observation, reward, terminated, _, info = env.step(answer(value))
    assert (observation, reward, terminated, info["is_success"]) == ("wrong", 0.0, True, False)
    assert info["reward_terms"] == {"success": 0.0, "efficiency": 0.0}


def test_efficiency_never_becomes_a_cost() -> None:
    env = make_sql(max_calls=10)
    env.reset(seed=1)
    for _ in range(8):
        env.step(ToolCall(name="list_tables"))
    *_, info = env.step(answer("12"))
    assert info["reward_terms"] == {"success": 1.0, "efficiency": 0.0}


def test_an_episode_without_an_answer_is_truncated_and_cannot_beat_one_with() -> None:
    env = make_sql(max_calls=3)
    env.reset(seed=1)
    total = 0.0
    for _ in range(3):
        _, reward, terminated, truncated, info = env.step(query("SELECT speed FROM film WHERE title='psycho'"))
        total += reward
    assert (terminated, truncated, info["is_success"], info["query_correct"]) == (False, True, False, True)
    assert total == pytest.approx(PROCESS_REWARD)


def test_tools_describe_what_is_there() -> None:
    env = make_sql()
    observation, info = env.reset(seed=1)
    assert observation == "film(title,speed,score,season) car(model,cost,stock,grade)\nspeed of psycho in film?"
    assert info["system"] == ""
    assert [spec.name for spec in env.tools] == ["list_tables", "describe_table", "query", "answer"]
    assert env.step(ToolCall(name="list_tables"))[0] == "film car"
    described = env.step(ToolCall(name="describe_table", arguments={"table": "film"}))[0]
    assert described == (
        "CREATE TABLE film(title TEXT PRIMARY KEY, "
        "speed INTEGER NOT NULL, score INTEGER NOT NULL, season TEXT NOT NULL)"
    )
    missing = env.step(ToolCall(name="describe_table", arguments={"table": "x"}))[0]
    assert missing == "error: no such table: x"


@pytest.mark.parametrize(
    ("sql", "observation"),
    [
        ("SELECT COUNT(*), 'a' FROM film", "5|a"),
        ("SELECT title FROM film WHERE 0", "none"),
        ("SELECT wheels FROM film", "error: no such column: wheels"),
        ("DELETE FROM film", "error: not authorized"),
        ("SELECT 1 FROM film a JOIN film b JOIN film c", "\n".join(["1"] * 10) + "\n…"),
    ],
)
def test_observations_are_rows_or_what_sqlite_says(sql: str, observation: str) -> None:
    env = make_sql()
    env.reset(seed=1)
    assert env.step(query(sql))[0] == observation


def test_reset_options_choose_level_and_split() -> None:
    env = make_sql()
    _, info = env.reset(seed=1, options={"level": 3, "split": "heldout_schemas"})
    assert (info["level"], info["split"], info["question_class"][:4]) == (3, "heldout_schemas", "join")
    assert env.reset(seed=1)[1]["level"] == 1
    with pytest.raises(ValueError, match="reset options of sql may be level and split"):
        env.reset(seed=1, options={"difficulty": 2})
    with pytest.raises(ValueError, match="level must be one of 1, 2, 3"):
        env.reset(seed=1, options={"level": 9})


@pytest.mark.parametrize("name", ["slip_rate", "sloppy_rate"])
def test_rates_are_probabilities(name: str) -> None:
    with pytest.raises(Exception, match=rf"{name} must be in \[0, 1\], got 1.5"):
        make_sql(**{name: 1.5})


def test_a_worker_plays_the_same_episodes() -> None:
    async def play_in_worker() -> list[Any]:
        client = EnvClient(EnvConfig(), 1)
        await client.start()
        log: list[Any] = []
        for seed in range(20):
            reply = await client.reset(f"e{seed}", seed, {"level": 1 + seed % 3})
            log.append(reply.observation)
            has_ended = False
            while not has_ended:
                turn = await client.expert(f"e{seed}", "fallible")
                for call in turn["calls"]:
                    step = await client.step(f"e{seed}", ToolCall(**call))
                    log.append((step.observation, step.reward_terms, step.info))
                    has_ended = step.terminated or step.truncated
            await client.close(f"e{seed}")
        await client.stop()
        return log

    def play_here() -> list[Any]:
        factory = EnvFactory(EnvConfig())
        table = EpisodeTable(factory, EnvConfig().max_observation_chars)
        log: list[Any] = []
        for seed in range(20):
            log.append(table.reset("e", seed, {"level": 1 + seed % 3}).observation)
            has_ended = False
            while not has_ended:
                for call in table.expert("e", "fallible")["calls"]:
                    step = table.step("e", ToolCall(**call))
                    log.append((step.observation, step.reward_terms, step.info))
                    has_ended = step.terminated or step.truncated
            table.close("e")
        factory.stop()
        return log

    assert asyncio.run(play_in_worker()) == play_here()
