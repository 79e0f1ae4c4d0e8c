"""Measuring a curriculum: held-out losses at every pause, recall before and after each stage.

rollout actors   play held-out demonstrations, and expert archives for recall, once a launch -> files
this process     cuts held-out text -> files
learner ranks    score the files with the present weights -> losses, recall -> stages, metrics
"""

import time
from typing import Any

from segue.actors.console import ConsoleView
from segue.actors.faults import FaultLog
from segue.actors.learner_ranks import LearnerRanks
from segue.actors.recall import NUM_QUARTERS, RecallPoint, recall_options, recall_point
from segue.actors.recorder import Recorder
from segue.actors.rollout_actor import HeldOutGroup, HeldOutRequest, keep_held_out, length_options
from segue.actors.rollout_pool import RolloutPool
from segue.actors.run_folder import RunFolder
from segue.actors.stages import Stages
from segue.actors.step_metrics import recall_metrics, stage_metrics
from segue.actors.text import open_corpus, text_trajectory
from segue.conf.schema import SegueConfig
from segue.learner.curriculum import Part, parts_of

# a mean of one says little
_LEAST_SEQUENCES = 2


class StageMeter:
    """Makes the held-out files when they are first needed, and asks the learner about them."""

    def __init__(
        self,
        config: SegueConfig,
        stages: Stages,
        *,
        folder: RunFolder,
        pool: RolloutPool,
        learners: LearnerRanks,
        recorder: Recorder,
        faults: FaultLog,
        view: ConsoleView,
    ) -> None:
        """Args are the run's."""
        self._config = config
        self._stages = stages
        self._folder = folder
        self._pool = pool
        self._learners = learners
        self._recorder = recorder
        self._faults = faults
        self._view = view
        self._losses_on: dict[str, HeldOutGroup] = {}
        self._recall_on: dict[tuple[int, int], HeldOutGroup] = {}

    def measure_when_due(self, step: int, next_task: int) -> bool:
        """Measure if the stages say so, and tell them.

        Args:
            step: learner steps done.
            next_task: number of the next task that will be drawn.
        Returns:
            Whether a stage ended: what follows is to be of the next one, whatever happens.
        """
        stages = self._stages
        if not stages.is_due(step):
            return False
        if not self._losses_on:
            self._prepare()
        start = time.monotonic()
        self._view.set_status("measuring held-out losses")
        losses = {name: -sum(self._score(group)) / group.num_labels for name, group in self._losses_on.items()}
        num_before = len(stages.measurements)
        faults = stages.measure(step, next_task, losses)
        values = stage_metrics(stages, losses, time.monotonic() - start)
        has_ended = len(stages.measurements) - num_before > 1 or step == stages.num_steps
        if step == 0 or has_ended:
            self._view.set_status("measuring recall")
            values |= recall_metrics([self._recall(*place) for place in self._recall_on])
        self._recorder.write("stage", step, values)
        for fault in faults:
            self._faults.note(fault)
        self._view.set_status("training")
        return has_ended

    def _score(self, group: HeldOutGroup) -> list[float]:
        what = f"log-probabilities of {group.path.name}"
        return self._learners.ask("score", (group.path, group.digest), what=what)[0]

    def _recall(self, length: int, quarter: int) -> RecallPoint:
        group = self._recall_on[length, quarter]
        return recall_point(length, quarter, group.distances, self._score(group))

    def _prepare(self) -> None:
        """Make the files; the same ones in every launch, for all of it follows from seeds."""
        self._view.set_status("playing held-out demonstrations")
        self._folder.held_out.mkdir(exist_ok=True)
        parts = parts_of(self._config.pretrain.curriculum.stages)
        shown = {part.name: self._request(part) for part in parts if not part.is_text}
        recall = self._config.pretrain.curriculum.recall
        places = [(length, quarter) for length in sorted(recall.lengths) for quarter in range(1, NUM_QUARTERS + 1)]
        requests = [*shown.values(), *(self._recall_request(*place) for place in places)]
        jobs = [
            self._pool.submit("keep_demonstrations", request, what=f"held-out demonstrations {request.name}")
            for request in requests
        ]
        timeout_s, what = self._config.eval.timeout_s, f"{len(jobs)} groups of held-out demonstrations"
        groups = self._pool.wait_all(jobs, timeout_s=timeout_s, what=what, meanwhile=lambda: None)
        self._losses_on = dict(zip(shown, groups, strict=False))
        self._recall_on = dict(zip(places, groups[len(shown) :], strict=True))
        self._losses_on |= {part.name: self._keep_text(part) for part in parts if part.is_text}

    def _request(self, part: Part) -> HeldOutRequest:
        config = self._config
        count = max(config.pretrain.curriculum.held_out_tokens // part.length, _LEAST_SEQUENCES)
        return HeldOutRequest(
            name=part.name,
            seeds=tuple(range(config.eval.seed_start, config.eval.seed_start + count)),
            options={**config.env.eval_options, **(length_options(config, part.length) or {})},
            folder=self._folder.held_out,
            recalls=False,
        )

    def _recall_request(self, length: int, quarter: int) -> HeldOutRequest:
        config = self._config
        start = config.eval.seed_start
        return HeldOutRequest(
            name=f"recall_{length}_{quarter}",
            seeds=tuple(range(start, start + config.pretrain.curriculum.recall.episodes)),
            options={**config.env.eval_options, **recall_options(length, quarter)},
            folder=self._folder.held_out,
            recalls=True,
        )

    def _keep_text(self, part: Part) -> HeldOutGroup:
        corpus = open_corpus(self._config, self._folder.text)
        num_tokens = max(self._config.pretrain.curriculum.held_out_tokens, _LEAST_SEQUENCES * part.length)
        pieces = corpus.held_out_pieces(part.length, num_tokens)
        members = [text_trajectory(p, task_id=part.name, group_id=part.name, index=i) for i, p in enumerate(pieces)]
        return keep_held_out(self._folder.held_out, part.name, members, made_by="controller")


def stage_options(config: SegueConfig) -> dict[str, dict[str, Any]]:
    """Reset options that a curriculum's demonstrations are played with, by what asks for them."""
    curriculum, path = config.pretrain.curriculum, "pretrain.curriculum"
    lengths = {part.length for part in parts_of(curriculum.stages) if not part.is_text}
    found = {f"{path}.stages, {length} tokens": length_options(config, length) or {} for length in sorted(lengths)}
    for length in curriculum.recall.lengths:
        found[f"{path}.recall.lengths, {length} tokens"] = recall_options(length, 1)
    return found
