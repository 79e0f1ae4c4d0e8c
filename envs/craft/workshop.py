"""The workshop of a task: recipes, what lies around, and how far an episode has come with them."""

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Workshop:
    """What an episode starts from."""

    goal: str
    recipes: dict[str, tuple[str, ...]]
    """Product to its one or two different parts, in the order in which they are shown; each product has one recipe."""
    stock: dict[str, int]
    """Material to how many there are; never more will come."""
    needed: tuple[str, ...]
    """Products that the goal takes, the goal last."""

    def goal_tree(self) -> str:
        """The recipes that the goal takes, as text."""
        return "; ".join(f"{product}: {' '.join(self.recipes[product])}" for product in self.needed)


@dataclass(kw_only=True, slots=True)
class Progress:
    """What an episode has made of a workshop."""

    left: Counter[str]
    """Materials that nobody has taken."""
    held: Counter[str]
    """Materials and products at hand."""

    def take(self, material: str) -> None:
        """One of a material that is left comes to hand."""
        self.left[material] -= 1
        self.held[material] += 1

    def lacks(self, parts: tuple[str, ...]) -> bool:
        """Whether a part is not at hand."""
        return any(not self.held[part] for part in parts)

    def make(self, product: str, parts: tuple[str, ...]) -> None:
        """The parts at hand become a product."""
        self.held.subtract(parts)
        self.held[product] += 1


def begin(workshop: Workshop) -> Progress:
    """Nothing is at hand yet."""
    return Progress(left=Counter(workshop.stock), held=Counter())


def render(counts: Counter[str]) -> str:
    """What there is: `wood 2 steel 1`."""
    return " ".join(f"{item} {number}" for item, number in counts.items() if number) or "none"
