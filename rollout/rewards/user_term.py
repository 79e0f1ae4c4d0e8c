"""Terms of the user's: found by name, and kept from holding up the event loop or ending a run."""

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import Future
from copy import deepcopy
from functools import partial
from threading import Thread
from typing import Any

from segue.conf.reward_term import RewardTermSpec
from segue.envs.errors import EnvironmentSetupError, InfrastructureFailure, boundary
from segue.envs.user_module import find_user_object
from segue.rollout.rewards.term import FinishedEpisode


class UserTerm:
    """A term whose failures are those of infrastructure, and which runs in a thread where it is not `async`.

    Each try has an episode of its own: what one does to it, no other sees, nor one that was late and still runs.
    """

    def __init__(self, name: str, term: Any) -> None:
        self._name = name
        self._term = term
        self._is_async = inspect.iscoroutinefunction(term) or inspect.iscoroutinefunction(term.__call__)

    async def __call__(self, episode: FinishedEpisode) -> Any:
        """See `RewardTerm`."""
        with boundary(f"reward term {self._name}", InfrastructureFailure):
            try:
                if self._is_async:
                    return await self._term(await asyncio.to_thread(deepcopy, episode))
                value = await _run_in_thread(lambda: self._term(deepcopy(episode)))
                return await value if inspect.isawaitable(value) else value
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # nobody called it off: it would pass for the end of the whole group
                raise InfrastructureFailure(f"reward term {self._name} cancelled itself") from error


def find_user_term(spec: RewardTermSpec, folder: str | None) -> Callable[..., Any]:
    """What `my_module:my_term` names; called with the configured arguments it could be.

    Args:
        folder: `env.import_folder`.
    Raises:
        EnvironmentSetupError: it is not there, cannot be called, or not with these arguments.
    """
    named_by = f"{spec.path}.term={spec.term}"
    found = find_user_object(spec.term, folder, named_by=named_by)
    if not callable(found):
        raise EnvironmentSetupError(f"{named_by} must name a function or a class, got {found!r:.200}")
    given = () if inspect.isclass(found) else ("the episode",)
    try:
        inspect.signature(found).bind(*given, **spec.kwargs)
    # a builtin may not say what it takes
    except (TypeError, ValueError) as error:
        arguments = ", ".join((*given, *spec.kwargs))
        raise EnvironmentSetupError(
            f"{named_by} must take ({arguments}), as {spec.path}.kwargs says: {error}"
        ) from error
    return found


def build_user_term(spec: RewardTermSpec, folder: str | None) -> UserTerm:
    """The term, ready to rate.

    Raises:
        EnvironmentSetupError: see `find_user_term`; or its class cannot be built.
    """
    found = find_user_term(spec, folder)
    if not inspect.isclass(found):
        return UserTerm(spec.name, partial(found, **spec.kwargs))
    try:
        term = found(**spec.kwargs)
    except (Exception, SystemExit) as error:
        raise EnvironmentSetupError(
            f"{spec.path}.term={spec.term} cannot be built: {type(error).__name__}: {error}"
        ) from error
    if not callable(term):
        raise EnvironmentSetupError(f"{spec.path}.term={spec.term} must build what can be called with an episode")
    return UserTerm(spec.name, term)


async def _run_in_thread(function: Callable[[], Any]) -> Any:
    """Run in a thread of its own: one that hangs takes nobody's place, and holds up no exit."""
    result: Future[Any] = Future()
    # running: cancelling the wait leaves the thread to end when it likes
    result.set_running_or_notify_cancel()

    def work() -> None:
        try:
            result.set_result(function())
        except StopIteration as error:
            # no future takes it: the wait would not end
            result.set_exception(RuntimeError(f"raised StopIteration {error}".rstrip()))
        except BaseException as error:
            result.set_exception(error)

    Thread(target=work, name="reward term", daemon=True).start()
    return await asyncio.wrap_future(result)
