"""Texts as overrides: whatever is in a path, it is read back as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.conf.load import override_value, text_override


@pytest.mark.parametrize(
    ("text", "override"),
    [
        ("runs/a", "x=runs/a"),
        ("a b", "x=a b"),
        ("a,b", 'x="a,b"'),
        ("3", 'x="3"'),
        ('say "hi"', 'x="say \\"hi\\""'),
        ("a,b\\", 'x="a,b\\\\"'),
    ],
)
def test_a_text_is_quoted_where_it_must_be(text: str, override: str) -> None:
    assert text_override("x", text) == override
    assert override_value(override) == text


@given(st.text(alphabet="ab \\\"'[]{}()=,:$é-~", min_size=1, max_size=8))
def test_every_text_is_read_back_as_it_was(text: str) -> None:
    assert override_value(text_override("x", text)) == text
