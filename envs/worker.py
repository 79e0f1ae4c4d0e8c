"""An env worker: runs in a process of its own, under a keeper (`keeper.py`), for one `client.EnvClient`.

Runs many episodes, one call at a time, in the order of the requests. Frames (`frames.py`):

    EnvConfig -> ; <- {} when an environment was built, or {setup_error}
    {op, episode, ...} -> ; <- {ok: reply}, or the episode has ended: {failure} by its environment's fault, {lost} by
        the fault of what that relies on
    {op: close, episode} -> ; no answer

`inspect` and `try_close` are asked by `checker.py` alone.
"""

import contextlib
import os
import socket
from typing import Any, BinaryIO, cast

from segue.conf.schema import EnvConfig
from segue.envs.episodes import EpisodeTable
from segue.envs.errors import EnvironmentFailure, EnvironmentSetupError, InfrastructureFailure
from segue.envs.factory import EnvFactory
from segue.envs.frames import Frame, FrameError, encode_frame, read_frame
from segue.envs.tool import ToolCall


def main(descriptor: int) -> None:
    """Answers frames until the client closes its side.

    Args:
        descriptor: of the socket.
    """
    connection = socket.socket(fileno=descriptor)
    # programs that an environment starts must not hold our socket open
    connection.set_inheritable(False)
    stream = cast(BinaryIO, connection.makefile("rwb"))
    first = read_frame(stream)
    if first is None:
        return
    config = EnvConfig(**first.header)
    _work_in(config.import_folder)
    factory = EnvFactory(config)
    try:
        factory.check()
    except EnvironmentSetupError as error:
        _send(stream, encode_frame({"setup_error": str(error)}))
        return
    _send(stream, encode_frame({}))
    table = EpisodeTable(factory, config.max_observation_chars)
    while (frame := read_frame(stream)) is not None:
        episode_id = frame.header["episode"]
        if frame.header["op"] == "close":
            table.close(episode_id)
            continue
        try:
            answer = _answer(table, frame)
        except (EnvironmentFailure, FrameError) as error:
            table.discard(episode_id)
            answer = encode_frame({"failure": str(error)})
        except InfrastructureFailure as error:
            answer = encode_frame({"lost": str(error)})
        _send(stream, answer)


def _work_in(folder: str | None) -> None:
    """Has relative paths mean the same wherever an environment is played: a run's actors work in its own folder."""
    if folder is not None:
        # a node of a cluster may lack it where nothing is looked for there
        with contextlib.suppress(OSError):
            os.chdir(folder)


def _answer(table: EpisodeTable, frame: Frame) -> bytes:
    request = frame.header
    episode_id: str = request["episode"]
    attachments: tuple[bytes, ...] = ()
    reply: dict[str, Any] = {}
    match request["op"]:
        case "reset":
            reply = table.reset(episode_id, request["seed"], request["options"]).to_header()
        case "step":
            call = ToolCall(name=request["name"], arguments=request["arguments"])
            reply = table.step(episode_id, call).to_header()
        case "expert":
            reply = table.expert(episode_id, request["skill"])
        case "capture":
            data = table.capture(episode_id)
            attachments = () if data is None else (data,)
        case "resume":
            table.resume(episode_id, request["seed"], request["num_steps"], frame.attachments[0])
        case "inspect":
            reply = table.inspect(episode_id).to_header()
        case "try_close":
            calls = [ToolCall(**call) for call in request["calls"]]
            reply = table.try_close(request["seed"], calls).to_header()
        case op:
            raise AssertionError(f"no such request: {op}")
    return encode_frame({"ok": reply}, attachments)


def _send(stream: BinaryIO, data: bytes) -> None:
    stream.write(data)
    stream.flush()
