"""Frames between processes: a 4-byte length, a JSON header, binary attachments. Data only, never a pickle.

    | header length, uint32 big-endian | header: UTF-8 JSON object | attachment 0 | attachment 1 | ...

The header's key `attachments` holds the attachments' sizes in bytes. NaN and infinities are refused on both sides.
"""

import asyncio
import json
import struct
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, NamedTuple

MAX_HEADER_BYTES = 4 * 2**20
MAX_ATTACHMENT_BYTES = 256 * 2**20
_LENGTH = struct.Struct(">I")
_ATTACHMENTS = "attachments"


class Frame(NamedTuple):
    """One message."""

    header: dict[str, Any]
    attachments: tuple[bytes, ...] = ()


class FrameError(Exception):
    """The bytes are no frame, or the values do not fit one. One string argument."""


def encode_frame(header: dict[str, Any], attachments: Sequence[bytes] = ()) -> bytes:
    """Bytes of one message.

    Raises:
        FrameError: a value is NaN, infinite or not JSON, or the message is too large.
    """
    sizes = [len(part) for part in attachments]
    if sum(sizes) > MAX_ATTACHMENT_BYTES:
        raise FrameError(f"attachments must have at most {MAX_ATTACHMENT_BYTES} bytes in all, got {sum(sizes)}")
    if attachments:
        header = {**header, _ATTACHMENTS: sizes}
    try:
        data = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise FrameError(f"message must be JSON without NaN: {error}") from error
    if len(data) > MAX_HEADER_BYTES:
        raise FrameError(f"message must have at most {MAX_HEADER_BYTES} bytes, got {len(data)}")
    return b"".join((_LENGTH.pack(len(data)), data, *attachments))


def read_frame(stream: BinaryIO) -> Frame | None:
    """Reads one message from a blocking stream; None at its end.

    Raises:
        FrameError: the stream ends inside a message, or holds something else.
    """
    prefix = stream.read(_LENGTH.size)
    if not prefix:
        return None
    header = _decode_header(_read_exactly(stream, _header_size(prefix)))
    return Frame(header, tuple(_read_exactly(stream, size) for size in _attachment_sizes(header)))


async def read_frame_async(stream: asyncio.StreamReader) -> Frame:
    """Reads one message from an asyncio stream.

    Raises:
        asyncio.IncompleteReadError: the stream ended.
        FrameError: the stream holds something else.
    """
    prefix = await stream.readexactly(_LENGTH.size)
    header = _decode_header(await stream.readexactly(_header_size(prefix)))
    return Frame(header, tuple([await stream.readexactly(size) for size in _attachment_sizes(header)]))


def _read_exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise FrameError(f"stream ended after {len(data)} of {size} bytes")
    return data


def _header_size(prefix: bytes) -> int:
    if len(prefix) != _LENGTH.size:
        raise FrameError(f"stream ended after {len(prefix)} of {_LENGTH.size} bytes")
    size: int = _LENGTH.unpack(prefix)[0]
    if size > MAX_HEADER_BYTES:
        raise FrameError(f"message must have at most {MAX_HEADER_BYTES} bytes, got {size}")
    return size


def _decode_header(data: bytes) -> dict[str, Any]:
    try:
        header = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"message must be JSON without NaN: {error}") from error
    if not isinstance(header, dict):
        raise FrameError(f"message must be a JSON object, got {type(header).__name__}")
    return header


def _attachment_sizes(header: dict[str, Any]) -> Iterable[int]:
    sizes = header.pop(_ATTACHMENTS, [])
    is_list = isinstance(sizes, list) and all(type(size) is int and size >= 0 for size in sizes)
    if not is_list or sum(sizes) > MAX_ATTACHMENT_BYTES:
        raise FrameError(f"attachments must be sizes of at most {MAX_ATTACHMENT_BYTES} bytes in all, got {sizes}")
    return sizes


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
