"""The toy of looks shows, ends, charges and words its episodes as its docstring says."""

from dataclasses import replace

import numpy as np
import pytest
from toy_judge import SETTINGS, teach
from toy_looks import WORDS, cut, finished, make_episode, make_group, outcome_of, shown

from segue.actors.task import Task
from segue.model.tokenizer.byte import ByteTokenizer
from segue.rollout.chat import Chat
from segue.rollout.rewards.effort import charge
from segue.rollout.rewards.judge import ScoreForm, to_text
from segue.rollout.trajectory import Outcome

# far, and its sign is c
TASK = Task(number=0, task_id="toy-0", seed=1 + 2 * 2, incarnation=0, budgets={"far": 4})
STREAM = "far look - look - look c {}"


def tokens(words):
    return np.array([WORDS.index(word) for word in words.split()], np.int32)


def episode(words, task=TASK):
    stream = tokens(words)
    return make_episode(task, 0, stream, np.zeros(len(stream), np.float32), step=2)


def test_a_far_sign_is_shown_at_the_third_look_and_a_near_one_at_once() -> None:
    assert [shown(5, k) for k in (1, 2, 3, 4)] == ["-", "-", "c", "c"]
    assert shown(4, 1) == "c"


def test_a_stream_ends_with_the_first_word_that_is_no_look() -> None:
    assert cut(tokens("near look b b look b")).tolist() == tokens("near look b b").tolist()
    assert len(cut(tokens("near look b look"))) == 4


@pytest.mark.parametrize(
    ("last", "outcome"), [("c", Outcome.success), ("d", Outcome.failure), ("look", Outcome.truncated_turns)]
)
def test_the_last_word_decides(last: str, outcome: Outcome) -> None:
    assert outcome_of(episode(STREAM.format(last))) is outcome


def test_terms_read_what_was_read_and_said() -> None:
    assert to_text(finished(episode(STREAM.format("d")))).splitlines() == [
        "task: far",
        "turn 1: look",
        "result: -",
        "turn 2: look",
        "result: -",
        "turn 3: look",
        "result: c",
        "turn 4: d",
    ]


def test_four_sampled_tokens_stay_within_a_budget_of_four_and_earn_less_than_nothing_beyond_one_of_three() -> None:
    played = [episode(STREAM.format("c"), replace(TASK, budgets={"far": budget})) for budget in (4, 3)]
    for one in played:
        one.outcome_terms["success"] = 1.0
        charge(one)
    unrated = episode(STREAM.format("c"))
    members = make_group([*played, unrated], step=2).members
    assert [member.reward for member in members] == [1.0, -1.0, 0.0]
    assert [member.num_trainable for member in members] == [4, 4, 0]


@pytest.mark.parametrize(("last", "value"), [("c", 1.0), ("d", 0.0)])
def test_a_judge_is_taught_the_truth(last: str, value: float) -> None:
    chat = Chat(ByteTokenizer())
    form = ScoreForm(chat, SETTINGS, max_tokens=2000)
    taught = teach(form, chat, episode(STREAM.format(last)))
    assert form.read(taught.token_ids[taught.trainable]) == value
