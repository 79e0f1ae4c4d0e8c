"""Whatever foreign environments put into info, as JSON."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segue.envs.foreign_info import plain_info
from segue.envs.reply import to_json


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.float32(0.5), 0.5),
        (float("nan"), "nan"),
        (np.array([1.5, -np.inf]), [1.5, "-inf"]),
        (np.array([[1, 2]], np.uint8), [[1, 2]]),
        # as vector environments say who of them spoke
        (
            {"_final": np.array([True, False]), "final": np.array([2.0, 0.0])},
            {"_final": [True, False], "final": [2, 0]},
        ),
        (np.array([None, {}], object), "<object array of 2>"),
        (np.zeros((40, 40)), "<float64 array of 40x40>"),
        ({1: (2, 3)}, {"1": [2, 3]}),
        ({"b", "a"}, ["a", "b"]),
        (b"bytes", "<bytes>"),
        (Path("here"), "<PosixPath>"),
        (list(range(1026)), [*range(1024), "<2 more>"]),
        ({n: n for n in range(1025)}, {**{str(n): n for n in range(1024)}, "...": "<1 more>"}),
        ("x" * 2001, "x" * 2000 + "\n[cut: 2000 of 2001 characters]"),
        (None, None),
    ],
)
def test_a_value_becomes_json(value: Any, plain: Any) -> None:
    assert plain_info({"value": value}) == {"value": plain}
    assert to_json(plain_info({"value": value}), "info") == {"value": plain}


def test_what_holds_itself_ends() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    text = json.dumps(plain_info(endless))
    # eight dictionaries, and the mark of what lies deeper
    assert text.count("again") == 8
    assert "<dict>" in text
