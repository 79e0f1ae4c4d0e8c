"""Which panels `curves.png` has."""

import pytest

from segue.actors.plots import _filled_panels, _series


@pytest.mark.parametrize(("ages", "title"), [([0.0, 0.0], "tokens of an episode"), ([0.0, 0.5], "staleness")])
def test_a_run_without_a_stale_token_shows_lengths_in_the_place_of_ages(ages: list[float], title: str) -> None:
    lines = [
        {"step": step, "metrics": {"staleness/age/mean_steps": age, "batch/tokens/mean": 90.0, "batch/turns/mean": 2.0}}
        for step, age in enumerate(ages, start=1)
    ]
    panels = {panel.title: found for panel, found in _filled_panels(_series(lines))}
    values = ages if title == "staleness" else [90.0, 90.0]
    assert [list(found.values()) for found in panels.values()] == [[([1, 2], values)]]
    assert list(panels) == [title]
