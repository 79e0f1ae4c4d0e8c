"""A server that speaks the protocol of OpenEnv's from a script, for tests: what is asked, and what it answers.

The frames are those of `openenv` 0.10.0, whose own servers are played in `tests/adapters/`.
"""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve


@dataclass(kw_only=True)
class SpokenOpenEnv:
    """One server: every session is given the same answers, in order; an int closes the session instead."""

    action: Any
    answers: list[dict[str, Any] | int]
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)

    def respond(self, connection: ServerConnection, request: Request) -> Response | None:
        """The schema, to whoever does not want a socket."""
        if request.path == "/ws":
            return None
        if request.path != "/schema" or self.action is None:
            return connection.respond(HTTPStatus.NOT_FOUND, "no such thing")
        return connection.respond(HTTPStatus.OK, json.dumps({"action": self.action}))

    def answer(self, connection: ServerConnection) -> None:
        """A session."""
        answers = iter(self.answers)
        for message in connection:
            self.asked.append(json.loads(message))
            if self.asked[-1]["type"] == "close":
                return
            frame = next(answers, None)
            if isinstance(frame, int):
                connection.close(frame)
                return
            # none left: it hangs
            if frame is not None:
                connection.send(json.dumps(frame))


@contextlib.contextmanager
def spoken_openenv(action: Any, *answers: dict[str, Any] | int) -> Iterator[SpokenOpenEnv]:
    """A server on a free port of this machine, for as long as the context."""
    spoken = SpokenOpenEnv(action=action, answers=list(answers))
    with serve(spoken.answer, "127.0.0.1", 0, process_request=spoken.respond) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        spoken.url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        try:
            yield spoken
        finally:
            server.shutdown()
            thread.join()


def observed(observation: dict[str, Any], reward: float | None = None, done: bool = False) -> dict[str, Any]:
    """An answer to a reset or a step."""
    data = {"observation": {"metadata": {}, **observation}, "reward": reward, "done": done}
    return {"type": "observation", "data": data}


def refused(code: str, message: str, **more: Any) -> dict[str, Any]:
    """An answer that is an error."""
    return {"type": "error", "data": {"message": message, "code": code, **more}}
