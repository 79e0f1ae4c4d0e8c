"""What becomes of an error of somebody else's code."""

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
