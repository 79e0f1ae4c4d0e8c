"""What becomes of an error of somebody else's code."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from segue.envs.errors import EnvironmentFailure, boundary


class Mute(Exception):
    """Fails at saying what it is."""

    def __str__(self) -> str:
        raise KeyError("x")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("x" * 2001), f"step: ValueError: {'x' * 2000} [cut: 1 more characters] ("),
        (Mute(), "step: Mute: (its text cannot be had: KeyError) ("),
    ],
)
def test_an_error_that_says_too_much_or_cannot_be_read_is_a_failure_like_others(error: Exception, message: str) -> None:
    with pytest.raises(EnvironmentFailure) as caught, boundary("step"):
        raise error
    assert str(caught.value).startswith(message)


def called_by(modules: list[str], inner: Callable[[], Any]) -> Callable[[], Any]:
    """Calls from module to module, of which the first has the boundary, and at last the inner one."""
    code = "def call():\n    inner()\n"
    for name in reversed(modules[1:]):
        space: dict[str, Any] = {"__name__": name, "inner": inner}
        exec(compile(code, f"{name}.py", "exec"), space)
        inner = space["call"]
    space = {"__name__": modules[0], "inner": inner, "boundary": boundary}
    exec("def call():\n    with boundary('step'):\n        inner()\n", space)
    outermost: Callable[[], Any] = space["call"]
    return outermost


@pytest.mark.parametrize(
    ("modules", "inner", "place", "num_logged"),
    [
        # of the environment's package the frame that is left last, whatever it calls and whatever calls it
        (["segue.envs.adapter", "gymnasium.core", "mine", "mine.inner", "numpy"], partial(int, "x"), "mine.inner", 1),
        (["segue.envs.adapter", "asyncio.tasks", "mine", "other"], partial(int, "x"), "mine", 1),
        # refused by us, which the message says in full; a fault of ours keeps its trace in the log
        (["segue.envs.adapter", "gymnasium.core"], partial(int, "x"), None, 0),
        (["segue.envs.adapter", "segue.envs.tool_env"], partial({}.pop, "x"), None, 1),
    ],
)
def test_a_failure_names_a_place_in_the_environments_own_code_or_none(
    modules: list[str], inner: Callable[[], Any], place: str | None, num_logged: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(EnvironmentFailure) as caught:
        called_by(modules, inner)()
    said = str(caught.value)
    assert said.endswith(f" ({place}.py:2 in call)") if place else not said.endswith(")")
    assert len(caplog.messages) == num_logged
    # of the environment's own frames alone
    assert not place or "adapter" not in caplog.text.partition("\n")[2]
