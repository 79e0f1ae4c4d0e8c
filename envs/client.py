"""The asynchronous side of the env workers: plays many episodes on a few worker processes.

A call runs under one deadline, which starts when its worker is free for it. When it expires the worker is killed and
replaced, and the call's episode is over (`EnvironmentFailure`). A worker that dies under a call may have been killed by
it or from outside, so the call runs once more, on a new worker; one under which that dies, too, ends its episode. The
worker's other episodes, its neighbours, are restored when they are next used: from their last snapshot where the
environment makes them, else from their seed, and from there by replaying their calls and comparing what comes back; one
that comes back different is lost (`RestoreFailure`). In the same way an episode goes on from its record, which may have
been made in another process. An answer that came in time counts, however late this process looks.
"""

import asyncio
import logging
import select
import subprocess
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeVar

from segue.conf.schema import EnvConfig
from segue.envs.clock import present_clock
from segue.envs.episode_record import EpisodeRecord
from segue.envs.errors import EnvironmentFailure, EnvironmentSetupError, InfrastructureFailure, RestoreFailure
from segue.envs.frames import Frame, FrameError, encode_frame, read_frame_async
from segue.envs.leftovers import Leftovers
from segue.envs.process import end_keeper, start_module
from segue.envs.reply import Inspection, ResetReply, StepReply
from segue.envs.tool import ToolCall

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Work = Callable[["_Episode"], Awaitable[Result]]
"""What is to be done on the worker that holds an episode."""

SNAPSHOT_EVERY_STEPS = 16
_LOOK_AGAIN_S = 0.1
# no process of a worker has it
_BEFORE_ALL = 0


@dataclass(kw_only=True, slots=True)
class EnvCounters:
    """What happened to the workers and episodes of one client so far."""

    episodes: int = 0
    """Episodes begun."""
    calls: int = 0
    """Calls answered: resets, steps and demonstrators' turns; replayed ones are not counted."""
    calls_expired: int = 0
    """Calls past their deadline."""
    workers_died: int = 0
    """Workers found dead, under a call or between two."""
    workers_replaced: int = 0
    """Workers started beyond the first ones."""
    environment_failures: int = 0
    """Episodes ended by their environment's fault."""
    episodes_restored: int = 0
    """Episodes carried over to a new worker."""
    episodes_lost: int = 0
    """Episodes ended by infrastructure: not carried over, no worker, or what the environment relies on failed."""


class EnvClient:
    """Episodes on env worker processes, for use in one event loop.

    Invariants (tests/unit/envs/test_client.py):
        A hanging, dying or raising episode costs its neighbours nothing but time.
        Nothing is left running, nor unreaped, after `stop`; nothing is left running after this process's death.
    """

    def __init__(self, config: EnvConfig, num_workers: int) -> None:
        self.counters = EnvCounters()
        self._config = config
        self._workers = [_Worker() for _ in range(num_workers)]
        self._episodes: dict[str, _Episode] = {}
        self._is_stopped = False

    async def start(self) -> None:
        """Starts the workers.

        Raises:
            EnvironmentSetupError: the environment cannot be built.
            InfrastructureFailure: a worker did not start in time.
        """
        results = await asyncio.gather(*map(self._launch, self._workers), return_exceptions=True)
        failure = next((result for result in results if isinstance(result, BaseException)), None)
        if failure is not None:
            await self.stop()
            raise failure

    async def stop(self) -> None:
        """Kills and reaps the workers; calls that still run raise `InfrastructureFailure`."""
        self._is_stopped = True
        self._episodes.clear()
        await asyncio.gather(*(worker.kill() for worker in self._workers))

    async def reset(self, episode_id: str, seed: int, options: dict[str, Any] | None) -> ResetReply:
        """Begins an episode on the worker that has fewest.

        Raises:
            ValueError: an episode of this name is open.
            EnvironmentFailure, InfrastructureFailure: it did not begin.
        """
        episode = self._open(episode_id, seed)
        self.counters.episodes += 1
        return ResetReply.from_header(await self._ask(episode, "reset", seed=seed, options=options))

    async def step(self, episode_id: str, call: ToolCall) -> StepReply:
        """Runs one call of an episode.

        Raises:
            EnvironmentFailure, InfrastructureFailure: the episode is over.
        """
        episode = self._find(episode_id)
        try:
            encode_frame(call.arguments)
        except FrameError as error:
            # too large, or NaN: the model's doing, so it is told and the environment never hears of it
            return StepReply(
                observation=f"error: {error}",
                reward_terms={},
                terminated=False,
                truncated=False,
                info={"invalid_call": str(error)},
            )
        return StepReply.from_header(await self._ask(episode, "step", name=call.name, arguments=call.arguments))

    async def expert(self, episode_id: str, skill: str) -> dict[str, Any]:
        """The demonstrator's next turn: `{"response": str, "calls": [{"name": str, "arguments": dict}, ...]}`.

        Raises:
            EnvironmentFailure, InfrastructureFailure: the episode is over.
        """
        return await self._ask(self._find(episode_id), "expert", skill=skill)

    async def record(self, episode_id: str) -> EpisodeRecord:
        """What `restore` needs; the environment makes a snapshot now, if it makes any.

        Raises:
            EnvironmentFailure, InfrastructureFailure: the episode is over.
        """
        episode = self._find(episode_id)
        if episode.makes_snapshots:
            await self._call(episode, "capture", self._take_snapshot)
        return EpisodeRecord(
            snapshot=episode.snapshot,
            num_snapshot_steps=episode.num_snapshot_steps,
            calls=tuple(episode.log),
        )

    async def restore(self, episode_id: str, seed: int, record: EpisodeRecord) -> None:
        """Goes on with a recorded episode under a new name, on the worker that has fewest.

        Args:
            seed: of the episode's reset.
        Raises:
            ValueError: an episode of this name is open.
            RestoreFailure: it does not come back as it was, and never will.
            InfrastructureFailure: it could not be tried.
        """
        episode = self._open(episode_id, seed)
        episode.take_up(record)
        await self._call(episode, "restore", _do_nothing)

    async def inspect(self, episode_id: str) -> Inspection:
        """What a check asks of an episode's environment, and of the observation that it gave last.

        Raises:
            EnvironmentFailure, InfrastructureFailure: the episode is over.
        """
        work = partial(self._run_held, request={"op": "inspect"})
        return Inspection(**(await self._call(self._find(episode_id), "inspection", work)).header["ok"])

    async def try_close(self, seed: int, calls: Sequence[ToolCall]) -> Leftovers:
        """Plays calls in an environment of its own and closes it twice, all in the time of one call.

        Raises:
            EnvironmentFailure, InfrastructureFailure: it could not be closed.
        """
        episode = self._open(f"close {seed}", seed)
        request = {"op": "try_close", "seed": seed, "calls": [asdict(call) for call in calls]}
        try:
            frame = await self._call(episode, "close", partial(self._run_held, request=request))
            return Leftovers(**frame.header["ok"])
        finally:
            self._forget(episode)

    async def close(self, episode_id: str) -> None:
        """Ends an episode; a name that is not open is none to end."""
        episode = self._episodes.get(episode_id)
        if episode is not None:
            self._forget(episode)
            if episode.generation == episode.worker.generation:
                episode.close()

    async def _ask(self, episode: "_Episode", op: str, **request: Any) -> dict[str, Any]:
        return await self._call(episode, op, partial(self._answer, request={"op": op, **request}))

    async def _call(self, episode: "_Episode", what: str, work: Work[Result]) -> Result:
        # a cancelled caller leaves its call running: the answer must be taken before the worker's next one
        task = asyncio.ensure_future(self._run(episode, what, work))
        task.add_done_callback(_retrieve_exception)
        return await asyncio.shield(task)

    async def _run(self, episode: "_Episode", what: str, work: Work[Result]) -> Result:
        with ExitStack() as wait:
            wait.enter_context(present_clock().wait())
            async with episode.worker.lock:
                if not self._is_open(episode):
                    raise InfrastructureFailure(f"episode {episode.episode_id} was closed while its {what} waited")
                return await self._serve(episode, work, wait)

    async def _serve(self, episode: "_Episode", work: Work[Result], wait: ExitStack) -> Result:
        """Does the work on a worker that is free for it; the episode's wait ends where its own time begins."""
        try:
            await self._prepare(episode)
            wait.close()
            result = await work(episode)
        except EnvironmentFailure:
            self.counters.environment_failures += 1
            self._forget(episode)
            raise
        except InfrastructureFailure:
            self.counters.episodes_lost += 1
            # what a broken replay left behind
            episode.close()
            self._forget(episode)
            raise
        if not self._is_open(episode):
            # it was ended meanwhile, and this call may have brought it into being
            episode.close()
        return result

    async def _answer(self, episode: "_Episode", request: dict[str, Any]) -> dict[str, Any]:
        reply = (await self._run_held(episode, request)).header["ok"]
        episode.generation = episode.worker.generation
        if request["op"] != "expert":
            episode.record(request, reply)
        if self._is_open(episode) and episode.is_snapshot_due():
            await self._take_snapshot(episode)
        self.counters.calls += 1
        return reply

    async def _prepare(self, episode: "_Episode") -> None:
        """Has a living worker hold the episode."""
        worker = episode.worker
        if worker.has_died():
            self.counters.workers_died += 1
            logger.warning("env worker died between two calls (exit status %s)", await worker.kill())
        if worker.process is None:
            self.counters.workers_replaced += 1
            try:
                await self._launch(worker)
            except EnvironmentSetupError as error:
                raise InfrastructureFailure(f"env worker could not be replaced: {error}") from error
        if episode.generation is not None and episode.generation != worker.generation:
            await self._restore(episode)

    async def _restore(self, episode: "_Episode") -> None:
        try:
            if episode.snapshot is not None:
                request = {"op": "resume", "seed": episode.seed, "num_steps": episode.num_snapshot_steps}
                await self._exchange(episode, request, (episode.snapshot,))
            for request, expected in episode.log:
                outcome = _outcome((await self._exchange(episode, request)).header["ok"])
                if outcome != expected:
                    raise RestoreFailure(
                        f"episode {episode.episode_id} could not be restored: replayed, {request['op']} gave "
                        f"{outcome!r:.200}, not {expected!r:.200}"
                    )
        except EnvironmentFailure as error:
            message = f"episode {episode.episode_id} could not be restored: replayed, {error}"
            raise RestoreFailure(message) from error
        episode.generation = episode.worker.generation
        self.counters.episodes_restored += 1

    async def _take_snapshot(self, episode: "_Episode") -> None:
        frame = await self._run_held(episode, {"op": "capture"})
        if frame.attachments:
            episode.snapshot = frame.attachments[0]
            episode.num_snapshot_steps = episode.num_steps
            episode.log.clear()
        else:
            episode.makes_snapshots = False

    async def _run_held(self, episode: "_Episode", request: dict[str, Any]) -> Frame:
        """Has a worker that is prepared run a call; where it dies under it, a new one."""
        try:
            return await self._exchange(episode, request)
        except _WorkerDeath as error:
            if not self._is_open(episode):
                raise
            logger.warning("%s; it runs once more", error)
            with present_clock().wait():
                await self._prepare(episode)
            return await self._exchange(episode, request)

    async def _exchange(self, episode: "_Episode", request: dict[str, Any], attachments: Sequence[bytes] = ()) -> Frame:
        """Sends an episode's worker one request and takes its answer; a worker that gives none is killed."""
        worker = episode.worker
        request = {**request, "episode": episode.episode_id}
        what = f"{request['op']} of episode {episode.episode_id}"
        limit_s = self._config.call_timeout_s
        try:
            frame = await _within(limit_s, worker.exchange(encode_frame(request, attachments)))
        except TimeoutError as error:
            await worker.kill()
            self._raise_if_stopped()
            self.counters.calls_expired += 1
            raise EnvironmentFailure(f"{what} took longer than {limit_s:g} s; its worker was killed") from error
        except (asyncio.IncompleteReadError, OSError, FrameError) as error:
            status = await worker.kill()
            self._raise_if_stopped()
            self.counters.workers_died += 1
            raise _WorkerDeath(f"{what}: the env worker died under it (exit status {status})") from error
        if "failure" in frame.header:
            raise EnvironmentFailure(frame.header["failure"])
        if "lost" in frame.header:
            raise InfrastructureFailure(frame.header["lost"])
        return frame

    async def _launch(self, worker: "_Worker") -> None:
        self._raise_if_stopped()
        limit_s = self._config.start_timeout_s
        try:
            await worker.start()
        except OSError as error:
            await worker.kill()
            raise InfrastructureFailure(f"an env worker could not be started: {error}") from error
        try:
            hello = await _within(limit_s, worker.exchange(encode_frame(asdict(self._config))))
        except TimeoutError as error:
            await worker.kill()
            raise InfrastructureFailure(f"an env worker did not start within {limit_s:g} s") from error
        except (asyncio.IncompleteReadError, OSError, FrameError) as error:
            status = await worker.kill()
            raise InfrastructureFailure(f"an env worker died while it started (exit status {status})") from error
        if "setup_error" in hello.header:
            await worker.kill()
            raise EnvironmentSetupError(hello.header["setup_error"])

    def _open(self, episode_id: str, seed: int) -> "_Episode":
        if episode_id in self._episodes:
            raise ValueError(f"episode_id must be new, got {episode_id!r}, which is open")
        worker = min(self._workers, key=lambda worker: worker.num_episodes)
        worker.num_episodes += 1
        episode = self._episodes[episode_id] = _Episode(episode_id=episode_id, worker=worker, seed=seed)
        return episode

    def _find(self, episode_id: str) -> "_Episode":
        if episode_id not in self._episodes:
            raise ValueError(f"episode_id must name an open episode, got {episode_id!r}")
        return self._episodes[episode_id]

    def _is_open(self, episode: "_Episode") -> bool:
        # by identity: the name may belong to a later episode already
        return self._episodes.get(episode.episode_id) is episode

    def _forget(self, episode: "_Episode") -> None:
        if self._is_open(episode):
            del self._episodes[episode.episode_id]
            episode.worker.num_episodes -= 1

    def _raise_if_stopped(self) -> None:
        if self._is_stopped:
            raise InfrastructureFailure("the env client was stopped")


class _WorkerDeath(EnvironmentFailure):
    """The worker died under a call. One string argument."""


@dataclass(kw_only=True, slots=True, eq=False)
class _Worker:
    """A place for a worker process; `generation` counts the processes that stood in it."""

    process: "subprocess.Popen[bytes] | None" = None
    generation: int = 0
    num_episodes: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _reader: asyncio.StreamReader | None = None
    _writer: asyncio.StreamWriter | None = None

    async def start(self) -> None:
        """Starts a process in this place."""
        self.process, ours = start_module("segue.envs.keeper", flags=("-P",), environment=None)
        self.generation += 1
        self._reader, self._writer = await asyncio.open_connection(sock=ours)

    async def exchange(self, data: bytes) -> Frame:
        """Sends a frame and waits for one."""
        assert self._reader is not None and self._writer is not None, "the worker is not running"
        self._writer.write(data)
        await self._writer.drain()
        return await read_frame_async(self._reader)

    def send(self, data: bytes) -> None:
        """Sends a frame that has no answer; a worker that is gone needs none."""
        if self._writer is not None:
            self._writer.write(data)

    def has_died(self) -> bool:
        """True when the process ended by itself; its keeper, which ends after it, may have something to do yet."""
        return self.process is not None and (self.process.poll() is not None or self._is_hung_up())

    async def kill(self) -> int | None:
        """Kills and reaps the process with all that it started, if there is one; returns its exit status."""
        if self.process is None:
            return None
        process, self.process = self.process, None
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None
        return await asyncio.to_thread(end_keeper, process)

    def _is_hung_up(self) -> bool:
        """True when the other side of the socket is closed."""
        descriptor = -1 if self._writer is None else self._writer.get_extra_info("socket").fileno()
        if descriptor < 0:
            return True
        poller = select.poll()
        poller.register(descriptor, 0)
        return bool(poller.poll(0))


@dataclass(kw_only=True, slots=True, eq=False)
class _Episode:
    """What is needed to begin an episode anew."""

    episode_id: str
    worker: _Worker
    seed: int
    generation: int | None = None
    """Of the process that holds the episode; None before its reset."""
    log: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    """Requests and their outcomes since the snapshot, or since the reset, which it then begins with."""
    num_steps: int = 0
    snapshot: bytes | None = None
    num_snapshot_steps: int = 0
    """Steps that the snapshot has behind it."""
    makes_snapshots: bool = True
    """False once the environment had none."""

    def close(self) -> None:
        """Has the worker forget the episode; one that holds none by this name does nothing."""
        self.worker.send(encode_frame({"op": "close", "episode": self.episode_id}))

    def take_up(self, record: EpisodeRecord) -> None:
        """Has whoever next uses the episode restore it."""
        self.generation = _BEFORE_ALL
        self.snapshot = record.snapshot
        self.num_snapshot_steps = record.num_snapshot_steps
        self.log = list(record.calls)
        self.num_steps = record.num_snapshot_steps + sum(request["op"] == "step" for request, _ in record.calls)

    def record(self, request: dict[str, Any], reply: dict[str, Any]) -> None:
        """Remembers a call that changed the environment."""
        self.log.append((request, _outcome(reply)))
        self.num_steps += request["op"] == "step"

    def is_snapshot_due(self) -> bool:
        """True when replaying has become long."""
        return self.makes_snapshots and len(self.log) >= SNAPSHOT_EVERY_STEPS


def _outcome(reply: dict[str, Any]) -> dict[str, Any]:
    """What must come back the same from a replayed call; info may hold times and the like."""
    return {key: value for key, value in reply.items() if key != "info"}


async def _within(limit_s: float, exchange: Coroutine[Any, Any, Frame]) -> Frame:
    """The answer of an exchange.

    Raises:
        TimeoutError: there was none in time, nor shortly after.
    """
    answer = asyncio.ensure_future(exchange)
    try:
        # where this loop was busy itself, an answer that came in time is taken up only now
        for wait_s in (limit_s, _LOOK_AGAIN_S):
            await asyncio.wait({answer}, timeout=wait_s)
            if answer.done():
                return answer.result()
        raise TimeoutError
    finally:
        answer.cancel()


async def _do_nothing(episode: _Episode) -> None:
    """A call that wants no more than that its episode be there."""


def _retrieve_exception(task: "asyncio.Task[Any]") -> None:
    # where the caller was cancelled nobody else asks for it
    if not task.cancelled():
        task.exception()
