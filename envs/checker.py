"""Holds an environment against the contract of docs/environments.md, as `segue check-env` does.

    two env workers, as a run has them          -> builds
    arbitrary calls on the first                -> begins runs time tools spaces rewards ends success info
    the demonstrator's episodes                 -> demonstrator
    all of these calls on the second            -> seeds
    one bad call in an episode                  -> bad calls
    an episode carried from one to the other    -> restore
    an environment that is closed twice         -> close

What hangs or crashes is a finding as any other. A failure is put down to one check; where arbitrary calls fail, those
that come after are not reached.
"""

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from typing import Any

from segue.conf.schema import EnvConfig
from segue.envs.check_bad_call import bad_calls
from segue.envs.check_judge import judge, judge_begun, some
from segue.envs.check_play import Played, begin, find_difference, play, replay, shown
from segue.envs.check_report import Finding, Report
from segue.envs.client import EnvClient
from segue.envs.errors import EnvironmentFailure, EnvironmentSetupError, InfrastructureFailure, RestoreFailure
from segue.envs.tool import ToolCall

_MAX_BAD_CALLS = 24
_NUM_CLOSE_CALLS = 3
_SHOW_SEEDS = (
    "draw the task from self.np_random in reset; where it is, bounds in the tools' schemas, an expert, --seeds or "
    "--steps make it show"
)
# the word that a message about a reply begins with: it is what the message speaks of
_SUBJECTS = {
    "reward": "rewards",
    "reward_terms": "rewards",
    "observation": "spaces",
    "actions": "spaces",
    "terminated": "ends",
    "truncated": "ends",
    "is_success": "success",
    "success": "success",
    "info": "info",
    "tools": "tools",
}
# the call that a message names
_CALLS = {"reset": "begins", "inspection": "spaces", "snapshot": "restore", "restore": "restore"}
_FAILURE = re.compile(r"(?P<call>\w+) of episode [^:]*: (\w+: )?(?P<subject>\w*)")


async def check_contract(
    config: EnvConfig, *, num_seeds: int, max_calls: int, tell: Callable[[Finding], None] | None = None
) -> Report:
    """Makes every check that can be made.

    Args:
        config: as of a run; the number of workers is not used.
        num_seeds: that are played, from 0 on; at least 2.
        max_calls: of an episode.
        tell: is given each finding as it is made; one that is worse takes the place of an earlier one of its check.
    """
    report = Report(tell)
    clients = EnvClient(config, 1), EnvClient(config, 1)
    try:
        with suppress(_Reported):
            await _Checker(config, report, *clients).check(num_seeds, max_calls)
    finally:
        await asyncio.gather(*(client.stop() for client in clients))
    return report


class _Reported(Exception):
    """A failure that stands in the report."""


class _Checker:
    def __init__(self, config: EnvConfig, report: Report, first: EnvClient, second: EnvClient) -> None:
        self._config = config
        self._report = report
        self._first, self._second = first, second

    async def check(self, num_seeds: int, max_calls: int) -> None:
        """Makes one check after the other; from the seeds on they do not need one another but where it says so."""
        await self._build()
        episodes: list[Played] = []
        try:
            await self._play(episodes, num_seeds, max_calls)
        finally:
            judge_begun(self._report, episodes)
        if not episodes[0].begin.tools:
            self._fail("tools", "there are none, so that nothing can be done")
        judge(self._report, self._config, episodes, max_calls)
        await self._begin_with_options()
        demonstrated: list[Played] = []
        await self._made(self._check_demonstrator(episodes, demonstrated, max_calls))
        await self._made(self._check_seeds(episodes, demonstrated))
        # both compare with what came before
        if not self._report.has_failed("seeds"):
            await self._made(self._check_bad_calls(episodes[0]))
            await self._made(self._check_restore(max(episodes + demonstrated, key=lambda played: len(played.calls))))
        await self._made(self._check_close(episodes[0]))

    async def _made(self, check: Awaitable[None]) -> None:
        with suppress(_Reported):
            await check

    @contextmanager
    def _blamed_on(self, check: str | None, otherwise: str = "runs") -> Iterator[None]:
        """Puts a failure down to a check; None where its message says to which, if it does, and else to another."""
        try:
            yield
        except (EnvironmentFailure, RestoreFailure) as error:
            self._fail(check or _find_check(error, otherwise), str(error))
        except InfrastructureFailure as error:
            # the environment is not what has to be mended
            self._fail(check or _find_check(error, otherwise), str(error), remedy="")

    def _fail(self, check: str, why: str, remedy: str | None = None) -> None:
        self._report.fail(check, why, remedy)
        raise _Reported

    async def _build(self) -> None:
        try:
            await asyncio.gather(self._first.start(), self._second.start())
        except (EnvironmentSetupError, InfrastructureFailure) as error:
            self._fail("builds", str(error))
        self._report.passed("builds", f"{self._config.id}, in two processes")

    async def _play(self, episodes: list[Played], num_seeds: int, max_calls: int) -> None:
        for seed in range(num_seeds):
            # tools that ended an episode, so that others do not come too short
            late = {played.calls[-1].name for played in episodes if played.has_ended}
            with self._blamed_on(None, otherwise="begins"):
                episodes.append(await begin(self._first, seed))
            with self._blamed_on(None):
                await play(self._first, episodes[-1], max_calls, late=late)

    async def _begin_with_options(self) -> None:
        named = {"env.eval_options": self._config.eval_options}
        named |= {f"env.variants.{name}": options for name, options in self._config.variants.items()}
        for key, options in named.items():
            with suppress(_Reported), self._blamed_on("begins"):
                await self._first.reset(key, 0, options)
                await self._first.close(key)

    async def _check_seeds(self, *several: list[Played]) -> None:
        """Compares each episode, of each list one a seed."""
        with self._blamed_on("seeds"):
            # the other way round, so that what an episode leaves to the next one shows
            for played in reversed(list(chain(*several))):
                found = await replay(self._second, played.seed, played.calls)
                difference = find_difference(played.shown(), found)
                if difference is not None:
                    self._fail("seeds", f"seed {played.seed}, played again with the same calls: {difference}")
            num_different = 0
            for episodes in several:
                for played, other in zip(episodes, episodes[1:] + episodes[:1], strict=True):
                    crossed = await replay(self._second, other.seed, played.calls)
                    num_different += find_difference(played.shown(), crossed) is not None
        if num_different == 0:
            why = "the same seed and calls give the same; whether other seeds do otherwise these calls do not show"
            self._report.note("seeds", why, _SHOW_SEEDS)
        self._report.passed("seeds", "the same seed and calls give the same, in another process; other seeds do not")

    async def _check_bad_calls(self, undisturbed: Played) -> None:
        calls = list(islice(bad_calls(undisturbed.begin.tools), _MAX_BAD_CALLS))
        for number, call in enumerate(calls):
            with self._blamed_on("bad calls"):
                await self._check_bad_call(f"bad {number}", undisturbed, call)
        self._report.passed("bad calls", f"{len(calls)} were refused with the reason and changed nothing")

    async def _check_bad_call(self, name: str, undisturbed: Played, call: ToolCall) -> None:
        what = f"{call.name}({json.dumps(call.arguments):.80})"
        await self._first.reset(name, undisturbed.seed, None)
        reply = await self._first.step(name, call)
        if "invalid_call" not in reply.info or reply.reward_terms or reply.terminated:
            self._fail("bad calls", f"{what} was not refused: {shown(reply)!r:.200}")
        # the calls of an episode may be bounded, and bad ones count
        if not reply.truncated:
            after = await self._first.step(name, undisturbed.calls[0])
            before = undisturbed.replies[0]
            if (after.observation, after.reward_terms) != (before.observation, before.reward_terms):
                self._fail("bad calls", f"{what} changed the episode: {before!r:.100}, then {after!r:.100}")
        await self._first.close(name)

    async def _check_restore(self, played: Played) -> None:
        middle = len(played.calls) // 2
        with self._blamed_on("restore"):
            await self._first.reset("carried", played.seed, None)
            for call in played.calls[:middle]:
                await self._first.step("carried", call)
            record = await self._first.record("carried")
            await self._second.restore("carried", played.seed, record)
            found = [shown(await self._second.step("carried", call)) for call in played.calls[middle:]]
            await self._first.close("carried")
            await self._second.close("carried")
        difference = find_difference(played.shown()[middle + 1 :], found)
        if difference is not None:
            self._fail("restore", f"carried to another process after {middle} calls: {difference}")
        data = record.snapshot
        by = "running its calls again: it offers no snapshots" if data is None else f"a snapshot of {len(data):,} bytes"
        self._report.passed("restore", f"an episode of {middle} calls goes on in another process by {by}")

    async def _check_demonstrator(self, episodes: list[Played], demonstrated: list[Played], max_calls: int) -> None:
        """Has the expert play every seed, and adds its episodes to those demonstrated."""
        inspection = episodes[0].inspections[0]
        if inspection.is_foreign:
            why = "none of its own: a foreign environment's draws actions at random, which teaches the form of calls"
            self._report.note("demonstrator", why)
            return
        if not inspection.has_demonstrator:
            self._report.note("demonstrator", "none: segue pretrain has nothing to imitate", "write expert(skill, rng)")
            return
        with self._blamed_on("demonstrator"):
            for seed in range(len(episodes)):
                await self._follow("fallible", seed, max_calls)
                played = await self._follow("expert", seed, max_calls)
                demonstrated.append(played)
                if not played.has_ended and len(played.calls) >= max_calls:
                    why = f"the expert's episode of seed {seed} did not end within {max_calls} calls"
                    self._report.note("demonstrator", why, "play longer with --steps")
                elif not played.has_ended or not played.replies[-1].info["is_success"]:
                    why = f"the expert came to no success on seed {seed}, in {len(played.calls)} calls"
                    self._fail("demonstrator", why)
                elif not played.replies[-1].terminated:
                    why = f"the expert's success on seed {seed} is truncated"
                    self._report.note("ends", why, "say terminated where success is the end of the task")
        returns = [math.fsum(_rewards(played)) for played in demonstrated if played.has_ended]
        if not returns:
            return
        why = f"the expert succeeds on {len(returns)} seeds, with returns from {min(returns):.4g} to {max(returns):.4g}"
        if not math.isclose(min(returns), max(returns)):
            self._report.note(
                "demonstrator", why, "see that expert earns all that each task pays; these may pay unequally"
            )
        self._report.passed("demonstrator", why)

    async def _follow(self, skill: str, seed: int, max_calls: int) -> Played:
        """Plays a demonstrator's episode."""
        name = f"{skill} {seed}"
        played = Played(seed=seed, begin=await self._first.reset(name, seed, None))
        is_last = False
        while not is_last and not played.has_ended and len(played.calls) < max_calls:
            turn = await self._first.expert(name, skill)
            if await self._first.expert(name, skill) != turn:
                self._fail("demonstrator", f"{skill}, asked twice on seed {seed}, says something else")
            is_last = not turn["calls"]
            for call in map(_to_call, turn["calls"]):
                if played.has_ended:
                    break
                played.calls.append(call)
                played.replies.append(await self._first.step(name, call))
                problem = played.replies[-1].info.get("invalid_call")
                if problem is not None:
                    self._fail("demonstrator", f"{skill} makes a call that cannot be run, on seed {seed}: {problem}")
        await self._first.close(name)
        return played

    async def _check_close(self, played: Played) -> None:
        with self._blamed_on("close"):
            left = await self._first.try_close(played.seed, played.calls[:_NUM_CLOSE_CALLS])
        if left.processes:
            self._fail("close", f"closed, and still runs: {some(left.processes)}")
        if left.threads:
            self._report.note("close", f"closed, and threads go on: {some(left.threads)}", "end them in close")
        self._report.passed("close", "twice in a row; nothing is left running")


def _rewards(played: Played) -> Iterator[float]:
    return (term for reply in played.replies for term in reply.reward_terms.values())


def _to_call(call: dict[str, Any]) -> ToolCall:
    return ToolCall(**call)


def _find_check(error: EnvironmentFailure | InfrastructureFailure, otherwise: str) -> str:
    """The check that the failure of an arbitrary call belongs to; another where it does not say what failed."""
    message = str(error)
    if "took longer than" in message:
        return "time"
    match = _FAILURE.match(message)
    if match is None:
        # of a reply that no frame holds: all but its info is bounded
        return "info" if message.startswith("message must") else otherwise
    return _SUBJECTS.get(match["subject"]) or _CALLS.get(match["call"], otherwise)
