"""What a server says on its standard error: passed on to ours, with the end of it at hand for a message."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

_CHUNK_BYTES = 65536
_MAX_BYTES = 2000
_MAX_LINES = 3


class ServerWords:
    """The end of a pipe that a server writes to, and what of it was last."""

    def __init__(self) -> None:
        self._source, sink = os.pipe()
        os.set_blocking(self._source, False)
        self.sink = os.fdopen(sink, "w")
        """For the server."""
        self._last = b""

    def last(self) -> str:
        """The last few lines so far, as one; empty where there are none."""
        self._take()
        lines = self._last.decode(errors="replace").split("\n")
        return " | ".join([line.strip() for line in lines if line.strip()][-_MAX_LINES:])

    async def pass_on(self) -> None:
        """Passes on what comes, until it is cancelled."""
        import anyio

        while True:
            await anyio.wait_readable(self._source)
            self._take()

    def close(self) -> None:
        """Closes both ends."""
        self._take()
        self.sink.close()
        os.close(self._source)

    def _take(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self._source, _CHUNK_BYTES):
                self._last = (self._last + data)[-_MAX_BYTES:]
                sys.stderr.write(data.decode(errors="replace"))
        sys.stderr.flush()


@contextmanager
def hear_server(portal: "BlockingPortal") -> Iterator[ServerWords]:
    """The words of a server that is yet to start; the event loop passes them on meanwhile."""
    words = ServerWords()
    passing_on = portal.start_task_soon(words.pass_on)
    try:
        yield words
    finally:
        passing_on.cancel()
        portal.call(words.close)
