"""Any message survives the wire; any other bytes are a `FrameError`, never something else."""

import asyncio
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.envs.frames import Frame, FrameError, encode_frame, read_frame, read_frame_async

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
HEADERS = st.dictionaries(st.text().filter(lambda key: key != "attachments"), JSON_VALUES, max_size=4)
FRAMES = st.builds(Frame, HEADERS, st.lists(st.binary(max_size=50), max_size=3).map(tuple))


@settings(max_examples=100)
@given(st.lists(FRAMES, max_size=4))
def test_frames_come_back_as_they_were_sent(frames: list[Frame]) -> None:
    data = b"".join(encode_frame(frame.header, frame.attachments) for frame in frames)
    stream = io.BytesIO(data)
    assert [read_frame(stream) for _ in frames] == frames
    assert read_frame(stream) is None

    async def read_all() -> list[Frame]:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return [await read_frame_async(reader) for _ in frames]

    assert asyncio.run(read_all()) == frames


@settings(max_examples=100)
@given(FRAMES, st.data())
def test_a_cut_frame_is_refused(frame: Frame, data: st.DataObject) -> None:
    encoded = encode_frame(frame.header, frame.attachments)
    size = data.draw(st.integers(1, len(encoded) - 1))
    with pytest.raises(FrameError):
        read_frame(io.BytesIO(encoded[:size]))


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_raise_nothing_else(data: bytes) -> None:
    stream = io.BytesIO(data)
    try:
        while read_frame(stream) is not None:
            pass
    except FrameError:
        pass
