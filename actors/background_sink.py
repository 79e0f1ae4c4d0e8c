"""A sink that works in a thread of its own, so that neither its network nor its faults hold a run up."""

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread

from segue.actors.recorder import Sink, Values

_Event = tuple[str, int, Values]

# a logger that hangs must not fill the memory of a long run: some hundred megabytes at most
_MOST_WAITING = 10_000

# for what was written to be taken up, at the end of a run
CLOSE_TIMEOUT_S = 90.0


class BackgroundSink:
    """Opens another sink, writes to it and closes it, in order, while the run goes on.

    What the other one raises ends it and is told once; what follows is not written to it. One that falls too far behind
    is left alone likewise: a run does not wait for its loggers.

    Args:
        name: of the logger, for the user.
        open_sink: is called in the thread, with what tells the user something; may take long, or raise anything.
        say: is called in the thread of the run.
        close_timeout_s: longest wait at the end of the run.
    """

    def __init__(
        self,
        name: str,
        open_sink: Callable[[Callable[[str], None]], Sink],
        say: Callable[[str], None],
        *,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        self._name = name
        self._open_sink = open_sink
        self._say = say
        self._close_timeout_s = close_timeout_s
        self._events: SimpleQueue[_Event | str] = SimpleQueue()
        self._is_left = False
        self._untold: SimpleQueue[str] = SimpleQueue()
        # a logger that hangs must not keep the process
        self._thread = Thread(target=self._work, name=f"segue-{name}", daemon=True)
        self._thread.start()

    def write(self, kind: str, step: int, values: Values) -> None:
        """See `recorder.Sink`."""
        self._tell()
        if self._is_left or not self._thread.is_alive():
            return
        if self._events.qsize() < _MOST_WAITING:
            self._events.put((kind, step, dict(values)))
        else:
            self._is_left = True
            self._say(f"{self._name} is {_MOST_WAITING} writes behind and is left alone; metrics.jsonl has everything")

    def close(self, status: str) -> None:
        """See `recorder.Sink`; waits for what was written, but not for ever."""
        self._events.put(status)
        if self._is_left:
            return
        self._thread.join(self._close_timeout_s)
        self._tell()
        if self._thread.is_alive():
            self._say(f"{self._name} has not taken everything up after {self._close_timeout_s:.0f} s and is left alone")

    def _work(self) -> None:
        try:
            sink = self._open_sink(self._untold.put)
            while not isinstance(event := self._events.get(), str):
                sink.write(*event)
            sink.close(event)
        # whatever the logger's package, its server or the disk says
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self._untold.put(f"{self._name} failed: {reason}; the run goes on without it, metrics.jsonl has everything")

    def _tell(self) -> None:
        while True:
            try:
                text = self._untold.get_nowait()
            except Empty:
                return
            self._say(text)
