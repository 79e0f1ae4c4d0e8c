"""`archive` and `craft` in tokens: estimates against the shipped vocabulary, the experiments' bounds on episodes."""

import re
import shlex
from pathlib import Path

import pytest
from env_cases import make_env

from segue.conf.load import load_config
from segue.conf.schema import SegueConfig
from segue.envs.archive import vocabulary as archive_words
from segue.envs.archive.entry import count_tokens
from segue.envs.archive.question import KINDS
from segue.envs.archive.shape import Shape
from segue.envs.archive.task import Split, make_task
from segue.envs.craft.vocabulary import TRAINING
from segue.envs.demonstrator import demonstrator_rng
from segue.envs.tool import ToolCall
from segue.model.tokenizer.load import load_tokenizer
from segue.rollout.chat import AssistantCall, AssistantTurn, CallResult, Chat

ROOT = Path(__file__).parents[3]
TOKENIZER = load_tokenizer("segue_bpe_1k")


def test_words_of_an_entry_are_tokens_each() -> None:
    words = (
        *archive_words.NAMES, *archive_words.NUMBERS, *archive_words.RELATIONS, *archive_words.EVENTS,
        *TRAINING.materials, *TRAINING.products,
    )  # fmt: skip
    assert [word for word in words if len(TOKENIZER.encode(word)) != 1] == []


@pytest.mark.parametrize("length", [2048, 262144])
def test_the_estimate_of_a_page_is_the_shipped_vocabularys(length: int) -> None:
    shape = Shape(length_tokens=length, page_tokens=1024, fact_region=(0.0, 1.0), classes=tuple(KINDS))
    for seed in range(5):
        task = make_task(seed, shape, Split.train)
        for number in (0, 1, shape.num_pages - 1):
            assert count_tokens(task.page(number)) == len(TOKENIZER.encode(task.page(number)))


def episode_sizes(config: SegueConfig, options: dict[str, object], seed: int, skill: str) -> tuple[int, int, int]:
    """Turns, tokens, and tokens of the longest turn of a demonstration."""
    env, chat = make_env(config.env), Chat(TOKENIZER)
    user, info = env.reset(seed=seed, options=options)
    num_tokens = len(chat.render_task(info["system"], env.tools, user))
    turns: list[int] = []
    while True:
        turn = env.expert(skill, demonstrator_rng(seed, len(turns)))
        (call,) = turn["calls"]
        said = AssistantTurn(
            response=turn["response"], calls=(AssistantCall(tool=call["name"], arguments=call["arguments"]),)
        )
        turns.append(len(chat.render_assistant(said)))
        observation, _, terminated, truncated, _ = env.step(ToolCall(**call))
        if terminated or truncated:
            return len(turns), num_tokens + sum(turns), max(turns)
        num_tokens += len(chat.render_tool_results([CallResult(tool=call["name"], index=1, text=observation)]))


@pytest.mark.parametrize("name", ["archive", "craft"])
@pytest.mark.parametrize("skill", ["expert", "fallible"])
def test_the_experiments_bounds_hold_every_episode_of_training_and_its_variants(name: str, skill: str) -> None:
    config = load_config([f"experiment={name}"])
    assert config.env.id == name
    rollout = config.rollout
    for options in ({}, config.env.eval_options, *config.env.variants.values()):
        for seed in range(25):
            turns, tokens, longest = episode_sizes(config, options, seed, skill)
            assert turns <= rollout.max_turns
            assert longest <= rollout.max_turn_tokens
            assert tokens + rollout.max_turn_tokens <= rollout.max_episode_tokens
    # training episodes are swept in several segments
    assert episode_sizes(config, {}, 0, skill)[1] > config.learner.segment_tokens


def test_the_documented_million_tokens_are_an_episode() -> None:
    text = (ROOT / "docs/environments.md").read_text()
    (command,) = re.findall(r"^segue rollout --demonstrator (.*length_tokens=1000000 .*)$", text, re.MULTILINE)
    config = load_config(shlex.split(command), "rollout")
    turns, tokens, _ = episode_sizes(config, {}, 0, "expert")
    # 199 pages are asked for, and an answer; a page may fall short by up to 16 tokens
    assert turns == 200 <= config.rollout.max_turns
    assert 1_000_000 - 200 * 16 < tokens <= config.rollout.max_episode_tokens - config.rollout.max_turn_tokens
