"""What travels from an environment: JSON values only, and bounded text."""

from typing import Any

import numpy as np
import pytest

from segue.envs.reply import ResetReply, StepReply, cut_text, to_json
from segue.envs.tool import ToolSpec, object_schema


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": (1, 2.5, None, True, "x")}, {"a": [1, 2.5, None, True, "x"]}),
        ({1: np.int64(3), "f": np.float32(0.5), "b": np.bool_(True)}, {"1": 3, "f": 0.5, "b": True}),
        ({"m": np.eye(2, dtype=np.int8)}, {"m": [[1, 0], [0, 1]]}),
    ],
)
def test_info_becomes_json(value: Any, expected: Any) -> None:
    assert to_json(value, "info") == expected


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({"a": [1.0, float("nan")]}, ValueError, r"info\.a\[1\] must be finite, got nan"),
        ({"a": np.array([np.inf])}, ValueError, r"info\.a\[0\] must be finite, got inf"),
        ({"a": np.zeros(2000)}, ValueError, r"info\.a must have at most 1024 entries, got 2000"),
        ({"a": {1, 2}}, TypeError, r"info\.a must be JSON .*, got set"),
        ({"a": b"x"}, TypeError, r"info\.a must be JSON .*, got bytes"),
    ],
)
def test_what_json_cannot_say_is_named(value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        to_json(value, "info")


def test_text_is_cut_with_a_note() -> None:
    assert cut_text("abcdef", 6) == "abcdef"
    assert cut_text("abcdefg", 6) == "abcdef\n[cut: 6 of 7 characters]"


def test_replies_come_back_from_their_headers() -> None:
    spec = ToolSpec(name="t", description="d", parameters=object_schema({"x": {"type": "integer"}}))
    reset = ResetReply(observation="o", system="s", tools=(spec,), info={"k": 1})
    assert ResetReply.from_header(reset.to_header()) == reset
    step = StepReply(observation="o", reward_terms={"a": 0.5}, terminated=True, truncated=False, info={})
    assert StepReply.from_header(step.to_header()) == step
