"""The planner: the steps that are left from any state of a workshop, or that there are none any more.

Each product has one recipe and, of those that the goal takes, one use; so the shortest plan takes what is at hand and
gathers or makes the rest.
"""

from segue.envs.craft.workshop import Progress, Workshop

Step = tuple[str, str]
"""A tool and the item that it is called with."""


def find_plan(workshop: Workshop, progress: Progress) -> list[Step] | None:
    """Steps up to the delivery, in an order that works; None where the goal is out of reach."""
    left, held = progress.left.copy(), progress.held.copy()
    steps: list[Step] = []

    def obtain(item: str) -> bool:
        if held[item] > 0:
            held[item] -= 1
            return True
        parts = workshop.recipes.get(item)
        if parts is None:
            steps.append(("gather", item))
            left[item] -= 1
            return left[item] >= 0
        if not all(map(obtain, parts)):
            return False
        steps.append(("make", item))
        return True

    return [*steps, ("deliver", workshop.goal)] if obtain(workshop.goal) else None
