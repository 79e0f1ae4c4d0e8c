"""Frames between processes; arbitrary messages and cuts: tests/property/test_frames.py."""

import io
from typing import Any

import pytest

from segue.envs.frames import MAX_ATTACHMENT_BYTES, MAX_HEADER_BYTES, FrameError, encode_frame, read_frame


def test_the_layout_is_a_length_a_header_and_the_attachments() -> None:
    data = encode_frame({"a": 1}, (b"xy", b""))
    # {"a":1,"attachments":[2,0]} has 27 characters
    assert data == b"\x00\x00\x00\x1b" + b'{"a":1,"attachments":[2,0]}' + b"xy"
    frame = read_frame(io.BytesIO(data))
    assert frame is not None
    assert (frame.header, frame.attachments) == ({"a": 1}, (b"xy", b""))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, b"bytes", object()])
def test_what_json_cannot_say_is_refused(value: Any) -> None:
    with pytest.raises(FrameError, match="message must be JSON without NaN"):
        encode_frame({"x": value})


def test_too_large_a_message_is_refused_on_both_sides() -> None:
    with pytest.raises(FrameError, match="must have at most"):
        encode_frame({"x": "y" * MAX_HEADER_BYTES})
    with pytest.raises(FrameError, match="attachments must have at most"):
        encode_frame({}, [bytes(MAX_ATTACHMENT_BYTES // 8)] * 9)
    with pytest.raises(FrameError, match="must have at most"):
        read_frame(io.BytesIO(b"\xff\xff\xff\xff"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x00\x00", "ended after 2 of 4 bytes"),
        (b"\x00\x00\x00\x05{}", "ended after 2 of 5 bytes"),
        (b"\x00\x00\x00\x02[]", "must be a JSON object, got list"),
        (b"\x00\x00\x00\x03\xff\xff\xff", "must be JSON without NaN"),
        (b'\x00\x00\x00\x09{"a":NaN}', "NaN is not JSON"),
        (b'\x00\x00\x00\x13{"attachments":[3]}ab', "ended after 2 of 3 bytes"),
        (b'\x00\x00\x00\x14{"attachments":[-3]}', "attachments must be sizes"),
        (b'\x00\x00\x00\x16{"attachments":[1e12]}', "attachments must be sizes"),
        (b'\x00\x00\x00\x1d{"attachments":[999999999999]}', "must be JSON"),
        (b'\x00\x00\x00\x1e{"attachments":[999999999999]}', "attachments must be sizes"),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(FrameError, match=message):
        read_frame(io.BytesIO(data))


def test_the_end_of_the_stream_is_no_error_between_frames() -> None:
    assert read_frame(io.BytesIO(b"")) is None
