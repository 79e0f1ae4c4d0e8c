"""An episode as the user reads it."""

import io
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
from actor_cases import make_trajectory
from rich.console import Console

from segue.actors.cli.main import _complain
from segue.actors.console import ConsoleView
from segue.actors.playback import print_trajectory, readable
from segue.model.tokenizer.load import load_tokenizer
from segue.rollout.chat import AssistantCall, AssistantTurn, Chat
from segue.rollout.trajectory import Outcome


def test_structure_tokens_are_marks_and_text_stays_as_it_is() -> None:
    tokenizer = load_tokenizer("bytes")
    chat = Chat(tokenizer)
    assert readable(chat.render_task("", (), "is 1 < 2?"), tokenizer) == (
        '<message role="user">is 1 < 2?</message>\n<message role="assistant"><response>'
    )
    turn = AssistantTurn(response="", calls=(AssistantCall(tool="query", arguments={"sql": "SELECT 1"}),))
    text = readable(chat.render_assistant(turn), tokenizer)
    assert '<call tool="query" index="1"><argument key="sql" type="string">SELECT 1</argument></call>' in text
    assert text.endswith("</message>\n")


def test_a_terminal_is_given_nothing_to_act_on() -> None:
    tokenizer = load_tokenizer("bytes")
    # a title, a cleared screen, a carriage return, and one of the second set of controls
    text = "a\x1b]0;title\x07\x1b[2J\r\tb\nc\x9b31m"
    token_ids = np.array(tokenizer.encode(text), np.int32)
    trajectory = replace(
        make_trajectory([(0, 0)] * (len(token_ids) - 2), info={"truth": "\x1b[31m\ud800"}), token_ids=token_ids
    )
    console = Console(file=io.StringIO(), width=200)
    print_trajectory(console, trajectory, tokenizer)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert r"a\x1b]0;title\x07\x1b[2J\r" in printed and r"c\x9b31m" in printed and r"truth \x1b[31m\ud800" in printed
    assert [sign for sign in printed if unicodedata.category(sign) == "Cc" and sign != "\n"] == []


def test_what_a_run_says_and_ends_with_is_no_order_to_the_terminal_either(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(file=io.StringIO(), width=200)
    ConsoleView(command="train", num_steps=1, is_live=False, console=console).say("most often: \x1b[2Jx")
    assert console.file.getvalue() == "most often: \\x1b[2Jx\n"  # type: ignore[attr-defined]
    _complain("most often: \x1b[2Jx")
    assert capsys.readouterr().err == "segue: most often: \\x1b[2Jx\n"


def test_an_episode_ends_with_what_it_earned() -> None:
    trajectory = make_trajectory(
        [(0, 0)] * 3, outcome=Outcome.success, reward_terms={"success": 1.0}, info={"question_class": "max"}
    )
    console = Console(file=io.StringIO(), width=200)
    print_trajectory(console, trajectory, load_tokenizer("bytes"))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "task train-0000000, seed 7" in lines[0]
    assert lines[-1] == "success, 5 tokens, reward 1.00 (turn 1 success +1.00); question_class max"
    # ids 0 to 4 are the bytes that they name
    assert np.array_equal(trajectory.token_ids, np.arange(5))
