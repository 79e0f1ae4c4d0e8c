"""How a run's learner starts, and the end of a run whose disk is full; whole runs are in tests/e2e/test_train.py."""

import random
from pathlib import Path

import pytest
from fake_fleet import FakeFleet

from segue.actors.errors import RunError
from segue.actors.faults import FaultLog
from segue.actors.learner_ranks import LearnerRanks
from segue.actors.recorder import Recorder
from segue.actors.run import _start_learner, _told_demonstrator, _told_tokens, _write_end
from segue.conf.placement import placed
from segue.conf.schema import OptimizerConfig, SegueConfig


@pytest.mark.parametrize(("num_deaths", "is_started"), [(2, True), (3, False)])
def test_a_learner_that_dies_as_it_starts_is_started_again(tmp_path: Path, num_deaths: int, is_started: bool) -> None:
    fleet = FakeFleet(tmp_path, random.Random(0), 0, learner_dies_in=["open_store"] * num_deaths)
    said: list[str] = []
    learners = LearnerRanks(fleet, placed(SegueConfig(), 0), OptimizerConfig())  # type: ignore[arg-type]
    if is_started:
        _start_learner(learners, None, FaultLog(said.append), max_losses=2)
    else:
        with pytest.raises(RunError, match=r"^the learner was lost 3 times in a row as it started; last: learner-0 di"):
            _start_learner(learners, None, FaultLog(said.append), max_losses=2)
    assert said == ["learner: learner-0 died: as told, as it started; all ranks start anew"] * 2


def test_a_learner_that_is_sent_to_nodes_that_are_gone_as_it_starts_is_not_lost(tmp_path: Path) -> None:
    fleet = FakeFleet(tmp_path, random.Random(0), 0, misplaced_starts=6)
    said: list[str] = []
    learners = LearnerRanks(fleet, placed(SegueConfig(), 0), OptimizerConfig())  # type: ignore[arg-type]
    _start_learner(learners, None, FaultLog(said.append), max_losses=0)
    assert len(said) >= 1 and fleet.misplaced_starts == 0


def test_a_demonstrator_is_told_of_where_there_was_one() -> None:
    summary = {"command": "pretrain", "num_episodes": 4, "outcomes": {"success": 3}, "checks": {"query_correct": 4}}
    assert _told_demonstrator(summary) == ["demonstrator, over 4 episodes: success 0.750, query_correct 1.000"]
    assert _told_demonstrator({**summary, "num_episodes": 0, "outcomes": {}, "checks": {}}) == []
    assert _told_demonstrator({**summary, "command": "train"}) == []


def test_tokens_of_text_are_told_beside_those_of_demonstrations() -> None:
    assert _told_tokens({"num_tokens": 3627, "num_text_tokens": 0}) == "3,627 tokens"
    told = _told_tokens({"num_tokens": 3627, "num_text_tokens": 12288})
    assert told == "3,627 tokens of demonstrations and 12,288 of text"


def test_a_summary_that_cannot_be_written_hides_no_error_and_is_one_where_there_was_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "summary.json"
    said: list[str] = []
    _write_end(path, {"status": "failed: learner-0 failed"}, Recorder(None), said.append)
    assert len(said) == 1 and said[0].startswith(f"{path} could not be written: ")
    with pytest.raises(RunError, match=f"^{path} must be on a disk with room"):
        _write_end(path, {"status": "finished"}, Recorder(None), said.append)
    with pytest.raises(RunError, match=f"^run folder must stay while its run goes on, got {tmp_path}/gone deleted"):
        _write_end(tmp_path / "gone" / "summary.json", {"status": "finished"}, Recorder(None), said.append)
