"""An episode for a reader: who said what, what calls brought back, what each turn earned.

Every line says by a word what it is: colours, which `NO_COLOR` turns off, tell nothing that is not there without.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from segue.actors.terminal import visible
from segue.actors.words import counted
from segue.model.tokenizer.base import Tokenizer
from segue.rollout.chat import AssistantCall, AssistantTurn, Chat
from segue.rollout.trajectory import Int32Array, Outcome, Trajectory, Turn
from segue.rollout.xtml import MalformedTurn

_LABEL_WIDTH = 9
# label to how its text looks
_STYLES = {
    "system": "blue",
    "user": "blue",
    "thinks": "dim",
    "says": "bold",
    "calls": "cyan",
    "gets": "yellow",
    "earns": "green",
    "malformed": "bold red",
}


def print_trajectory(console: Console, trajectory: Trajectory, tokenizer: Tokenizer, *, is_raw: bool = False) -> None:
    """One episode, then its outcome and what it earned.

    Args:
        is_raw: the stream as it is, structure tokens as marks, in the place of turns.
    """
    title = f"task {trajectory.task_id}, seed {trajectory.seed}"
    console.print(Rule(Text(visible(title)), align="left"))
    text = _raw(trajectory, tokenizer) if is_raw else Text("\n").join(_lines(trajectory, Chat(tokenizer)))
    console.print(text, soft_wrap=True)
    console.print(_verdict(trajectory), soft_wrap=True)


def print_totals(console: Console, trajectories: list[Trajectory]) -> None:
    """What several episodes came to."""
    count = len(trajectories)
    num_solved = sum(trajectory.outcome is Outcome.success for trajectory in trajectories)
    reward = sum(trajectory.reward for trajectory in trajectories) / count
    console.print(f"{num_solved} of {count} succeeded, mean reward {reward:.2f}", highlight=False)


def readable(token_ids: Int32Array, tokenizer: Tokenizer) -> str:
    """Text with structure tokens as XML marks: `<message role="user">…</message>`, a line break after each message."""
    special = tokenizer.special
    marks = {special.open: "<", special.close: "</", special.sep: ">", special.end_of_msg: "\n"}
    names = special.names
    parts: list[str] = []
    text: list[int] = []
    for token_id in token_ids.tolist():
        if token_id in names:
            parts += [tokenizer.decode(text), marks.get(token_id, names[token_id])]
            text = []
        else:
            text.append(token_id)
    return "".join([*parts, tokenizer.decode(text)])


def _raw(trajectory: Trajectory, tokenizer: Tokenizer) -> Text:
    """What was given dim, what was written bright."""
    text, start = Text(), 0
    for turn in trajectory.turns:
        text.append(visible(readable(trajectory.token_ids[start : turn.start], tokenizer)), "dim")
        text.append(visible(readable(trajectory.token_ids[turn.start : turn.end], tokenizer)), "bold cyan")
        start = turn.end
    return text.append(visible(readable(trajectory.token_ids[start:], tokenizer)), "dim")


def _lines(trajectory: Trajectory, chat: Chat) -> Iterator[Text]:
    stream, turns = trajectory.token_ids, trajectory.turns
    yield from _task(stream[: turns[0].start if turns else len(stream)], chat)
    # nobody read what the last turn's calls brought back
    gaps = [*(stream[turn.end : after.start] for turn, after in pairwise(turns)), stream[:0]]
    for number, (turn, gap) in enumerate(zip(turns, gaps, strict=False), start=1):
        yield Text(f"turn {number}", "bold")
        yield from _turn(turn, stream[turn.start : turn.end], gap, chat)


def _task(given: Int32Array, chat: Chat) -> Iterator[Text]:
    try:
        system, user = chat.read_task(given)
    # cut, or of another form
    except MalformedTurn:
        yield _labelled("user", readable(given, chat.tokenizer))
        return
    if system:
        yield _labelled("system", system)
    yield _labelled("user", user)


def _turn(turn: Turn, written: Int32Array, gap: Int32Array, chat: Chat) -> Iterator[Text]:
    try:
        said = chat.parse_assistant(written)
    except MalformedTurn as error:
        yield _labelled("says", readable(written, chat.tokenizer).rstrip("\n"))
        yield _labelled("malformed", str(error))
    else:
        yield from _said(said)
    for result in chat.read_tool_results(gap) if len(gap) else ():
        yield _labelled("gets", result)
    if turn.reward_terms:
        yield _labelled("earns", _terms(turn.reward_terms))


def _said(said: AssistantTurn) -> Iterator[Text]:
    if said.think:
        yield _labelled("thinks", said.think)
    if said.response or not said.calls:
        yield _labelled("says", said.response)
    for call in said.calls:
        yield _labelled("calls", _call(call))
        if call.error is not None:
            yield _labelled("malformed", call.error)


def _call(call: AssistantCall) -> str:
    """`name(key="value")`; texts of several lines stand below, as they are."""
    blocks = {key: value for key, value in call.arguments.items() if isinstance(value, str) and "\n" in value}
    arguments = [
        f"{key}=…" if key in blocks else f"{key}={json.dumps(value, ensure_ascii=False)}"
        for key, value in call.arguments.items()
    ]
    return "\n".join([f"{call.tool}({', '.join(arguments)})", *blocks.values()])


def _labelled(label: str, text: str) -> Text:
    """A label, and text whose further lines stand under the first."""
    indent = " " * (_LABEL_WIDTH + 3)
    body = visible(text).rstrip("\n").replace("\n", f"\n{indent}")
    return Text.assemble("  ", (f"{label:<{_LABEL_WIDTH}} ", "dim"), (body, _STYLES[label]))


def _verdict(trajectory: Trajectory) -> Text:
    """Outcome, length, the reward by its terms over all turns, and what the environment says."""
    totals: dict[str, float] = {}
    for terms in (*(turn.reward_terms for turn in trajectory.turns), trajectory.outcome_terms):
        for name, value in terms.items():
            totals[name] = totals.get(name, 0.0) + value
    style = "green" if trajectory.outcome is Outcome.success else "red"
    size = f"{counted(len(trajectory.turns), 'turn')}, {trajectory.num_tokens} tokens"
    earned = f"reward {trajectory.reward:.2f} ({_terms(totals) or 'nothing earned'})"
    facts = "".join(f"\n  {key} {value}" for key, value in trajectory.info.items())
    return Text.assemble(
        (trajectory.outcome.value, f"bold {style}"), f", {size}, {visible(earned)}", (visible(facts), "dim")
    )


def _terms(terms: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:+.2f}" for name, value in terms.items())
