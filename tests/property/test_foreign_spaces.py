"""Laws of foreign spaces: actions come back from their arguments, schemas are JSON schemas, observations become text.

Spaces are drawn with the dtypes, shapes and nestings that are supported; samples are the spaces' own.
"""

import copy
import json
import string
from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from segue.envs.foreign_action import TOOL_NAME, ActionCalls, ActionForm, find_unsupported_action
from segue.envs.foreign_observation import ObservationText, find_unsupported_observation
from segue.envs.tool import ToolCall, ToolSpec

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
INTEGERS = (np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint16, np.uint32)
REALS = (np.float16, np.float32, np.float64)
# far from what float16 and int8 end at
SMALL = 100
KEYS = st.one_of(st.text(string.ascii_lowercase + ' "<&é', min_size=1, max_size=4), st.integers(0, 9))


@st.composite
def discretes(draw: st.DrawFn) -> Any:
    dtype = draw(st.sampled_from(INTEGERS))
    start = draw(st.integers(0 if np.issubdtype(dtype, np.unsignedinteger) else -SMALL, SMALL))
    return spaces.Discrete(draw(st.integers(1, 20)), start=start, dtype=dtype)


@st.composite
def multi_discretes(draw: st.DrawFn) -> Any:
    shape = draw(SHAPES)
    dtype = draw(st.sampled_from(INTEGERS))
    counts = np.array(draw(entries(shape, st.integers(1, 9))), dtype).reshape(shape)
    starts = np.array(draw(entries(shape, st.integers(0, 9))), dtype).reshape(shape)
    return spaces.MultiDiscrete(counts, start=starts, dtype=dtype)


@st.composite
def boxes(draw: st.DrawFn) -> Any:
    shape = draw(SHAPES)
    dtype = draw(st.sampled_from((*INTEGERS, *REALS, np.bool_)))
    if dtype is np.bool_:
        return spaces.Box(0, 1, shape, dtype)
    least = 0 if np.issubdtype(dtype, np.unsignedinteger) else -SMALL
    bounds: Any = st.integers(least, SMALL)
    if dtype in REALS:
        bounds = st.floats(-SMALL, SMALL, width=16) | st.just(np.inf)
    ends = np.array(draw(entries((*shape, 2), bounds)), dtype).reshape((*shape, 2))
    low, high = ends.min(-1), ends.max(-1)
    # no box begins at infinity
    low = np.where(np.isposinf(low), -np.inf, low).astype(dtype)
    return spaces.Box(low, np.asarray(high), shape, dtype)


def entries(shape: tuple[int, ...], entry: Any) -> Any:
    count = int(np.prod(shape))
    return st.lists(entry, min_size=count, max_size=count)


@st.composite
def texts(draw: st.DrawFn) -> Any:
    # a null character is lost in what a text space draws
    charset = draw(st.sets(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=200))
    least = draw(st.integers(0, 4))
    return spaces.Text(least + draw(st.integers(0, 4)), min_length=least, charset=frozenset(charset))


MULTI_BINARIES = SHAPES.filter(lambda shape: 0 not in shape and shape).map(spaces.MultiBinary)
LEAVES = st.one_of(discretes(), multi_discretes(), boxes(), texts(), MULTI_BINARIES)


def _nest(inner: Any) -> Any:
    keyed = st.dictionaries(KEYS, inner, max_size=3).filter(lambda d: len(set(map(str, d))) == len(d))
    return st.one_of(keyed.map(spaces.Dict), st.lists(inner, max_size=3).map(spaces.Tuple))


ACTIONS = st.recursive(LEAVES, _nest, max_leaves=5)


def _observe(inner: Any) -> Any:
    numbers = st.one_of(boxes().filter(lambda box: box.shape), discretes())
    graphs = st.builds(spaces.Graph, numbers, st.one_of(st.none(), numbers))
    several = st.lists(inner, min_size=1, max_size=3).map(spaces.OneOf)
    return st.one_of(_nest(inner), inner.map(spaces.Sequence), several, graphs)


OBSERVATIONS = st.recursive(LEAVES, _observe, max_leaves=5)
SEEDS = st.integers(0, 2**31 - 1)


def same(first: Any, second: Any) -> bool:
    """Equal in value, kind, dtype, shape and order, all the way down."""
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, tuple):
        return isinstance(second, tuple) and len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, str):
        return isinstance(second, str) and first == second
    assert isinstance(first, (np.ndarray, np.generic))
    # bytes: not a bit is another
    return (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())


@settings(max_examples=300)
@given(space=ACTIONS, seed=SEEDS)
def test_an_action_comes_back_from_its_arguments_as_it_was(space: Any, seed: int) -> None:
    assert find_unsupported_action(space) is None
    form = ActionForm(space, None)
    tool = ToolSpec(name=TOOL_NAME, description="", parameters=form.parameters)
    space.seed(seed)
    for _ in range(3):
        action = space.sample()
        arguments = json.loads(json.dumps(form.to_arguments(action), allow_nan=False))
        assert ActionCalls(tool, form).find_problem(ToolCall(name=TOOL_NAME, arguments=arguments)) is None
        back = form.to_action(arguments)
        assert space.contains(back)
        assert same(action, back)


@settings(max_examples=200)
@given(space=ACTIONS, seed=SEEDS)
def test_a_schema_is_a_json_schema_that_takes_every_sample(space: Any, seed: int) -> None:
    form = ActionForm(space, None)
    schema = json.loads(json.dumps(form.parameters, allow_nan=False))
    assert schema == form.parameters
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(form.sample(seed))


@settings(max_examples=200)
@given(space=ACTIONS, seed=SEEDS)
def test_samples_follow_from_their_seed_and_leave_the_environments_generator_alone(space: Any, seed: int) -> None:
    form = ActionForm(space, None)
    twin = copy.deepcopy(space)
    space.seed(seed)
    twin.seed(seed)
    assert form.sample(seed + 1) == form.sample(seed + 1)
    assert same(space.sample(), twin.sample())


@settings(max_examples=300)
@given(space=OBSERVATIONS, seed=SEEDS, max_chars=st.sampled_from((1, 50, 2000)))
def test_every_observation_becomes_text_of_one_form(space: Any, seed: int, max_chars: int) -> None:
    assert find_unsupported_observation(space) is None
    writer = ObservationText(space, max_chars)
    space.seed(seed)
    observation = space.sample()
    text = writer.render(observation)
    assert isinstance(text, str)
    assert text == writer.render(observation)
    assert ("in short" in text or "not shown" in text) <= bool(writer.in_short())
