"""Budgets of effort over a run: what classes of tasks take at first, and how much of it is allowed when.

    measure    once, with the initial weights: b0 of each class of training tasks
    begin      a group: tau of the learner step at which it was first begun, times b0

A run's tasks hardly ever come twice, so that b0 belongs to a class of them and not to one: to
`info["question_class"]`, or to all tasks together where the environment names no classes.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from segue.actors.episode import Episode
from segue.actors.task import Task
from segue.conf.schema import EffortConfig
from segue.rollout.rewards.effort import task_class


def measure_classes(episodes: Sequence[Episode], percentile: float) -> dict[str, int]:
    """b0 of each class: the fewest tokens within which a share of its successes stayed.

    Args:
        episodes: of the initial weights.
        percentile: the share, in (0, 1].
    Returns:
        Class to sampled tokens; without classes that were never solved, of which nobody knows what they take.
    Source:
        Measured on the model that training starts from: Kimi K3, arXiv 2607.24653, section 4.1.2. A percentile of the
        lengths of correct answers, fixed at the start: Toggle of Kimi K2.5, arXiv 2602.02276. Both of each task; ours
        of a class.
    Example:
        Successes of 30, 50, 40 and 90 tokens, and a failure of 20: with 0.5, two of four are to stay within, which
        takes 40; with 0.75, 50.
    """
    lengths: dict[str, list[int]] = {}
    for episode in episodes:
        if episode.is_success:
            lengths.setdefault(task_class(episode.info), []).append(episode.num_sampled_tokens)
    return {name: sorted(of_class)[math.ceil(percentile * len(of_class)) - 1] for name, of_class in lengths.items()}


def tau(step: int, config: EffortConfig) -> float:
    """How many times b0 is allowed to groups begun after `step` learner steps.

    Example:
        From 4 to 1 over 30 steps: 4 at 0, 3 at 10, 1 from 30 on.
    """
    share = min(step / config.anneal_steps, 1.0)
    return config.tau_start + (config.tau_end - config.tau_start) * share


class Effort:
    """The budgets of a run.

    A group that is begun again, after its actor or the run was lost, keeps the budgets that it had:
    tests/unit/actors/test_effort.py.
    """

    def __init__(self, config: EffortConfig) -> None:
        self._config = config
        self._measured: dict[str, int] | None = None
        self._begun: dict[int, int] = {}

    @property
    def measured(self) -> dict[str, int] | None:
        """Class of tasks to the sampled tokens that it takes; None where nothing was measured."""
        return self._measured

    @property
    def is_due(self) -> bool:
        """True where budgets are wanted and nothing was measured yet."""
        return self._config.episodes > 0 and self._measured is None

    def measure(self, episodes: Sequence[Episode]) -> str:
        """Take up episodes of the initial weights; returns what they say, in words."""
        self._measured = measure_classes(episodes, self._config.percentile)
        seen = {task_class(episode.info) for episode in episodes if not episode.outcome.is_infrastructure}
        known = ", ".join(f"{name or 'any task'} {tokens}" for name, tokens in sorted(self._measured.items()))
        unsolved = ", ".join(name or "any task" for name in sorted(seen - self._measured.keys()))
        return f"sampled tokens of a success: {known or 'none'}" + (f"; no budget for {unsolved}" if unsolved else "")

    def begin(self, task: Task, step: int) -> Task:
        """The task with its budgets.

        Args:
            step: learner steps done; of a task that is begun again, what counts is when it was first begun.
        """
        if self._measured is None:
            return task
        factor = tau(self._begun.setdefault(task.number, step), self._config)
        return replace(task, budgets={name: math.floor(factor * tokens) for name, tokens in self._measured.items()})

    def settle(self, number: int) -> None:
        """The task's group is in the buffer."""
        self._begun.pop(number, None)

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON values."""
        return {"measured": self._measured, "begun": sorted(self._begun.items())}

    def restore(self, state: dict[str, Any], *, in_flight: Collection[int]) -> None:
        """Return to a checkpoint's state; what was measured stays, and so does when the tasks in flight were begun.

        Args:
            state: of `state()`; empty for the start of a run.
            in_flight: numbers of tasks that are played still.
        """
        if state.get("measured") is not None:
            self._measured = state["measured"]
        kept = {number: step for number, step in self._begun.items() if number in in_flight}
        self._begun = {number: step for number, step in state.get("begun", [])} | kept
