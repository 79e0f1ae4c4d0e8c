"""What episodes of arbitrary calls show about the environment that they were played in."""

import json
from collections.abc import Iterable

from segue.conf.schema import EnvConfig
from segue.envs.check_play import Played
from segue.envs.check_report import Report
from segue.envs.reply import StepReply

# a deadline is near where a call takes this share of it
_NEAR = 0.5
_LONG_DECLARATION_CHARS = 4000
_MAX_SHOWN = 3
_SAY_SUCCESS = "put is_success into the last step's info, register a reward_threshold, or set env.success_return"


def judge(report: Report, config: EnvConfig, episodes: list[Played], max_calls: int) -> None:
    """Adds the findings of every check that needs no more than these.

    Args:
        episodes: at least one.
        max_calls: after which an episode was left.
    """
    report.passed("info", "JSON at every step")
    _judge_time(report, config, max(played.slowest_s for played in episodes))
    _judge_tools(report, episodes)
    _judge_spaces(report, config, episodes)
    _judge_rewards(report, episodes)
    _judge_ends(report, episodes, max_calls)


def judge_begun(report: Report, episodes: list[Played]) -> None:
    """Adds what holds of episodes, also where a failure ended the last of them."""
    num_calls = sum(len(played.calls) for played in episodes)
    if episodes:
        report.passed("begins", _counted(len(episodes), "seed"))
    # in a call that took too long nobody knows what would have come of it
    if num_calls and not report.has_failed("time"):
        calls, several = _counted(num_calls, "arbitrary call"), _counted(len(episodes), "episode")
        report.passed("runs", f"{calls} that the tools accept, in {several}")


def some(texts: list[str]) -> str:
    """The first few of them, and how many there are beyond."""
    more = f" and {len(texts) - _MAX_SHOWN} more" if len(texts) > _MAX_SHOWN else ""
    return ", ".join(texts[:_MAX_SHOWN]) + more


def _judge_time(report: Report, config: EnvConfig, slowest_s: float) -> None:
    why = f"the slowest call took {slowest_s:.2g} s of {config.call_timeout_s:g} s"
    if slowest_s > _NEAR * config.call_timeout_s:
        report.note("time", why, "raise env.call_timeout_s: a busy machine is slower")
    report.passed("time", why)


def _judge_tools(report: Report, episodes: list[Played]) -> None:
    tools = episodes[0].begin.tools
    called = {call.name for played in episodes for call in played.calls}
    size = len(json.dumps([[spec.description, spec.parameters] for spec in tools]))
    undescribed = [spec.name for spec in tools if not spec.description.strip()]
    uncalled = [spec.name for spec in tools if spec.name not in called]
    if undescribed:
        report.note("tools", f"without a description: {some(undescribed)}", "say what each does")
    if size > _LONG_DECLARATION_CHARS:
        why = f"their declaration takes {size:,} characters of every episode"
        report.note("tools", why, "simplify schemas, or raise rollout.max_episode_tokens")
    if uncalled:
        report.note("tools", f"never called: {some(uncalled)}", "play more with --seeds and --steps")
    report.passed("tools", f"{some([spec.name for spec in tools])}; their schemas are valid")


def _judge_spaces(report: Report, config: EnvConfig, episodes: list[Played]) -> None:
    inspections = [inspection for played in episodes for inspection in played.inspections]
    replies = [reply for played in episodes for reply in played.replies]
    observations = [played.begin.observation for played in episodes] + [reply.observation for reply in replies]
    misfits = _unique(text for inspection in inspections for text in inspection.misfits)
    form_misfits = _unique(text for inspection in inspections for text in inspection.form_misfits)
    refused = [reply.info["invalid_call"] for reply in replies if "invalid_call" in reply.info]
    longest = max(map(len, observations))
    if misfits:
        report.fail("spaces", some(misfits))
    if refused:
        report.fail("spaces", f"a call that its own space drew was refused: {refused[0]}")
    if form_misfits:
        report.note("spaces", some(form_misfits), "declare it as it is returned, or cast it")
    if longest > config.max_observation_chars:
        cut = _unique(path for inspection in inspections for path in inspection.cut)
        which = f", so that a policy does not see all of {some(cut)}" if cut else ""
        why = f"observations are cut at {config.max_observation_chars} characters{which}"
        report.note("spaces", why, "raise env.max_observation_chars, or say less")
    if inspections[0].in_short:
        why = f"a policy sees only in short: {some(inspections[0].in_short)}"
        report.note("spaces", why, "raise env.max_observation_chars; images are not shown at all")
    report.passed("spaces", f"{len(observations)} observations, the longest of {longest} characters")


def _judge_rewards(report: Report, episodes: list[Played]) -> None:
    terms = [reply.reward_terms for played in episodes for reply in played.replies]
    names = sorted({name for some_terms in terms for name in some_terms})
    values = [value for some_terms in terms for value in some_terms.values()]
    if not values:
        report.passed("rewards", "arbitrary calls earned no term")
        return
    report.passed("rewards", f"{some(names)}; from {min(values):.4g} to {max(values):.4g} in a call")


def _judge_ends(report: Report, episodes: list[Played], max_calls: int) -> None:
    last = [played.replies[-1] for played in episodes if played.has_ended]
    # what said that an episode was cut before there was a flag for it
    if any(reply.info.get("TimeLimit.truncated") and not reply.truncated for reply in last):
        report.fail("ends", 'info["TimeLimit.truncated"] says that an episode was cut, and truncated does not')
    inspection = episodes[0].inspections[0]
    if any(reply.terminated and reply.truncated for reply in last):
        why = "an episode was terminated and truncated by one call"
        if inspection.is_foreign:
            report.note("ends", why, "truncate only what would go on")
        else:
            report.fail("ends", why)
    _judge_flags(report, episodes, last)
    if not last:
        why = f"no episode ended within {max_calls} calls"
        report.note("ends", why, "play longer with --steps")
        has_rule = not inspection.is_foreign or inspection.needed_return is not None
        remedy = "play longer with --steps" if has_rule else f"{_SAY_SUCCESS}; play longer with --steps"
        report.note("success", f"unknown: {why}", remedy)
        return
    num_terminated = sum(reply.terminated for reply in last)
    num_truncated = sum(reply.truncated for reply in last)
    num_successes = sum(bool(reply.info.get("is_success")) for reply in last)
    if any("is_success" not in reply.info for reply in last):
        report.fail("success", "an episode ended without is_success in its last info", _SAY_SUCCESS)
    report.passed("ends", f"{num_terminated} terminated, {num_truncated} truncated, of {len(episodes)} episodes")
    report.passed("success", f"said at every end; {num_successes} of {len(last)} arbitrary episodes succeeded")


def _judge_flags(report: Report, episodes: list[Played], last: list[StepReply]) -> None:
    """What looks as if the flags were taken for one another; how an episode is meant to end nobody else knows."""
    lengths = {len(played.calls) for played in episodes if played.has_ended}
    bound = episodes[0].inspections[0].max_calls
    if last and bound is None and not any(reply.terminated for reply in last):
        why = f"all {len(last)} ends are truncated, and no max_episode_steps says after how many calls"
        report.note("ends", why, "say terminated where the task is over, and declare the bound where it is one")
    # a task of one call ends so
    if len(last) > 2 and all(reply.terminated for reply in last) and len(lengths) == 1 and lengths != {1}:
        why = f"each of {len(last)} episodes was terminated after {min(lengths)} calls, whatever these were"
        report.note("ends", why, "if that is a bound of the episode rather than the task's end, say truncated")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
