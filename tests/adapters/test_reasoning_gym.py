"""Data sets of the real `reasoning-gym` package."""

import subprocess
import sys
from collections.abc import Callable
from random import Random

import pytest

from segue.conf.load import load_config
from segue.conf.schema import EnvConfig
from segue.envs.adapters.reasoning import ReasoningGymEnv
from segue.envs.check_report import Finding
from segue.envs.tool import ToolCall

pytestmark = pytest.mark.adapters
ENV_ID = "segue.envs.adapters.reasoning:ReasoningGym-v0"
# those that score answers and give none themselves
WITHOUT_ANSWERS = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}


@pytest.mark.parametrize("name", ["basic_arithmetic", "countdown"])
def test_data_sets_keep_the_contract(name: str, checked: Callable[[EnvConfig], dict[str, Finding]]) -> None:
    assert checked(EnvConfig(id=ENV_ID, kwargs={"name": name})) == {}


def test_every_data_set_scores_its_own_answer_as_success_and_the_same_for_a_seed() -> None:
    import reasoning_gym

    names = set(reasoning_gym.factory.DATASETS) - {"composite"}
    for name in sorted(names):
        env, again = ReasoningGymEnv(name=name), ReasoningGymEnv(name=name)
        question = env.reset(seed=3)
        assert again.reset(seed=3) == question, name
        if name in WITHOUT_ANSWERS:
            with pytest.raises(NotImplementedError, match=f"data set {name} scores answers and knows none"):
                env.expert("expert", Random(0))
            continue
        turn = env.expert("expert", Random(0))
        assert turn == again.expert("expert", Random(1)), name
        *_, terminated, truncated, info = env.step(ToolCall(**turn["calls"][0]))
        assert (terminated, truncated, info["is_success"]) == (True, False, True), name


def test_the_score_is_the_reward_and_an_answer_that_its_scorer_cannot_read_earns_none() -> None:
    env = ReasoningGymEnv(name="prime_factorization", success_score=0.5)
    question, info = env.reset(seed=1)
    assert "prime factorization" in question and info["question_class"] == "prime_factorization"
    reply = env.step(ToolCall(name="answer", arguments={"text": "no such number"}))
    assert reply[:3] == ("wrong", 0.0, True) and reply[4]["scorer_fault"].startswith("ValueError")
    env = ReasoningGymEnv(name="sentence_reordering")
    env.reset(seed=1)
    # what is paid for trying is no success
    reply = env.step(ToolCall(name="answer", arguments={"text": "no such sentence"}))
    assert 0.0 < reply[1] < 1.0 and reply[4]["reward_terms"] == {"score": reply[1]} and reply[4]["is_success"] is False


def test_options_choose_another_data_set_or_other_settings_of_it() -> None:
    env = ReasoningGymEnv(name="chain_sum", config={"min_terms": 2, "max_terms": 2}, system="Only the number.")
    question, info = env.reset(seed=1)
    assert question.count("+") + question.count(" - ") == 1 and info["system"] == "Only the number."
    longer, _ = env.reset(seed=1, options={"config": {"min_terms": 6, "max_terms": 6}})
    assert longer.count("+") + longer.count(" - ") == 5
    _, info = env.reset(seed=1, options={"name": "leg_counting"})
    assert info["question_class"] == "leg_counting"
    for options, words in (
        ({"level": 2}, r"options must be name and config, got \['level'\]"),
        ({"name": "leg_countin"}, "got 'leg_countin'; nearest: leg_counting"),
    ):
        with pytest.raises(ValueError, match=words):
            env.reset(seed=1, options=options)


def test_the_demonstrators_are_as_good_as_they_say() -> None:
    env = ReasoningGymEnv(name="basic_arithmetic")
    for skill, low, high in (("expert", 1.0, 1.0), ("fallible", 0.4, 0.6)):
        successes = 0
        for seed in range(400):
            env.reset(seed=seed)
            turn = env.expert(skill, Random(seed))
            successes += env.step(ToolCall(**turn["calls"][0]))[4]["is_success"]
        assert low <= successes / 400 <= high, skill


def test_the_group_names_a_data_set_and_the_package_brings_no_torch() -> None:
    config = load_config(["env=reasoning_gym", "env.kwargs.name=chain_sum"]).env
    assert (config.id, config.kwargs) == (ENV_ID, {"name": "chain_sum"})
    code = "import sys, reasoning_gym; print({'torch', 'transformers', 'datasets'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "set()"
