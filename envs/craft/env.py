"""The environment `craft`: make a thing from what lies around, in an order that its recipes ask for."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from segue.envs.craft.expert import looking_turn, working_turn
from segue.envs.craft.plan import find_plan
from segue.envs.craft.task import Split, check_steps, make_workshop
from segue.envs.craft.workshop import Progress, Workshop, begin, render
from segue.envs.tool import tool
from segue.envs.tool_env import Task, ToolEnv, ToolResult
from segue.envs.truth import PROCESS_REWARD, SUCCESS_REWARD, check_rates, is_fallible

_OPTIONS = ("split", "steps")


class CraftEnv(ToolEnv):
    """A workshop with a recipe book; what lies around is little, and some recipes waste it.

    Reward terms:
        success: on a delivery; 1 if it is the goal, else 0. Any delivery of something at hand ends the episode.
        process: when a product that the goal takes is made for the first time, the goal itself included; an equal part
            of 0.1 each. Nothing is lost by delivering, so no behaviour without the goal is worth more than one with it.

    Info: `question_class` (such as `5_steps`), `split`, `goal` and `num_calls` (the bound) with the task;
    `goal_reachable` (not wasted yet) and `num_made` (different products that the goal takes) with the task and every
    step; `is_success` with the last.

    Reset options: `split` and `steps` override the constructor's for one episode.
    """

    def __init__(
        self,
        *,
        steps: Sequence[int] = (3, 8),
        split: str = "train",
        spare_calls: int = 2,
        slip_rate: float = 0.35,
    ) -> None:
        """Builds the environment; the workshops are drawn at reset.

        Args:
            steps: fewest and most steps that a goal takes, its delivery included; from 3 to 16.
            split: a member of `Split`.
            spare_calls: tool calls beyond these steps and one look around, after which an episode is truncated.
            slip_rate: probability that a turn of the fallible demonstrator is a slip; in [0, 1].
        """
        check_rates(slip_rate=slip_rate)
        if type(spare_calls) is not int or spare_calls < 0:
            raise ValueError(f"spare_calls must be an integer of at least 0, got {spare_calls!r}")
        self._steps = check_steps(steps)
        self._split = Split(split)
        self._spare_calls = spare_calls
        self._slip_rate = slip_rate
        # (seed, options), from which the workshop follows
        self._drawn_from: tuple[int, dict[str, Any]] | None = None
        self._workshop: Workshop | None = None
        self._progress = Progress(left=Counter(), held=Counter())
        self._made: set[str] = set()
        self._has_looked = False

    def begin(self, seed: int, options: dict[str, Any]) -> Task:
        """Draws the seed's workshop.

        Raises:
            ValueError: an option is unknown or out of range.
        """
        unknown = set(options) - set(_OPTIONS)
        if unknown:
            raise ValueError(f"reset options of craft may be {' and '.join(_OPTIONS)}, got {sorted(unknown)}")
        workshop = self._take_up(seed, options)
        info = {
            "question_class": f"{_count_steps(workshop)}_steps", "split": self._split_of(options).value,
            "goal": workshop.goal, "num_calls": self.max_calls, **self.progress(),
        }  # fmt: skip
        return Task(user=f"make and deliver {workshop.goal} in {self.max_calls} calls", info=info)

    @tool("Look around.")
    def look(self) -> ToolResult:
        """The goal, the recipes, what is left and what is at hand."""
        self._has_looked = True
        lines = [f"goal: {self._running.goal}"]
        lines += [f"{product}: {' '.join(parts)}" for product, parts in self._running.recipes.items()]
        lines += [f"left: {render(self._progress.left)}", f"held: {render(self._progress.held)}"]
        return ToolResult(observation="\n".join(lines))

    @tool("Gather one.")
    def gather(self, item: str) -> ToolResult:
        """One of a material comes to hand."""
        if not self._progress.left[item]:
            return ToolResult(observation="error: none left")
        self._progress.take(item)
        return self._tell_held()

    @tool("Make one.")
    def make(self, item: str) -> ToolResult:
        """The parts at hand become a product."""
        parts = self._running.recipes.get(item)
        if parts is None:
            return ToolResult(observation="error: no recipe")
        if self._progress.lacks(parts):
            return ToolResult(observation=f"error: it takes {' '.join(parts)}")
        self._progress.make(item, parts)
        is_new = item in self._running.needed and item not in self._made
        if not is_new:
            return self._tell_held()
        self._made.add(item)
        return self._tell_held(process=PROCESS_REWARD / len(self._running.needed))

    @tool("Deliver.")
    def deliver(self, item: str) -> ToolResult:
        """Ends the episode, if it is at hand."""
        if not self._progress.held[item]:
            return ToolResult(observation="error: not held")
        is_goal = item == self._running.goal
        return ToolResult(
            observation="right" if is_goal else "wrong", terminated=True, is_success=is_goal,
            reward_terms={"success": SUCCESS_REWARD if is_goal else 0.0},
        )  # fmt: skip

    def progress(self) -> dict[str, Any]:
        """How far the goal is, and whether it is still in reach."""
        is_reachable = find_plan(self._running, self._progress) is not None
        return {"goal_reachable": is_reachable, "num_made": len(self._made)}

    def expert(self, skill: str, rng: random.Random) -> dict[str, Any]:
        """Looks around, then works and delivers."""
        errs = is_fallible(skill)
        if not self._has_looked:
            return looking_turn()
        return working_turn(self._running, self._progress, self._slip_rate if errs else 0.0, rng)

    def snapshot(self) -> bytes:
        """What the workshop follows from, and what was made of it."""
        assert self._drawn_from is not None, "reset draws the workshop"
        seed, options = self._drawn_from
        # lists keep the order in which things are shown
        state = {
            "seed": seed, "options": options, "left": list(self._progress.left.items()),
            "held": list(self._progress.held.items()), "made": sorted(self._made), "has_looked": self._has_looked,
        }  # fmt: skip
        return json.dumps(state).encode()

    def restore(self, data: bytes) -> None:
        """Draws the workshop again and goes on from there."""
        state = json.loads(data)
        self._take_up(state["seed"], state["options"])
        self._progress = Progress(left=Counter(dict(state["left"])), held=Counter(dict(state["held"])))
        self._made, self._has_looked = set(state["made"]), state["has_looked"]

    def _take_up(self, seed: int, options: dict[str, Any]) -> Workshop:
        steps = check_steps(options["steps"]) if "steps" in options else self._steps
        workshop = make_workshop(seed, steps, self._split_of(options))
        self._drawn_from, self._workshop = (seed, dict(options)), workshop
        self._progress, self._made, self._has_looked = begin(workshop), set(), False
        # the steps, and a look around
        self.max_calls = _count_steps(workshop) + 1 + self._spare_calls
        return workshop

    def _split_of(self, options: dict[str, Any]) -> Split:
        return Split(options["split"]) if "split" in options else self._split

    def _tell_held(self, **reward_terms: float) -> ToolResult:
        return ToolResult(observation=f"held: {render(self._progress.held)}", reward_terms=reward_terms)

    @property
    def _running(self) -> Workshop:
        assert self._workshop is not None, "reset draws the workshop"
        return self._workshop


def _count_steps(workshop: Workshop) -> int:
    """Steps that the goal takes, its delivery included."""
    plan = find_plan(workshop, begin(workshop))
    assert plan is not None, "a goal is in reach at the beginning"
    return len(plan)
