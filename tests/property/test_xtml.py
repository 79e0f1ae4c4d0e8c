"""Laws of the chat under arbitrary text, arguments and sampled ids, for both tokenizers and both modes."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.envs.tool import ToolSpec, object_schema
from segue.model.tokenizer.base import Tokenizer
from segue.model.tokenizer.byte import ByteTokenizer
from segue.model.tokenizer.load import load_tokenizer
from segue.model.tokenizer.special import STRUCTURE_TOKENS
from segue.rollout.chat import AssistantCall, AssistantTurn, CallResult, Chat, Mode
from segue.rollout.xtml import MalformedTurn

TOKENIZERS = (ByteTokenizer(), load_tokenizer("segue_bpe_1k"))

# arbitrary text, and text that imitates structure
TEXTS = st.lists(
    st.one_of(
        st.text(max_size=12), st.sampled_from([*STRUCTURE_TOKENS, '="', "&quot;", "&amp;", 'message role="tool"'])
    ),
    max_size=6,
).map("".join)
NUMBERS = st.one_of(st.integers(-(10**20), 10**20), st.floats(allow_nan=False, allow_infinity=False))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
CALLS = st.builds(AssistantCall, tool=TEXTS, arguments=st.dictionaries(TEXTS, JSON, max_size=3))


@st.composite
def chats(draw: st.DrawFn) -> Chat:
    return Chat(draw(st.sampled_from(TOKENIZERS)), draw(st.sampled_from(Mode)))


@st.composite
def turns(draw: st.DrawFn, mode: Mode) -> AssistantTurn:
    think = draw(TEXTS) if mode is Mode.thinking else ""
    return AssistantTurn(response=draw(TEXTS), calls=tuple(draw(st.lists(CALLS, max_size=2))), think=think)


def structure_of(tokenizer: Tokenizer, ids: np.ndarray[Any, Any]) -> list[str]:
    names = tokenizer.special.names
    return [names[i] for i in ids.tolist() if i in names]


@given(chats(), st.data())
def test_reading_a_rendered_turn_gives_it_back(chat: Chat, data: st.DataObject) -> None:
    turn = data.draw(turns(chat.mode))
    ids = chat.render_assistant(turn)
    assert ids.dtype == np.int32
    assert chat.parse_assistant(ids) == turn


@given(chats(), TEXTS, TEXTS, TEXTS)
def test_text_never_becomes_structure(chat: Chat, system: str, user: str, name: str) -> None:
    tools = (ToolSpec(name=name, description=user, parameters=object_schema({system: {"type": "string"}})),)
    prompt = chat.render_task("x" + system, tools, user)
    message = ["<|open|>", "<|sep|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"]
    prefix = ["<|open|>", "<|sep|>"] * 2
    assert structure_of(chat.tokenizer, prompt) == message * 3 + prefix
    results = chat.render_tool_results([CallResult(tool=name, index=1, text=user)])
    assert structure_of(chat.tokenizer, results) == message + prefix


@given(chats(), TEXTS, TEXTS, TEXTS)
def test_reading_a_rendered_task_or_result_gives_its_texts_back(chat: Chat, system: str, user: str, name: str) -> None:
    tools = (ToolSpec(name=name, description=user, parameters=object_schema({system: {"type": "string"}})),)
    for declared in (tools, ()):
        assert chat.read_task(chat.render_task(system, declared, user)) == (system, user)
    results = [CallResult(tool=name, index=2, text=user), CallResult(tool=name, index=1, text=system)]
    assert chat.read_tool_results(chat.render_tool_results(results)) == (system, user)


@given(chats(), TEXTS)
def test_text_is_what_it_decodes_to(chat: Chat, text: str) -> None:
    assert chat.tokenizer.decode(chat.tokenizer.encode(text)) == text


@given(chats(), st.data())
def test_a_forged_tool_result_is_malformed_wherever_it_stands(chat: Chat, data: st.DataObject) -> None:
    ids = chat.render_assistant(data.draw(turns(chat.mode))).tolist()
    forged = chat.render_tool_results([CallResult(tool="query", index=1, text=data.draw(TEXTS))]).tolist()
    end = forged.index(chat.tokenizer.special.end_of_msg) + 1
    place = data.draw(st.integers(0, len(ids)))
    with pytest.raises(MalformedTurn):
        chat.parse_assistant(ids[:place] + forged[:end] + ids[place:])


@given(chats(), st.data())
def test_a_turn_cut_anywhere_is_malformed(chat: Chat, data: st.DataObject) -> None:
    ids = chat.render_assistant(data.draw(turns(chat.mode)))
    with pytest.raises(MalformedTurn):
        chat.parse_assistant(ids[: data.draw(st.integers(0, len(ids) - 1))])


@settings(max_examples=300)
@given(chats(), st.data())
def test_whatever_ids_are_read_only_malformed_turn_is_raised(chat: Chat, data: st.DataObject) -> None:
    special = st.sampled_from(list(chat.tokenizer.special.names))
    texts = st.sampled_from([chat.tokenizer.encode(t) for t in ("response", "tools", 'call tool="q" index="1"', "1")])
    pieces = st.one_of(special.map(lambda i: [i]), st.integers(-1, 1100).map(lambda i: [i]), texts)
    ids = [i for piece in data.draw(st.lists(pieces, max_size=30)) for i in piece]
    with suppress(MalformedTurn):
        chat.parse_assistant(ids)


@settings(max_examples=300)
@given(chats(), st.data())
def test_a_damaged_turn_is_malformed_or_another_turn(chat: Chat, data: st.DataObject) -> None:
    ids = chat.render_assistant(data.draw(turns(chat.mode))).tolist()
    place = data.draw(st.integers(0, len(ids) - 1))
    ids[place] = data.draw(st.integers(0, chat.tokenizer.vocab_size - 1))
    with suppress(MalformedTurn):
        turn = chat.parse_assistant(ids)
        # what is accepted has the structure of a turn, and text around it only where a turn has text
        assert structure_of(chat.tokenizer, chat.render_assistant(turn)) == structure_of(chat.tokenizer, np.array(ids))
