"""The list of metrics and its table. That a run emits exactly these is held by tests/e2e/test_train.py."""

from pathlib import Path

import pytest

from segue.actors.metrics import METRICS, When, pattern_of, table, without_values

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_document_holds_the_lists_table() -> None:
    assert table() in DOCUMENT.read_text(), "replace the table in docs/metrics.md with segue.actors.metrics.table()"


def test_names_are_unique_and_lower_case() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for name in names:
        assert 3 <= len(name.split("/")) <= 4, name
        assert name == name.lower(), name


def test_what_an_event_has_no_value_for_is_listed_by_its_event() -> None:
    imitation, training = without_values(When.step), without_values(When.step, When.train_step)
    assert "policy/entropy/mean_nats" in imitation and "policy/ratio/mean" not in imitation
    assert training.keys() - imitation.keys() == {m.name for m in METRICS if m.when is When.train_step}
    # a name with a part that the run fills in is none of its own
    assert not [name for name in training if "<" in name] and set(training.values()) == {None}


def test_an_emitted_name_belongs_to_one_listed_name() -> None:
    assert pattern_of("batch/success/mean") == "batch/success/mean"
    assert pattern_of("eval/greedy/check/query_correct") == "eval/<mode>/check/<name>"
    assert pattern_of("batch/reward_term/process") == "batch/reward_term/<term>"
    with pytest.raises(KeyError):
        pattern_of("batch/success")
