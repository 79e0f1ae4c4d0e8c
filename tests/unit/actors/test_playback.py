"""An episode as the user reads it, and one that cannot be played."""

import asyncio
import io
import re
import unicodedata
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from actor_cases import make_trajectory
from rich.console import Console

from segue.actors.cli.main import _complain
from segue.actors.console import ConsoleView
from segue.actors.episode_view import print_totals, print_trajectory, readable
from segue.actors.errors import RunError
from segue.actors.patient_console import PatientConsole
from segue.actors.playback import _demonstrate
from segue.conf.schema import SegueConfig
from segue.envs.client import EnvClient
from segue.envs.errors import EnvironmentSetupError, InfrastructureFailure
from segue.model.tokenizer.load import load_tokenizer
from segue.rollout.chat import AssistantCall, AssistantTurn, CallResult, Chat
from segue.rollout.trajectory import Outcome, Trajectory, Turn


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
    printed = shown(trajectory) + shown(trajectory, is_raw=True)
    assert printed.count(r"]0;title\x07\x1b[2J\r") == 2
    assert r"a\x1b]0;title\x07\x1b[2J\r" in printed and r"c\x9b31m" in printed and r"truth \x1b[31m\ud800" in printed
    assert [sign for sign in printed if unicodedata.category(sign) == "Cc" and sign != "\n"] == []


def test_what_a_run_says_and_ends_with_is_no_order_to_the_terminal_either(capsys: pytest.CaptureFixture[str]) -> None:
    console = PatientConsole(file=io.StringIO(), width=200)
    ConsoleView(command="train", num_steps=1, is_live=False, console=console).say("most often: \x1b[2Jx")
    assert console.file.getvalue() == "most often: \\x1b[2Jx\n"  # type: ignore[attr-defined]
    _complain("most often: \x1b[2Jx")
    assert capsys.readouterr().err == "segue: most often: \\x1b[2Jx\n"


def shown(trajectory: Trajectory, *, is_raw: bool = False, **console: Any) -> str:
    file = io.StringIO()
    print_trajectory(Console(file=file, width=60, **console), trajectory, load_tokenizer("bytes"), is_raw=is_raw)
    return file.getvalue()


def make_episode() -> Trajectory:
    """A task, a turn of two calls and their results, and a turn that is cut."""
    chat = Chat(load_tokenizer("bytes"))
    first = AssistantTurn(
        response="let me see",
        calls=(
            AssistantCall(tool="query", arguments={"sql": "SELECT 1", "limit": 3}),
            AssistantCall(tool="run", arguments={"code": "import os\nprint(1)\n"}),
        ),
    )
    results = [CallResult(tool="query", index=1, text="2 rows\n7"), CallResult(tool="run", index=2, text="error: no")]
    parts = [
        chat.render_task("be kind", (), "how many ports has a name that is longer than a line of this terminal?"),
        chat.render_assistant(first),
        chat.render_tool_results(results),
        chat.render_assistant(AssistantTurn(response="7"))[:-3],
    ]
    ends = np.cumsum([len(part) for part in parts]).tolist()
    turns = (
        Turn(start=ends[0], end=ends[1], temperature=1.0, reward_terms={"process": 0.1, "cost": -0.2}, num_calls=2),
        Turn(start=ends[2], end=ends[3], temperature=1.0, reward_terms={"process": 0.05}, num_calls=0),
    )
    facts = {"outcome": Outcome.malformed, "info": {"question_class": "max"}}
    plain = make_trajectory([(0, 0)] * (ends[-1] - 2), **facts)
    return replace(plain, token_ids=np.concatenate(parts), turns=turns, outcome_terms={"brevity": 0.5})


def test_an_episode_is_told_turn_by_turn_with_what_each_said_called_got_and_earned() -> None:
    title, *lines = shown(make_episode()).splitlines()
    assert title.startswith("task train-0000000, seed 7 ─")
    assert lines == [
        "  system    be kind",
        # the terminal breaks it, so that it can be copied
        "  user      how many ports has a name that is longer than a line of this terminal?",
        "turn 1",
        "  says      let me see",
        '  calls     query(sql="SELECT 1", limit=3)',
        "  calls     run(code=…)",
        "            import os",
        "            print(1)",
        "  gets      2 rows",
        "            7",
        "  gets      error: no",
        "  earns     process +0.10, cost -0.20",
        "turn 2",
        "  says      7</response></messag",
        "  malformed expected the end of message, got that of 'messag'",
        "  earns     process +0.05",
        f"malformed, 2 turns, {make_episode().num_tokens} tokens, "
        "reward 0.45 (process +0.15, cost -0.20, brevity +0.50)",
        "  question_class max",
    ]


def test_the_raw_form_is_the_stream_and_nothing_else() -> None:
    episode = make_episode()
    text = shown(episode, is_raw=True).split("\n", 1)[1]
    assert text.startswith(readable(episode.token_ids, load_tokenizer("bytes")) + "\nmalformed, 2 turns, ")


def test_colours_tell_roles_and_no_color_turns_them_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    options = {"force_terminal": True, "color_system": "standard"}
    coloured = shown(make_episode(), **options)
    # what is given, called, got, earned and wrong: blue, cyan, yellow, green, red
    for code, text in ((34, "be kind"), (36, "query("), (33, "2 rows"), (32, "process +0.10"), (31, "expected")):
        assert re.search(rf"\x1b\[(?:1;)?{code}m{re.escape(text)}", coloured)
    monkeypatch.setenv("NO_COLOR", "1")
    assert re.findall(r"\x1b\[(?:\d;)?(?:3\d|4\d|9\d)", shown(make_episode(), **options)) == []
    bare = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    assert bare == shown(make_episode())


def test_an_episode_without_a_turn_shows_its_task() -> None:
    chat = Chat(load_tokenizer("bytes"))
    stream = chat.render_task("", (), "too long a task")
    episode = make_trajectory([(0, 0)] * (len(stream) - 2), outcome=Outcome.truncated_length)
    lines = shown(replace(episode, token_ids=stream, turns=())).splitlines()[1:]
    assert lines[0] == "  user      too long a task"
    assert lines[1] == f"{Outcome.truncated_length.value}, 0 turns, {len(stream)} tokens, reward 0.00 (nothing earned)"


def test_several_episodes_end_with_what_they_came_to() -> None:
    file = io.StringIO()
    solved = make_trajectory([(0, 0)], outcome=Outcome.success, reward_terms={"success": 1.0})
    print_totals(Console(file=file), [solved, make_episode(), solved])
    # (1 + 0.45 + 1) / 3
    assert file.getvalue() == "2 of 3 succeeded, mean reward 0.82\n"


@pytest.mark.parametrize("kind", [EnvironmentSetupError, InfrastructureFailure])
def test_a_demonstrator_whose_workers_do_not_start_is_one_line(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    async def fail(client: EnvClient) -> None:
        raise kind("its port is taken")

    # what one worker can build, several may not
    monkeypatch.setattr(EnvClient, "start", fail)
    with pytest.raises(RunError, match=r"^the demonstrator could not play: its port is taken$"):
        asyncio.run(_demonstrate(SegueConfig(), [0]))
