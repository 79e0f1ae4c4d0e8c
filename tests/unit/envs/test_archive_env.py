"""The archive environment: tools, rewards, options, snapshots and demonstrators. Its texts: test_archive_task.py."""

import asyncio
import random
from typing import Any

import pytest
from env_cases import make_env, measure_demonstrator

from segue.conf.schema import EnvConfig
from segue.envs.archive.env import ArchiveEnv
from segue.envs.archive.question import KINDS
from segue.envs.client import EnvClient
from segue.envs.errors import EnvironmentSetupError
from segue.envs.factory import EnvFactory
from segue.envs.tool import ToolCall
from segue.envs.tool_env import ToolEnv

NEXT = ToolCall(name="next")


def make_archive(**kwargs: Any) -> ToolEnv:
    return make_env(EnvConfig(id="archive", kwargs=kwargs))


def answer(value: str) -> ToolCall:
    return ToolCall(name="answer", arguments={"value": value})


def open_page(page: int) -> ToolCall:
    return ToolCall(name="open", arguments={"page": page})


@pytest.mark.parametrize("split", ["train", "heldout_seeds"])
@pytest.mark.parametrize("reading", ["sequential", "free"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_the_expert_reads_on_and_answers_right(kind: str, reading: str, split: str) -> None:
    env = make_archive(classes=[kind], reading=reading, split=split)
    report = measure_demonstrator(env, "expert", range(40), "question_seen")
    assert (report.success, report.tool_correct, report.mean_reward) == (1.0, 1.0, 1.0)


def test_the_fallible_demonstrator_is_as_fallible_as_it_is_told() -> None:
    num = 1000
    report = measure_demonstrator(make_archive(length_tokens=256), "fallible", range(num), "question_seen")
    # right values 0.75, clean answers 0.35 of them: 0.26, standard deviation sqrt(0.26 * 0.74 / 1000) = 0.014
    assert report.success == pytest.approx(0.75 * 0.35, abs=0.05)
    assert report.tool_correct == 1.0
    never = make_archive(length_tokens=256, slip_rate=0.0, sloppy_rate=0.0)
    assert measure_demonstrator(never, "fallible", range(50), "question_seen").success == 1.0
    for rates in ({"slip_rate": 1.0, "sloppy_rate": 0.0}, {"slip_rate": 0.0, "sloppy_rate": 1.0}):
        always = make_archive(length_tokens=256, **rates)
        assert measure_demonstrator(always, "fallible", range(50), "question_seen").success == 0.0


def test_demonstrators_repeat_themselves() -> None:
    env = make_archive(length_tokens=512, slip_rate=1.0, sloppy_rate=1.0)
    _, info = env.reset(seed=3)
    assert env.expert("fallible", random.Random(1)) == {"response": "", "calls": [{"name": "next", "arguments": {}}]}
    env.step(NEXT)
    # test_archive_task.py works the truth 4 out; an earlier value was 73
    assert info["truth"] == "4"
    assert env.expert("expert", random.Random(1)) == {
        "response": "tulip height 73\ntulip height 4",
        "calls": [{"name": "answer", "arguments": {"value": "4"}}],
    }
    slip = env.expert("fallible", random.Random(1))
    assert slip == env.expert("fallible", random.Random(1))
    assert slip == {
        "response": "tulip height 73",
        "calls": [{"name": "answer", "arguments": {"value": "it is 73"}}],
    }
    with pytest.raises(ValueError, match="skill must be expert or fallible"):
        env.expert("novice", random.Random(1))


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_demonstrator_quotes_what_its_answer_follows_from_and_in_that_order(kind: str) -> None:
    env = make_archive(length_tokens=256, classes=[kind], slip_rate=0.0, sloppy_rate=0.0)
    for seed in range(20):
        _, info = env.reset(seed=seed)
        turn = env.expert("expert", random.Random(0))
        quotes = turn["response"].split("\n")
        assert sorted(quotes) == sorted(info["facts"])
        assert turn["calls"] == [{"name": "answer", "arguments": {"value": info["truth"]}}]
        if kind == "count":
            assert len(quotes) == int(info["truth"])
        else:
            assert quotes[-1].endswith(f" {info['truth']}")
        if kind == "two_hop":
            # the subject of the second is what the first names
            assert quotes[1].startswith(f"{quotes[0].split(' ')[-1]} ")
        elif kind != "count":
            # the same key, in the order of the archive
            assert quotes == info["facts"]
            assert len({quote.rsplit(" ", 1)[0] for quote in quotes}) == 1


def test_pages_come_one_after_another_and_the_question_last() -> None:
    env = make_archive(length_tokens=1024)
    assert [spec.name for spec in env.tools] == ["next", "answer"]
    observation, info = env.reset(seed=0)
    rules, *first = observation.split("\n")
    assert rules.startswith("an archive of 4 pages; the last one ends with a question")
    assert first[0] == "1 of 4"
    assert (info["num_pages"], info["page"], info["question_seen"], info["system"]) == (4, 1, False, "")
    for page in (2, 3):
        observation, reward, terminated, truncated, info = env.step(NEXT)
        assert observation.startswith(f"{page} of 4\n") and "question" not in observation
        assert (reward, terminated, truncated, info["page"], info["question_seen"]) == (0.0, False, False, page, False)
    observation, *_, info = env.step(NEXT)
    assert observation.split("\n")[-1].startswith("question: ") and info["question_seen"]
    observation, *_, info = env.step(NEXT)
    assert (observation, info["page"]) == ("error: this is the last page", 4)


def test_rewards_are_for_the_right_answer_alone() -> None:
    env = make_archive(length_tokens=512)
    for value, is_right in ((" 4\n", True), ("4.0", False), ("it is 4", False), ("73", False), ("", False)):
        env.reset(seed=3)
        env.step(NEXT)
        observation, reward, terminated, truncated, info = env.step(answer(value))
        assert (terminated, truncated, info["is_success"]) == (True, False, is_right)
        assert (observation, reward) == (("right", 1.0) if is_right else ("wrong", 0.0))
        assert info["reward_terms"] == {"success": reward}


def test_nobody_is_right_before_the_question() -> None:
    env = make_archive(length_tokens=512)
    env.reset(seed=3)
    _, reward, terminated, _, info = env.step(answer("4"))
    assert (reward, terminated, info["is_success"], info["question_seen"]) == (0.0, True, False, False)


def test_an_archive_of_one_page_asks_at_once() -> None:
    env = make_archive(length_tokens=256)
    observation, info = env.reset(seed=0)
    assert observation.split("\n")[-1].startswith("question: ")
    assert info["question_seen"] and env.step(answer(info["truth"]))[1] == 1.0


def test_reading_decisive_pages_is_paid_once_where_it_is_asked_for() -> None:
    env = make_archive(length_tokens=4096, reading="free", page_reward=0.1, classes=["latest"], spare_calls=100)
    num_paid = 0
    for seed in range(20):
        _, info = env.reset(seed=seed)
        pages = {int(position * 16) for position in info["fact_positions"]}
        paid: dict[int, float] = {}
        for page in (*range(15, -1, -1), *range(16)):
            terms = env.step(open_page(page + 1))[4]["reward_terms"]
            assert page not in paid or not terms
            if terms:
                paid[page] = terms["process"]
        # the first page is shown unasked
        assert paid.keys() == pages - {0}
        assert sum(paid.values()) == pytest.approx(0.1 if paid else 0.0)
        num_paid += len(paid)
    assert num_paid > 20


def test_any_page_can_be_opened_where_reading_is_free() -> None:
    env = make_archive(length_tokens=1024, reading="free")
    assert [spec.name for spec in env.tools] == ["next", "open", "answer"]
    first = env.reset(seed=0)[0].partition("\n")[2]
    last, *_, info = env.step(open_page(4))
    assert last.startswith("4 of 4\n") and info["question_seen"]
    assert env.step(open_page(1))[0] == first
    assert env.step(NEXT)[0].startswith("2 of 4\n")
    # what was seen stays seen
    *_, info = env.step(answer(env.reset(seed=0)[1]["truth"]))
    assert info["is_success"] is False
    env.reset(seed=0)
    env.step(open_page(4))
    *_, info = env.step(open_page(2))
    assert (info["page"], info["question_seen"]) == (2, True)


@pytest.mark.parametrize("page", [0, -1, 5, 10**30, -(10**30)])
def test_a_page_that_is_not_there_is_an_observation(page: int) -> None:
    env = make_archive(length_tokens=1024, reading="free")
    env.reset(seed=0)
    observation, reward, terminated, _, info = env.step(open_page(page))
    assert (observation, reward, terminated, info["page"]) == ("error: pages are 1 to 4", 0.0, False, 1)


def test_a_sequential_reader_cannot_open_a_page() -> None:
    env = make_archive(length_tokens=1024)
    env.reset(seed=0)
    observation, *_, info = env.step(open_page(4))
    assert observation == 'error: no tool "open"; tools: next, answer'
    assert (info["page"], info["question_seen"]) == (1, False)


def test_calls_are_bounded_by_the_pages_and_some_more() -> None:
    env = make_archive(length_tokens=1024, spare_calls=2)
    for options, num_pages in (({}, 4), ({"length_tokens": 2048}, 8), ({}, 4)):
        env.reset(seed=0, options=options)
        for number in range(num_pages + 2):
            *_, terminated, truncated, info = env.step(NEXT)
            assert (terminated, truncated) == (False, number == num_pages + 1)
        assert info["is_success"] is False


def test_an_interrupted_episode_goes_on_as_an_uninterrupted_one() -> None:
    kwargs = {"reading": "free", "page_reward": 0.1, "length_tokens": 1024}
    options = {"fact_region": [0.2, 1.0], "classes": ["latest"], "split": "heldout_seeds", "length_tokens": 2048}
    calls = [NEXT, open_page(8), open_page(3), NEXT, ToolCall(name="fly"), open_page(8), open_page(7), answer("4")]
    env = make_archive(**kwargs)
    for cut in range(len(calls)):
        env.reset(seed=9, options=options)
        log = [env.step(call) for call in calls]
        env.reset(seed=9, options=options)
        for call in calls[:cut]:
            env.step(call)
        data = env.capture()
        assert data is not None
        env.reset(seed=1)
        other = make_archive(**kwargs)
        other.resume(data)
        assert other.capture() == data
        turn = other.expert("fallible", random.Random(0))
        assert [other.step(call) for call in calls[cut:]] == log[cut:]
        env.resume(data)
        assert env.expert("fallible", random.Random(0)) == turn
        assert [env.step(call) for call in calls[cut:]] == log[cut:]


def test_reset_options_hold_for_one_episode() -> None:
    env = make_archive(length_tokens=1024, classes=["recall"])
    options = {"length_tokens": 2048, "fact_region": [0.0, 0.1], "classes": ["two_hop"], "split": "heldout_seeds"}
    _, info = env.reset(seed=1, options=options)
    assert (info["question_class"], info["num_pages"], info["split"]) == ("two_hop", 8, "heldout_seeds")
    assert all(0.0 <= position <= 0.1 for position in info["fact_positions"])
    _, info = env.reset(seed=1)
    assert (info["question_class"], info["num_pages"], info["split"]) == ("recall", 4, "train")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": 2}, r"reset options of archive may be classes, fact_region, length_tokens, split, got \['level'\]"),
        ({"length_tokens": 1000}, "length_tokens must be a positive multiple of page_tokens"),
        ({"fact_region": 0.5}, "fact_region must be a list, got 0.5"),
        ({"classes": "recall"}, "classes must be a list, got 'recall'"),
        ({"classes": ["sum"]}, "classes must be some of recall, latest, count, two_hop"),
        ({"split": "test"}, "'test' is not a valid Split"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_archive().reset(seed=0, options=options)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"page_tokens": 40}, "page_tokens must be an integer of at least 64, got 40"),
        ({"reading": "backwards"}, "'backwards' is not a valid Reading"),
        ({"page_reward": 1.5}, r"page_reward must be in \[0, 1\], got 1.5"),
        ({"slip_rate": -0.1}, r"slip_rate must be in \[0, 1\], got -0.1"),
        ({"spare_calls": -1}, "spare_calls must be an integer of at least 0, got -1"),
    ],
)
def test_wrong_arguments_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=f"env.id=archive cannot be built: ValueError: {message}"):
        make_archive(**kwargs)


def test_a_page_that_would_be_cut_is_refused_before_anything_starts() -> None:
    # 3.5 characters a token and 300 around them
    config = EnvConfig(id="archive", kwargs={"page_tokens": 1024, "length_tokens": 4096}, max_observation_chars=3883)
    message = r"env\.max_observation_chars must be at least 3884 for pages of this size, got 3883"
    with pytest.raises(EnvironmentSetupError, match=message):
        EnvFactory(config).make()
    config.max_observation_chars = 3884
    assert isinstance(EnvFactory(config).make(), ArchiveEnv)
    config.success_return = 1.0
    with pytest.raises(EnvironmentSetupError, match=r"env\.success_return must be null for archive"):
        EnvFactory(config).make()


def test_a_worker_shows_the_same_pages() -> None:
    config = EnvConfig(id="archive", kwargs={"length_tokens": 1024})

    async def play_in_worker() -> list[str]:
        client = EnvClient(config, 1)
        await client.start()
        log = [(await client.reset("e", 7, None)).observation]
        log += [(await client.step("e", NEXT)).observation for _ in range(3)]
        await client.close("e")
        await client.stop()
        return log

    env = make_env(config)
    assert asyncio.run(play_in_worker()) == [env.reset(seed=7)[0], *(env.step(NEXT)[0] for _ in range(3))]


def test_two_hundred_pages_of_a_million_tokens_are_read_to_the_end() -> None:
    env = ArchiveEnv(length_tokens=1_000_000, page_tokens=5000, fact_region=(0.0, 0.1), classes=("two_hop",))
    env.reset(seed=0)
    for page in range(2, 201):
        observation, *_, info = env.step(NEXT)
        assert observation.startswith(f"{page} of 200\n")
    (call,) = env.expert("expert", random.Random(0))["calls"]
    *_, info = env.step(ToolCall(**call))
    assert info["is_success"] is True
