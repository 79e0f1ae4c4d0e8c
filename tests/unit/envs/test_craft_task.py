"""Workshops: their splits, their size, and the planner against a search through every state."""

import random
from collections import Counter
from typing import Any

import pytest

from segue.envs.craft.plan import find_plan
from segue.envs.craft.task import MAX_STEPS, MIN_STEPS, NUM_DECOYS, Split, check_steps, make_workshop
from segue.envs.craft.vocabulary import HELD_OUT, TRAINING
from segue.envs.craft.workshop import Progress, Workshop, begin

NUM_SEEDS = 200

State = tuple[tuple[int, ...], tuple[int, ...]]


def search_shortest(workshop: Workshop, progress: Progress) -> int | None:
    """Fewest steps to deliver the goal, by trying everything: a second way, which knows nothing of trees."""
    items = [*workshop.stock, *workshop.recipes]
    place = {item: index for index, item in enumerate(items)}
    materials = list(workshop.stock)

    def changed(counts: tuple[int, ...], **changes: int) -> tuple[int, ...]:
        return tuple(number + changes.get(item, 0) for item, number in zip(items, counts, strict=True))

    def following(state: State) -> list[State]:
        left, held = state
        states = []
        for index, material in enumerate(materials):
            if left[index]:
                less = (*left[:index], left[index] - 1, *left[index + 1 :])
                states.append((less, changed(held, **{material: 1})))
        for product, parts in workshop.recipes.items():
            if all(held[place[part]] for part in parts):
                states.append((left, changed(held, **{product: 1, **dict.fromkeys(parts, -1)})))
        return states

    start = (tuple(progress.left[item] for item in materials), tuple(progress.held[item] for item in items))
    frontier, seen, num_steps = [start], {start}, 1
    while frontier:
        if any(held[place[workshop.goal]] for _, held in frontier):
            return num_steps
        frontier = [state for state in {new for old in frontier for new in following(old)} if state not in seen]
        seen.update(frontier)
        num_steps += 1
    return None


def carry_out(workshop: Workshop, progress: Progress, tool: str, item: str) -> None:
    if tool == "gather":
        assert progress.left[item] > 0
        progress.take(item)
    else:
        assert not progress.lacks(workshop.recipes[item])
        progress.make(item, workshop.recipes[item])


def random_step(workshop: Workshop, progress: Progress, rng: random.Random) -> tuple[str, str] | None:
    steps = [("gather", item) for item, number in progress.left.items() if number]
    steps += [("make", product) for product, parts in workshop.recipes.items() if not progress.lacks(parts)]
    return rng.choice(steps) if steps else None


@pytest.mark.parametrize("split", list(Split))
def test_the_planners_steps_work_and_none_are_fewer(split: Split) -> None:
    for seed in range(60):
        workshop = make_workshop(seed, (3, 8), split)
        progress = begin(workshop)
        plan = find_plan(workshop, progress)
        assert plan is not None
        assert len(plan) == search_shortest(workshop, progress)
        for tool, item in plan[:-1]:
            carry_out(workshop, progress, tool, item)
        assert plan[-1] == ("deliver", workshop.goal) and progress.held[workshop.goal] == 1


def test_the_planner_is_right_from_wherever_random_steps_lead() -> None:
    num_dead = num_states = 0
    for seed in range(60):
        rng = random.Random(seed)
        workshop = make_workshop(seed, (3, 7), Split.train)
        progress = begin(workshop)
        was_dead = False
        while (step := random_step(workshop, progress, rng)) is not None:
            carry_out(workshop, progress, *step)
            if progress.held[workshop.goal]:
                break
            plan, shortest = find_plan(workshop, progress), search_shortest(workshop, progress)
            assert (None if plan is None else len(plan)) == shortest
            # what is wasted does not come back
            assert not (was_dead and plan is not None)
            was_dead = plan is None
            num_states += 1
            num_dead += was_dead
    # resources are limited: dead ends are there, and are no rule
    assert 0.05 < num_dead / num_states < 0.9


@pytest.mark.parametrize("steps", [(3, 3), (5, 5), (8, 8), (12, 12), (16, 16)])
def test_a_goal_takes_as_many_steps_as_it_should(steps: tuple[int, int]) -> None:
    for seed in range(50):
        workshop = make_workshop(seed, steps, Split.train)
        plan = find_plan(workshop, begin(workshop))
        assert plan is not None
        counts = Counter(tool for tool, _ in plan)
        assert (len(plan), counts["deliver"]) == (steps[0], 1)
        assert counts["make"] == len(workshop.needed)


def test_numbers_of_steps_are_about_equally_likely() -> None:
    workshops = [make_workshop(seed, (3, 8), Split.train) for seed in range(1200)]
    counts = Counter(len(find_plan(workshop, begin(workshop)) or ()) for workshop in workshops)
    # 1200 / 6 = 200, standard deviation 13
    assert counts.keys() == {3, 4, 5, 6, 7, 8} and all(140 < count < 260 for count in counts.values()), counts


@pytest.mark.parametrize("split", list(Split))
def test_recipes_are_a_tree_beside_what_wastes_it(split: Split) -> None:
    vocabulary = HELD_OUT if split is Split.heldout_names else TRAINING
    for seed in range(NUM_SEEDS):
        workshop = make_workshop(seed, (3, 12), split)
        recipes = workshop.recipes
        assert workshop.needed[-1] == workshop.goal
        assert {*recipes} <= {*vocabulary.products} and {*workshop.stock} <= {*vocabulary.materials}
        assert all(1 <= len(parts) == len(set(parts)) <= 2 for parts in recipes.values())
        assert all(part in recipes or part in workshop.stock for parts in recipes.values() for part in parts)
        uses = Counter(part for product in workshop.needed for part in recipes[product])
        # each needed product but the goal is a part once, which the planner relies on
        assert {product: uses[product] for product in workshop.needed[:-1]} == dict.fromkeys(workshop.needed[:-1], 1)
        assert not uses[workshop.goal]
        decoys = [product for product in recipes if product not in workshop.needed]
        assert len(decoys) == NUM_DECOYS
        for decoy in decoys:
            assert any(uses[part] for part in recipes[decoy])
            assert not any(decoy in parts for parts in recipes.values())
        # little is left over, and one material is of no use
        spare = {material: number - uses[material] for material, number in workshop.stock.items()}
        unneeded = [material for material in workshop.stock if not uses[material]]
        assert len(unneeded) == 1 and spare[unneeded[0]] in (1, 2)
        assert all(spare[material] in (0, 1) for material in workshop.stock if uses[material])


def test_no_two_splits_share_a_goal_with_its_recipes() -> None:
    for steps in ((3, 3), (3, 8)):
        trees = {s: {make_workshop(seed, steps, s).goal_tree() for seed in range(2000)} for s in Split}
        assert trees[Split.train].isdisjoint(trees[Split.heldout_seeds])
        assert trees[Split.heldout_names].isdisjoint(trees[Split.train] | trees[Split.heldout_seeds])
        # the smallest goals are few: 18 products of 12 materials, of which one in eight or so is held out
        assert steps != (3, 3) or len(trees[Split.train] | trees[Split.heldout_seeds]) == 18 * 12


def test_a_seed_is_a_workshop_and_tasks_are_endless() -> None:
    workshops = [make_workshop(seed, (3, 8), Split.train) for seed in range(500)]
    assert workshops == [make_workshop(seed, (3, 8), Split.train) for seed in range(500)]
    shown = {(w.goal, tuple(w.recipes.items()), tuple(w.stock.items())) for w in workshops}
    assert len(shown) == 500


def test_the_recipe_book_has_no_order_that_tells_the_goal() -> None:
    places = Counter()
    for seed in range(600):
        workshop = make_workshop(seed, (5, 5), Split.train)
        if len(workshop.recipes) == 4:
            places[list(workshop.recipes).index(workshop.goal)] += 1
    # a quarter each
    total = sum(places.values())
    assert total > 200 and all(0.15 < places[place] / total < 0.35 for place in range(4)), places


def test_vocabularies_share_no_name_and_suffice_for_the_longest_chain() -> None:
    pools = [TRAINING.materials, TRAINING.products, HELD_OUT.materials, HELD_OUT.products]
    assert len({name for pool in pools for name in pool}) == sum(map(len, pools))
    # a chain of single parts: a product a step, but for its material and its delivery
    assert all(len(v.products) >= MAX_STEPS - 2 + NUM_DECOYS for v in (TRAINING, HELD_OUT))
    # pairs all the way: n steps have n / 2 pieces of material at most
    assert all(len(v.materials) >= MAX_STEPS // 2 + 1 for v in (TRAINING, HELD_OUT))


@pytest.mark.parametrize("steps", [[2, 8], [3, 17], [8, 3], [3], [3, 4, 5], 5, "38", [3.0, 8.0], [True, 8], None])
def test_steps_that_make_no_sense_are_refused(steps: Any) -> None:
    rule = f"steps must be two integers from {MIN_STEPS} to {MAX_STEPS}, the lower one first, got"
    with pytest.raises(ValueError, match=rule):
        check_steps(steps)
    assert check_steps([3, 16]) == check_steps((3, 16)) == (3, 16)
