"""A seed becomes a workshop, drawn until it is one of its split."""

import hashlib
import random
from collections import Counter
from enum import Enum
from typing import Any

from segue.envs.craft.vocabulary import HELD_OUT, TRAINING, Vocabulary
from segue.envs.craft.workshop import Workshop

MIN_STEPS = 3
MAX_STEPS = 16
"""A chain of single parts would use up the names."""
NUM_DECOYS = 2
"""Recipes that waste what the goal takes."""
# a recipe has two parts rather than one
_PAIR_SHARE = 0.75
# one goal with its recipes in so many belongs to `heldout_seeds`
_HELD_OUT_SHARE = 8


class Split(Enum):
    """Which part of the endless tasks; no two splits share a goal with its recipes, whatever the seeds."""

    train = "train"
    heldout_seeds = "heldout_seeds"
    """The names of training, other recipes."""
    heldout_names = "heldout_names"
    """Things that training never names."""


def make_workshop(seed: int, steps: tuple[int, int], split: Split) -> Workshop:
    """The workshop of a seed, whose goal takes a number of steps that lies between two, all equally likely.

    A step gathers one material, makes one product or delivers the goal.
    """
    rng = random.Random(f"{split.value}:{steps[0]}-{steps[1]}:{seed}")
    vocabulary = HELD_OUT if split is Split.heldout_names else TRAINING
    num_steps = rng.randint(*steps)
    while True:
        workshop = _draw(rng, vocabulary, num_steps)
        if split is Split.heldout_names or _is_held_out(workshop) == (split is Split.heldout_seeds):
            return workshop


def check_steps(steps: Any) -> tuple[int, int]:
    """The fewest and the most steps that goals may take.

    Raises:
        ValueError: they are no two integers that make sense.
    """
    is_pair = isinstance(steps, (list, tuple)) and len(steps) == 2 and all(type(number) is int for number in steps)
    if not is_pair or not MIN_STEPS <= steps[0] <= steps[1] <= MAX_STEPS:
        raise ValueError(
            f"steps must be two integers from {MIN_STEPS} to {MAX_STEPS}, the lower one first, got {steps!r}"
        )
    return steps[0], steps[1]


def _draw(rng: random.Random, vocabulary: Vocabulary, num_steps: int) -> Workshop:
    sizes = _draw_sizes(rng, num_steps)
    names = rng.sample(vocabulary.products, len(sizes) + NUM_DECOYS)
    products, decoys = names[: len(sizes)], names[len(sizes) :]
    num_gathered = sum(sizes) - (len(sizes) - 1)
    # fewer kinds than pieces: some material is needed twice
    *kinds, unneeded = rng.sample(vocabulary.materials, max(2, (3 * num_gathered + 3) // 4) + 1)
    goal, recipes = products[0], _draw_recipes(rng, products, sizes, kinds)
    materials = Counter(part for parts in recipes.values() for part in parts if part in kinds)
    usable = [*materials, *products[1:]]
    stock = {material: number + rng.randint(0, 1) for material, number in materials.items()}
    stock[unneeded] = rng.randint(1, 2)
    for decoy in decoys:
        wasted = rng.choice(usable)
        others = [item for item in (*usable, unneeded) if item != wasted]
        recipes[decoy] = (wasted, rng.choice(others)) if rng.random() < _PAIR_SHARE else (wasted,)
    return Workshop(
        goal=goal,
        recipes=dict(rng.sample(list(recipes.items()), len(recipes))),
        stock=dict(rng.sample(list(stock.items()), len(stock))),
        needed=tuple(reversed(products)),
    )


def _draw_sizes(rng: random.Random, num_steps: int) -> list[int]:
    """Parts of each recipe that the goal takes: as many in all as there are steps but two.

    Every part but the goal is one step, gathered or made; the goal's own making and its delivery are the other two.
    """
    sizes: list[int] = []
    while (missing := num_steps - 2 - sum(sizes)) > 0:
        sizes.append(2 if missing > 1 and rng.random() < _PAIR_SHARE else 1)
    return sizes


def _draw_recipes(
    rng: random.Random, products: list[str], sizes: list[int], kinds: list[str]
) -> dict[str, tuple[str, ...]]:
    """A tree: each product but the goal is a part of one that stands before it; what is open are materials."""
    parts: dict[str, list[str]] = {products[0]: []}
    size_of = dict(zip(products, sizes, strict=True))
    for product in products[1:]:
        owner = rng.choice([name for name, own in parts.items() if len(own) < size_of[name]])
        parts[owner].append(product)
        parts[product] = []
    for name, own in parts.items():
        own += rng.sample(kinds, size_of[name] - len(own))
        rng.shuffle(own)
    return {name: tuple(own) for name, own in parts.items()}


def _is_held_out(workshop: Workshop) -> bool:
    """Decided by the goal with its recipes, so that no seed of training can draw it, with whatever else around."""
    return hashlib.sha256(workshop.goal_tree().encode()).digest()[0] % _HELD_OUT_SHARE == 0
