"""Budgets of effort over a run: what is measured, how budgets fall, and that a group keeps those that it began with.

What an episode beyond its budget earns is in tests/unit/rollout/test_effort.py.
"""

from pathlib import Path
from typing import Any

import pytest
from actor_cases import make_episode
from controller_cases import Launch, launch, make_config

from segue.actors.effort import Effort, measure_classes, tau
from segue.actors.errors import Interrupted
from segue.actors.task import Task
from segue.conf.schema import EffortConfig
from segue.rollout.trajectory import Outcome

CONFIG = EffortConfig(episodes=8, percentile=0.5, tau_start=4.0, tau_end=1.0, anneal_steps=30)


def played(name: str | None, num_tokens: int, *, outcome: Outcome = Outcome.success) -> Any:
    info = {} if name is None else {"question_class": name}
    return make_episode(num_sampled_tokens=num_tokens, outcome=outcome, info=info)


def task(number: int) -> Task:
    return Task(number=number, task_id=f"train-{number:07d}", seed=number, incarnation=0)


def test_a_class_takes_what_a_share_of_its_successes_stays_within() -> None:
    # by hand, as the docstring: 30 40 50 90, of which two of four are within 40, three within 50, all within 90
    episodes = [played("max", tokens) for tokens in (30, 50, 40, 90)]
    episodes += [
        played("max", 20, outcome=Outcome.failure),
        played("sum", 7),
        played("min", 5, outcome=Outcome.malformed),
    ]
    for percentile, expected in ((0.25, 30), (0.26, 40), (0.5, 40), (0.75, 50), (1.0, 90)):
        assert measure_classes(episodes, percentile) == {"max": expected, "sum": 7}
    # an environment without classes has one
    assert measure_classes([played(None, 3), played(None, 9)], 0.5) == {"": 3}
    assert measure_classes([], 0.5) == {}


def test_tau_falls_evenly_and_then_stays() -> None:
    # by hand: 4 - 3 x 10 / 30
    assert [tau(step, CONFIG) for step in (0, 10, 20, 30, 99)] == [4.0, 3.0, 2.0, 1.0, 1.0]


def test_a_group_has_the_budgets_of_the_step_at_which_it_was_first_begun() -> None:
    effort = Effort(CONFIG)
    assert effort.is_due and effort.begin(task(0), 0).budgets == {}
    said = effort.measure(
        [played("max", 41), played("sum", 20, outcome=Outcome.failure), played("min", 1, outcome=Outcome.engine_error)]
    )
    # of `min` nothing was heard at all
    assert said == "sampled tokens of a success: max 41; no budget for sum"
    assert not effort.is_due and effort.measured == {"max": 41}
    # 3 x 41; 2.9 x 41 = 118.9
    assert effort.begin(task(1), 10).budgets == {"max": 123}
    assert effort.begin(task(2), 11).budgets == {"max": 118}
    # begun again later, and in another launch
    assert effort.begin(task(1), 20).budgets == {"max": 123}
    again = Effort(CONFIG)
    again.restore(effort.state(), in_flight=())
    assert not again.is_due
    assert again.begin(task(1), 25).budgets == {"max": 123} and again.begin(task(3), 30).budgets == {"max": 41}
    # its group is there: a new one, after damage to its file, is of its own step
    again.settle(1)
    assert again.begin(task(1), 30).budgets == {"max": 41}


def test_going_back_keeps_the_measure_and_what_is_in_flight() -> None:
    effort = Effort(CONFIG)
    effort.measure([played("max", 10)])
    effort.begin(task(1), 0)
    saved = effort.state()
    effort.begin(task(2), 10)
    effort.begin(task(3), 10)
    effort.restore(saved, in_flight={2})
    assert [effort.begin(task(number), 20).budgets["max"] for number in (1, 2, 3)] == [40, 30, 20]
    effort.restore({}, in_flight=())
    assert effort.measured == {"max": 10} and effort.begin(task(1), 30).budgets == {"max": 10}


def begin(folder: Path, **fleet: Any) -> Launch:
    config = make_config(folder, effort=EffortConfig(episodes=3, tau_start=4.0, tau_end=1.0, anneal_steps=3))
    return launch(config, **fleet)


def test_a_run_measures_once_before_its_first_group_and_remembers_it(tmp_path: Path) -> None:
    first = begin(tmp_path, num_rollout=1, stop_after_step=3)
    budgets: dict[int, int] = {}

    def note(launched: Launch) -> None:
        call = launched.fleet.call

        def noted(member: Any, method: str, *arguments: Any) -> int:
            if method == "play":
                budgets[arguments[0].number] = arguments[0].budgets[""]
            return call(member, method, *arguments)

        launched.fleet.call = noted  # type: ignore[method-assign]

    note(first)
    with pytest.raises(Interrupted):
        first.controller.run()
    events = first.fleet.events
    assert events.count("evaluate measurement") == 1
    assert events.index("evaluate measurement") < next(i for i, event in enumerate(events) if event.startswith("group"))
    second = begin(tmp_path, num_rollout=1)
    note(second)
    second.controller.run()
    assert "evaluate measurement" not in second.fleet.events
    # three groups a step; b0 is what `make_episode` sampled; tau is 4, 3, 2, 1, 1, 1
    (unit,) = (second.controller.summary()["effort"] or {}).values()
    assert unit == make_episode().num_sampled_tokens
    assert [budgets[number] for number in range(18)] == [
        factor * unit for factor in (4, 3, 2, 1, 1, 1) for _ in range(3)
    ]


def test_a_run_without_budgets_measures_nothing(tmp_path: Path) -> None:
    plain = launch(make_config(tmp_path, steps=1))
    plain.controller.run()
    assert "evaluate measurement" not in plain.fleet.events and plain.controller.summary()["effort"] is None
