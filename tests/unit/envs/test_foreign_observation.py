"""Text of observations, by space, and what is said of those that no text says."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from segue.envs.foreign_observation import ObservationText, find_unsupported_observation

MAX_CHARS = 100


def render(space: Any, observation: Any, max_chars: int = MAX_CHARS) -> str:
    assert find_unsupported_observation(space) is None
    return ObservationText(space, max_chars).render(observation)


class Missions(spaces.Space[str]):
    """Strings of an environment's own, as grid worlds have them."""

    def __init__(self) -> None:
        super().__init__(dtype=str)


PAIR = spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (2,))))
BOARD = spaces.Box(0, 2, (2, 2), np.int8)
POINTS = spaces.Graph(spaces.Box(0, 9, (2,)), spaces.Discrete(3))


@pytest.mark.parametrize(
    ("space", "observation", "text"),
    [
        (spaces.Discrete(5, start=-2), np.int64(-1), "-1"),
        (spaces.MultiDiscrete([4, 4]), np.array([3, 0]), "3 0"),
        (spaces.MultiBinary((2, 2)), np.array([[1, 0], [0, 0]], np.int8), "1 0\n0 0"),
        (spaces.Box(-9, 9, ()), np.float32(-0.0), "0"),
        (spaces.Box(-9, 9, (3,)), np.array([1 / 3, 12345.6, -2e-7], np.float32), "0.3333 1.235e+04 -2e-07"),
        (spaces.Box(-np.inf, np.inf, (2,), np.float64), [1, 2.5], "1 2.5"),
        (spaces.Box(0, 1, (2,), np.bool_), np.array([True, False]), "1 0"),
        (spaces.Box(0, 1, (0,)), np.zeros(0, np.float32), "none"),
        (spaces.Text(9), "two\nlines of any kind!", "two\nlines of any kind!"),
        (Missions(), "go to the red ball", "go to the red ball"),
        (PAIR, (2, np.array([0.5, 1], np.float32)), "2, 0.5 1"),
        (spaces.Tuple(()), (), "none"),
        (spaces.Tuple((spaces.Discrete(2), BOARD)), (1, np.eye(2, dtype=np.int8)), "0: 1\n1:\n  1 0\n  0 1"),
        (
            spaces.Dict({"board": BOARD, "me": spaces.Dict({"at": PAIR, "name": spaces.Text(9)})}),
            {"board": np.eye(2, dtype=np.int8), "me": {"at": (0, np.zeros(2, np.float32)), "name": "kay"}},
            "board:\n  1 0\n  0 1\nme:\n  at: 0, 0 0\n  name: kay",
        ),
        (spaces.Dict({}), {}, "none"),
        (spaces.Sequence(spaces.Discrete(9)), (1, 8), "1, 8"),
        (spaces.Sequence(spaces.Discrete(9)), (), "none"),
        (spaces.Sequence(spaces.Box(0, 9, (2,)), stack=True), np.array([[1, 2], [3, 4]], np.float32), "1 2, 3 4"),
        (spaces.OneOf((spaces.Discrete(2), BOARD)), (np.int64(0), np.int64(1)), "option 0: 1"),
        (
            POINTS,
            spaces.GraphInstance(
                nodes=np.array([[1, 2], [3, 4]], np.float32), edges=np.array([2]), edge_links=np.array([[1, 0]])
            ),
            "node 0: 1 2\nnode 1: 3 4\nedge 1 to 0: 2",
        ),
        (POINTS, spaces.GraphInstance(nodes=np.array([[1, 2]]), edges=None, edge_links=None), "node 0: 1 2"),
    ],
)
def test_an_observation_becomes_compact_text(space: Any, observation: Any, text: str) -> None:
    assert render(space, observation) == text


def test_an_array_stands_in_full_where_its_space_says_that_it_fits() -> None:
    # digits and spaces: 50 entries take 100 characters
    board = spaces.Box(0, 9, (5, 10), np.int8)
    assert render(board, np.ones((5, 10), np.int8)) == "\n".join(["1 1 1 1 1 1 1 1 1 1"] * 5)
    short = render(board, np.ones((5, 10), np.int8), 99)
    assert short == "int8 array of 5x10 in short: min 1, mean 1, max 1, begins 1 1 1 1 1 1 1 1"
    # a real counts as eight characters, whatever it is
    line = spaces.Box(-1, 1, (13,))
    # eighths, so that every sum is exact
    values = np.arange(-6, 7, dtype=np.float32) / 8
    assert ObservationText(line, 104).in_short() == []
    assert ObservationText(line, 103).in_short() == ["observation"]
    head = "-0.75 -0.625 -0.5 -0.375 -0.25 -0.125 0 0.125"
    assert render(line, values, 103) == f"float32 array of 13 in short: min -0.75, mean 0, max 0.75, begins {head}"


def test_the_keys_that_a_policy_does_not_see_in_full_are_named() -> None:
    space = spaces.Dict({name: spaces.MultiBinary(20) for name in "abcd"})
    observation = {name: np.ones(20, np.int8) for name in "abcd"}
    # a line of each: its key, and twenty numbers with a space between them
    for max_chars, cut in ((42 * 4 + 3, []), (42 * 4 + 2, ["d"]), (42 * 2 + 1, ["c", "d"]), (43 * 2, ["c", "d"])):
        text = ObservationText(space, max_chars)
        assert text.cut(observation) == [f"observation.{name}" for name in cut]
        assert (len(text.render(observation)) > max_chars) == bool(cut)
    assert ObservationText(BOARD, 1).cut(np.zeros((2, 2), np.int8)) == []


def test_a_large_array_of_bytes_is_an_image_and_a_small_one_is_numbers() -> None:
    screen = spaces.Box(0, 255, (84, 84, 3), np.uint8)
    assert render(screen, np.zeros((84, 84, 3), np.uint8)) == "image of 84x84x3, not shown"
    small = spaces.Box(0, 255, (1, 2, 3), np.uint8)
    assert render(small, np.arange(6, dtype=np.uint8).reshape(1, 2, 3)) == "0 1 2\n3 4 5"
    memory = spaces.Box(0, 255, (128,), np.uint8)
    assert render(memory, np.zeros(128, np.uint8)).startswith("uint8 array of 128 in short: min 0, ")
    both = spaces.Dict({"score": spaces.Discrete(9), "views": spaces.Tuple((screen, small))})
    assert ObservationText(both, MAX_CHARS).in_short() == ["observation.views[0]"]


@pytest.mark.parametrize(
    ("space", "observation", "message"),
    [
        (spaces.Discrete(2), 2, r"observation must be in Discrete\(2\), got 2"),
        (spaces.Discrete(2), None, r"observation must be in Discrete\(2\), got None"),
        (spaces.Text(5), 5, "observation must be a string, got 5"),
        (BOARD, np.zeros(4), r"observation must have shape \(2, 2\), got \(4,\)"),
        (BOARD, [["a", "b"], ["c", "d"]], r"observation must hold numbers, got \[\['a', 'b'\]"),
        (spaces.Box(0, 1, (2,)), np.array([0, np.nan]), "observation must be finite, got "),
        (PAIR, (1,), r"observation must be a tuple of 2, got \(1,\)"),
        (PAIR, (1, np.array([np.inf, 0])), r"observation\[1\] must be finite, got "),
        (spaces.Dict({"a": PAIR}), {"b": 1}, r"observation must be a dictionary of \['a'\], got {'b': 1}"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"a": 7}, r"observation\.a must be in Discrete\(2\), got 7"),
        (spaces.OneOf((BOARD,)), (1, 0), "observation must be one of 1, got 1"),
        (POINTS, (1, 2), r"observation must be a GraphInstance, got \(1, 2\)"),
        (spaces.Sequence(spaces.Discrete(2)), (0, 5), r"observation\[1\] must be in Discrete\(2\), got 5"),
    ],
)
def test_what_no_text_says_is_named_with_its_place(space: Any, observation: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        render(space, observation)


def test_a_space_of_nobody_knows_what_is_found_with_its_place() -> None:
    class Unknown(spaces.Space[Any]):
        def __repr__(self) -> str:
            return "Unknown"

    space = spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), spaces.Sequence(Unknown())))})
    assert find_unsupported_observation(space) == "observations.a[1][] Unknown"
    assert find_unsupported_observation(spaces.OneOf((Unknown(),))) == "observations[0] Unknown"
