"""What of an observation lies outside of its space, and what only has another form."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from segue.envs.foreign_fit import find_misfits

PLACE = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32))


class Even(spaces.Discrete):
    """Numbers of a range that are even."""

    def contains(self, x: Any) -> bool:
        return bool(super().contains(x) and x % 2 == 0)

    def __repr__(self) -> str:
        return "Even"


@pytest.mark.parametrize(
    ("space", "observation", "misfits", "form_misfits"),
    [
        (PLACE, np.array([1, 5], np.float32), [], []),
        (PLACE, np.array([1, 5.5], np.float32), ["observation[1] is 5.5, above 5.0"], []),
        (PLACE, np.array([-2, 5.5], np.float32), ["observation[0] is -2.0, below -1.0"], []),
        (PLACE, np.array([0.5, 3]), [], ["observation is of float64, the space of float32"]),
        (PLACE, [0.5, 3], [], ["observation is a list, not an array"]),
        (spaces.Box(0, 1, ()), 0.5, [], []),
        (spaces.Box(0, 1, ()), np.float32(2), ["observation is 2.0, above 1.0"], []),
        (spaces.MultiBinary(2), np.array([0, 2], np.int8), ["observation[1] is 2, above 1"], []),
        (spaces.MultiDiscrete([[2, 2]]), np.array([[0, 2]]), ["observation[0, 1] is 2, above 1"], []),
        (spaces.Text(3, charset="ab"), "abba", ["observation has 4 characters, the space 1 to 3"], []),
        (spaces.Text(3, charset="ab"), "cad", ["observation has characters that the space has not: 'cd'"], []),
        (
            spaces.Dict({"at": spaces.Tuple((PLACE, spaces.Discrete(2)))}),
            {"at": (np.array([0, 9], np.float32), 1)},
            ["observation.at[0][1] is 9.0, above 5.0"],
            [],
        ),
        (spaces.Sequence(spaces.Discrete(2)), [0, 1], [], ["observation is a list, not a tuple"]),
        (spaces.Sequence(PLACE), (np.array([0, 9], np.float32),), ["observation[0][1] is 9.0, above 5.0"], []),
        (spaces.OneOf((Even(4),)), (0, 1), ["observation is not in OneOf(Even)"], []),
        (Even(4), 3, ["observation is not in Even"], []),
    ],
)
def test_a_misfit_is_told_with_its_place(
    space: Any, observation: Any, misfits: list[str], form_misfits: list[str]
) -> None:
    assert find_misfits(space, observation) == (misfits, form_misfits)
