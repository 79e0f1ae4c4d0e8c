"""The scripted demonstrators of the workshop.

The expert looks around once and then follows the planner. The fallible one is the warm start's teacher: now and then
it gathers what nobody needs, makes a thing before its parts are there, or makes one that wastes them; it goes on from
whatever comes of it, and hands over what it has when the goal is out of reach.
"""

import random
from typing import Any

from segue.envs.craft.plan import Step, find_plan
from segue.envs.craft.workshop import Progress, Workshop
from segue.envs.truth import one_call


def looking_turn() -> dict[str, Any]:
    """The first turn."""
    return one_call("look")


def working_turn(workshop: Workshop, progress: Progress, slip_rate: float, rng: random.Random) -> dict[str, Any]:
    """A turn that gathers, makes or delivers: the planner's next step, or a slip."""
    plan = find_plan(workshop, progress)
    if plan is None:
        return _give_up(progress)
    slips = find_slips(workshop, progress, plan)
    tool, item = rng.choice(slips) if slips and rng.random() < slip_rate else plan[0]
    return one_call(tool, item=item)


def find_slips(workshop: Workshop, progress: Progress, plan: list[Step]) -> list[Step]:
    """Steps that do not bring the goal nearer."""
    planned = set(plan)
    slips = [("gather", item) for item, number in progress.left.items() if number and ("gather", item) not in planned]
    # the first of those planned whose parts are not there yet
    slips += [step for step in plan[1:] if step[0] == "make" and progress.lacks(workshop.recipes[step[1]])][:1]
    slips += [
        ("make", product)
        for product, parts in workshop.recipes.items()
        if product not in workshop.needed and not progress.lacks(parts)
    ]
    return slips


def _give_up(progress: Progress) -> dict[str, Any]:
    """What was wasted is at hand as something else, so there is something to hand over."""
    return one_call("deliver", item=next(item for item, number in progress.held.items() if number))
