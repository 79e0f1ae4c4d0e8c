"""The loop of a run. Synchronous training is its special case of staleness bound 0.

    controller (this file)              consumes finished groups, learner reports, evaluations
        |                               produces tasks, batches, checkpoints, metrics
        |                               waits for a full batch (woken by rollout actors), for the learner's step
        |
        |-- task ------> rollout actor  consumes tasks and weight tickets; many groups at a time, one engine
        |                               produces group files in the buffer folder, and their records
        |                               waits for env workers; new weights are taken between two decode steps
        |
        |-- records ---> learner ranks  consume the batch's group files, checked by digest
        |                               produce gradients together, then metrics, checkpoints, weight tickets
        |                               wait for each other in collectives
        |
        `-- ticket ----> rollout actors map the published weights; woken by the controller after each step

At bound k, groups for k + 1 batches are in flight or ready: while the learner is at step s, rollout plays what steps
s + 1 … s + k will train on. The oldest finished groups are trained first, and a batch waits for one that is still
played where leaving it out would take it past the bound (`batch_order.py`). Tokens beyond the bound, which a restore or
a second use may leave, are masked, or their group dropped. Imitation runs through the same loop, with demonstrations
for groups (`phase.py`).

Everything that matters is in files: groups in the buffer folder, the rest in checkpoints. One clock: learner steps.

A lost rollout actor is the pool's to mend (`rollout_pool.py`). A lost learner takes the loop back to the newest
checkpoint, as a new launch would, but rollout goes on with what its weights are still on the line for. A damaged group
is dropped and its task drawn again. A group over which actors are lost again and again is given up and another task
takes its place.
"""

import shutil
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from segue.actors.batch_order import Place, next_batch
from segue.actors.buffer import Buffer, DropReason
from segue.actors.checkpoint_store import LEARNER_NAME, CheckpointStore, checkpoint_fault
from segue.actors.console import ConsoleView
from segue.actors.effort import Effort
from segue.actors.errors import ActorLost, Interrupted, NeverBegan, RunError
from segue.actors.failure_watch import FailureWatch, heed_evaluation
from segue.actors.faults import Fault, FaultLog
from segue.actors.group_record import GroupRecord, record_given_up
from segue.actors.held_out import Mode, play_held_out, play_to_measure, standard_modes, variant_modes
from segue.actors.learner_actor import TrainRequest
from segue.actors.learner_ranks import LearnerRanks
from segue.actors.lineage import Lineage, measure_staleness
from segue.actors.metrics import When, without_values
from segue.actors.phase import Phase, PhaseKind
from segue.actors.process_meter import ProcessMeter
from segue.actors.recorder import Recorder, Values
from segue.actors.replacement import replace_folder
from segue.actors.rollout_pool import Job, RolloutPool
from segue.actors.rollout_stats import RolloutStats
from segue.actors.run_folder import RunFolder
from segue.actors.stage_meter import StageMeter
from segue.actors.stages import Stages
from segue.actors.step_metrics import (
    StepClock,
    batch_metrics,
    effort_metrics,
    environment_metrics,
    evaluation_metrics,
    reward_term_metrics,
    rollout_metrics,
    staleness_metrics,
    usage_metrics,
)
from segue.actors.task import Task, TaskStream, is_open
from segue.actors.totals import Totals
from segue.actors.weight_channel import WeightTicket
from segue.conf.rules import SAMPLED_MODE
from segue.conf.schema import SegueConfig
from segue.envs.client import EnvCounters
from segue.learner.failure import DamagedGroupsError
from segue.rollout.journal import delete_journals, delete_other_journals
from segue.rollout.rewards.panel import RewardCounters

# failed groups in a row, in batches, that may be chance
_MAX_FAILED_BATCHES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flight:
    """A group that is played."""

    task: Task
    job: Job
    step: int
    """Learner steps done when it was asked for."""


class Controller:
    """Runs one phase from where its folder stands to its last step."""

    def __init__(
        self,
        config: SegueConfig,
        phase: Phase,
        *,
        stages: Stages,
        folder: RunFolder,
        store: CheckpointStore,
        pool: RolloutPool,
        learners: LearnerRanks,
        recorder: Recorder,
        faults: FaultLog,
        view: ConsoleView,
        meter: ProcessMeter,
        lineage: Lineage,
        initial_model: Path | None,
        started: float,
        clock: StepClock,
    ) -> None:
        """Args are what a run is made of; `started` is the `time.monotonic()` at which this launch began."""
        self._config = config
        self._phase = phase
        self._folder = folder
        self._store = store
        self._pool = pool
        self._learners = learners
        self._recorder = recorder
        self._faults = faults
        self._view = view
        self._meter = meter
        self._lineage = lineage
        self._initial_model = initial_model
        self._started = started
        self._stages = stages
        self._stage_meter = StageMeter(
            config,
            stages,
            folder=folder,
            pool=pool,
            learners=learners,
            recorder=recorder,
            faults=faults,
            view=view,
        )
        self._clock = clock
        self._buffer = Buffer(folder.groups, max_uses=phase.max_uses)
        self._effort = Effort(phase.effort)
        self._tasks = TaskStream(kind=phase.task_kind, run_seed=config.seed, seed_limit=config.eval.seed_start)
        self._in_flight: dict[Job, _Flight] = {}
        self._failures = FailureWatch(_MAX_FAILED_BATCHES * phase.groups_per_step)
        self._published: WeightTicket | None = None
        self._rollout_stats = RolloutStats()
        self._environments = EnvCounters()
        self._reward_terms = RewardCounters()
        self._totals = Totals()
        self._loss: ActorLost | None = None
        self._num_losses = 0
        self._furthest = 0
        self._is_restored = False
        self._best: tuple[float, int] | None = None
        self._evaluated_step = 0
        self.step = 0
        self.evaluations: dict[str, dict[str, Any]] = {}

    def run(self) -> None:
        """Train until the last step, with evaluations before and after.

        Raises:
            Interrupted: the user asked the run to end; a checkpoint of the last finished step stands.
            RunError: something failed, kept the loop waiting beyond its deadline, or was lost again and again.
        """
        while True:
            try:
                if self._loss is not None:
                    self._go_back(self._loss)
                    self._loss = None
                self._run_to_end()
                return
            except Interrupted:
                if self._is_restored:
                    self._checkpoint()
                raise
            # the pool mends its own losses: this is the learner's
            except ActorLost as loss:
                self._loss = loss

    def _run_to_end(self) -> None:
        self._evaluate_before()
        self._measure_effort()
        # the launch before may have ended in it
        self._evaluate_when_due()
        self._measure_when_due()
        while self.step < self._stages.num_steps:
            # groups that are there already are not waited for
            self._pool.heed_interrupt()
            self._clock.begin_step()
            self._request_groups()
            records = self._take_batch()
            report = self._learn(records)
            if report is None:
                continue
            self._publish_weights(is_needed=self._phase.publishes_every_step)
            self._record_step(records, report)
            self._evaluate_when_due()
            self._measure_when_due()
            self._checkpoint_when_due()
        self._evaluate_after()
        self._checkpoint()
        self._export()

    def _go_back(self, loss: ActorLost) -> None:
        """Start the learner anew from the newest checkpoint; rollout goes on."""
        self._num_losses += not isinstance(loss, NeverBegan)
        if self._num_losses > self._config.cluster.max_losses:
            raise RunError(
                f"the learner was lost {self._num_losses} times in a row, with no new step in between; last: {loss}"
            ) from loss
        self._is_restored = False
        step, state, damaged = self._store.load_newest()
        self._store.set_aside_after(step)
        for fault in damaged:
            self._faults.note(checkpoint_fault(fault))
        self._faults.note(
            Fault(who="learner", what=str(loss), done=f"all ranks start anew from step {step}; rollout goes on")
        )
        self._pool.forget_weights()
        # what was begun with weights of undone steps has nothing to train
        undone = [flight.job for flight in self._in_flight.values() if flight.step > step]
        self._pool.call_off(undone)
        for job in undone:
            del self._in_flight[job]
        self._lineage = self._lineage.restored(step)
        self._folder.note_restore(step)
        self._recorder.begin_incarnation(self._lineage.incarnation, step)
        self._take_up_state(step, {**state, **self._not_undone(state)})
        self._learners.start(None if step else self._initial_model)
        self._take_up_weights()

    def _not_undone(self, state: dict[str, Any]) -> dict[str, Any]:
        """What stays as it is where this launch goes back to a state."""
        # the same, also where no checkpoint has it yet
        before = {name: played for name, played in self.evaluations.items() if name == "before"}
        # a checkpoint's costs hold those of this launch, which are added anew
        costs = {"wall_s": self._totals.wall_s, "cpu_s": self._totals.cpu_s}
        return {
            "evaluations": {**state.get("evaluations", {}), **before},
            "totals": {**state.get("totals", {}), **costs},
        }

    def restore(self, step: int, state: dict[str, Any]) -> None:
        """Take up a checkpoint, and groups that finished after it; step 0 and an empty state start anew.

        A learner that is lost meanwhile is started anew by `run`.
        """
        self._furthest = step
        try:
            self._restore(step, state)
        except ActorLost as loss:
            self._loss = loss

    def _restore(self, step: int, state: dict[str, Any]) -> None:
        self._take_up_state(step, state)
        self._take_up_weights()

    def _take_up_state(self, step: int, state: dict[str, Any]) -> None:
        """All that a checkpoint holds but the learner's: what the run is at, whatever befalls it next."""
        self.step = step
        self.evaluations = state.get("evaluations", {})
        self._stages.restore(state.get("stages", {}))
        if step < self._stages.num_steps:
            # played when the run was to have fewer steps
            self.evaluations.pop("after", None)
        self._evaluated_step = state.get("evaluated_step", 0)
        self._best = None if state.get("best") is None else (state["best"][0], state["best"][1])
        self._totals = Totals.from_json(state.get("totals", {}))
        in_flight = {flight.task.number for flight in self._in_flight.values()}
        self._effort.restore(state.get("effort", {}), in_flight=in_flight)
        self._restore_groups(state.get("buffer", {}), state.get("tasks", {}))

    def _take_up_weights(self) -> None:
        """Have the learner take up the present step's checkpoint, and rollout its weights."""
        if self.step:
            folder = self._store.path(self.step) / LEARNER_NAME
            self._learners.ask("load", folder, what=f"the learner to load {folder}")
        self._publish_weights(is_needed=True)
        self._is_restored = True

    def _restore_groups(self, buffer: dict[str, Any], tasks: dict[str, Any]) -> None:
        """Ledger and cursor of a checkpoint, beside what stands in the folder and what is in flight."""
        played = {flight.task.number for flight in self._in_flight.values()}

        def number_of(task_id: str) -> int | None:
            # a file of what is in flight is heard of in its turn
            number = self._tasks.number_of(task_id)
            return None if number in played else number

        findings = self._buffer.restore(buffer, number_of, lambda number: is_open(tasks, number))
        self._totals.dropped.update(DropReason.superseded.value for _ in findings.superseded)
        self._drop_unfit()
        lost = [number for number in findings.damaged.values() if number is not None]
        self._tasks.restore(
            tasks, self._lineage.incarnation, finished=self._buffer.numbers(), lost=lost, in_flight=played
        )
        for name in findings.damaged:
            self._note_damage(name)
        # a kill between a group's file and the end of its journals leaves them
        delete_other_journals(self._folder.sessions, self._tasks)

    def summary(self) -> dict[str, Any]:
        """What the run did and cost so far."""
        return {
            "steps": self.step,
            "evaluations": self.evaluations,
            "effort": self._effort.measured,
            **({"curriculum": self._stages.summary()} if self._stages.has_any else {}),
            "best": None if self._best is None else {"sampled_success": self._best[0], "step": self._best[1]},
            **self._totals.with_costs(time.monotonic() - self._started, self._meter.read()),
        }

    def _request_groups(self) -> None:
        """Keep tasks in flight for the batches ahead, on the least busy rollout actors."""
        self._drop_unfit()
        steps_left = self._stages.pause_after(self.step) - self.step
        wanted = min(self._phase.groups_ahead, steps_left * self._phase.groups_per_step)
        while len(self._in_flight) + len(self._buffer.ready()) < wanted:
            task = self._effort.begin(self._tasks.draw(), self.step)
            if self._phase.kind is PhaseKind.pretrain:
                task = replace(task, plan=self._stages.plan(task.number))
            job = self._pool.submit(
                self._phase.play,
                task,
                what=f"task {task.task_id}",
                find_done=partial(self._find_finished, task),
                give_up=partial(self._give_up, task),
            )
            self._in_flight[job] = _Flight(task=task, job=job, step=self.step)

    def _find_finished(self, task: Task) -> GroupRecord | None:
        """What a lost actor left of a task: its group's file, behind which it may not have deleted the journals."""
        record = self._buffer.find(task.group_id, task.number)
        if record is not None:
            delete_journals(self._folder.sessions, task.task_id)
        return record

    def _give_up(self, task: Task) -> GroupRecord:
        """What stands for the group of a task over which actors are lost."""
        delete_journals(self._folder.sessions, task.task_id)
        return record_given_up(number=task.number, task_id=task.task_id, group_id=task.group_id)

    def _take_batch(self) -> list[GroupRecord]:
        """Wait until a batch of groups is ready, and take it."""
        timeout_s = self._config.train.wait_timeout_s
        with self._clock.part("wait"):
            while (batch := self._next_batch()) is None:
                what = f"groups for step {self.step + 1} ({len(self._buffer.ready())} are ready)"
                for job, record in self._pool.wait_any(list(self._in_flight), timeout_s=timeout_s, what=what):
                    number = self._in_flight.pop(job).task.number
                    self._tasks.settle(number)
                    self._effort.settle(number)
                    self._buffer.add(record)
                    self._failures.see(record)
                self._request_groups()
        self._buffer.take(batch, step=self.step + 1)
        return batch

    def _next_batch(self) -> list[GroupRecord] | None:
        ready = {record.number: record for record in self._buffer.ready()}
        batch = next_batch(
            [self._place(record) for record in ready.values()],
            [Place(number=flight.task.number, oldest_step=flight.step) for flight in self._in_flight.values()],
            count=self._phase.groups_per_step,
            step=self.step,
            max_staleness=self._phase.max_staleness,
        )
        return None if batch is None else [ready[place.number] for place in batch]

    def _place(self, record: GroupRecord) -> Place:
        steps = [version.step for version, _ in record.tokens_by_version if not self._lineage.is_lost(version)]
        return Place(number=record.number, oldest_step=min(steps), is_used=bool(self._buffer.uses(record.group_id)))

    def _learn(self, records: list[GroupRecord]) -> Values | None:
        """One step of the learner on a batch; its metrics, or None where a damaged group kept it from being taken."""
        request = TrainRequest(
            files=tuple((self._folder.groups / record.file, record.digest) for record in records),
            step=self.step,
            restored_steps=self._lineage.restored_steps,
            place=self._stages.place(self.step),
        )
        try:
            with self._clock.part("learn"):
                reports = self._learners.ask(self._phase.learn, request, what=f"learner step {self.step + 1}")
        except RunError as error:
            if not isinstance(error.__cause__, DamagedGroupsError):
                raise
            self._buffer.give_back(records, step=self.step + 1)
            self._drop_damaged(records, error.__cause__.group_ids)
            return None
        self.step += 1
        if self.step > self._furthest:
            # steps that are only taken again are no progress
            self._furthest, self._num_losses = self.step, 0
        self._totals.add_batch(records)
        return reports[0]

    def _drop_damaged(self, records: list[GroupRecord], group_ids: tuple[str, ...]) -> None:
        for record in records:
            if record.group_id in group_ids:
                self._buffer.discard(record.group_id)
                self._tasks.put_back(record.number)
                self._note_damage(record.file)

    def _note_damage(self, file: str) -> None:
        self._totals.dropped[DropReason.damaged.value] += 1
        self._faults.note(
            Fault(who="buffer", what=f"group file {file} is damaged", done="dropped; its task is played again")
        )

    def _publish_weights(self, *, is_needed: bool) -> None:
        """Hand the present weights to every rollout actor, unless nobody needs them or all have them."""
        version = self._lineage.version(self.step)
        if not is_needed or (self._published is not None and self._published.version == version):
            return
        with self._clock.part("publish"):
            ticket = self._learners.ask("publish", version, what=f"weights of step {self.step}")[0]
            self._pool.publish(ticket)
        self._published = ticket

    def _record_step(self, records: list[GroupRecord], report: Values) -> None:
        """Metrics of the step."""
        is_training = self._phase.max_staleness is not None
        values: dict[str, float | None] = {
            **without_values(When.step, *([When.train_step] if is_training else [])),
            **batch_metrics([episode for record in records for episode in record.episodes]),
            **report,
            "buffer/ready/groups": len(self._buffer.ready()),
            "buffer/in_flight/groups": len(self._in_flight),
            "buffer/dropped/groups": self._totals.dropped.total(),
            "loop/faults/count": self._faults.count,
            **usage_metrics(self._meter.read_if_due()),
            **self._clock.end_step(self._stages.num_steps - self.step),
        }
        before, self._rollout_stats = self._rollout_stats, self._pool.stats()
        # evaluations read the engine's counters anew, but the environments' go on from step to step
        earlier, self._environments = self._environments, self._rollout_stats.environments
        values |= environment_metrics(earlier, self._environments)
        self._note_environment_faults(earlier)
        rated, self._reward_terms = self._reward_terms, self._rollout_stats.reward_terms
        values |= reward_term_metrics(rated, self._reward_terms)
        if self._phase.max_staleness is not None:
            values |= rollout_metrics(before, self._rollout_stats)
            values |= self._policy_metrics(records, self._phase.max_staleness)
        self._recorder.write("step", self.step, values)

    def _policy_metrics(self, records: list[GroupRecord], max_staleness: int) -> Values:
        tokens = [pair for record in records for pair in record.tokens_by_version]
        assert self._published is not None
        return {
            **effort_metrics([episode for record in records for episode in record.episodes]),
            **staleness_metrics(
                measure_staleness(tokens, self._lineage, step=self.step - 1, max_staleness=max_staleness)
            ),
            "weights/update/bytes": self._published.size_bytes,
        }

    def _note_environment_faults(self, earlier: EnvCounters) -> None:
        now = self._environments
        expired, died = now.calls_expired - earlier.calls_expired, now.workers_died - earlier.workers_died
        if expired or died:
            self._faults.note(
                Fault(
                    who="env workers",
                    what=f"{expired} calls went past their deadline, {died} workers died",
                    done=f"{now.workers_replaced - earlier.workers_replaced} replaced; episodes: "
                    f"{now.episodes_restored - earlier.episodes_restored} restored, "
                    f"{now.episodes_lost - earlier.episodes_lost} lost, "
                    f"{now.environment_failures - earlier.environment_failures} ended as their environment's failure",
                )
            )

    def _evaluate_before(self) -> None:
        if "before" not in self.evaluations:
            self.evaluations["before"] = self._evaluate(standard_modes(self._config))
        self._rollout_stats = self._pool.stats()

    def _measure_effort(self) -> None:
        if self._effort.is_due:
            episodes = play_to_measure(self._pool, self._config, show=self._view.set_status)
            self._view.say(self._effort.measure(episodes))
            self._view.set_status("training")
            self._rollout_stats = self._pool.stats()

    def _evaluate_when_due(self) -> None:
        every = self._phase.eval_every
        is_due = every and self.step % every == 0 and self.step < self._stages.num_steps
        if is_due and self._evaluated_step != self.step:
            self._publish_weights(is_needed=True)
            self._note_evaluated(self._evaluate(standard_modes(self._config)))
            self._rollout_stats = self._pool.stats()

    def _measure_when_due(self) -> None:
        if self._stage_meter.measure_when_due(self.step, self._tasks.next_number):
            # the groups that follow are of the next stage: nothing may go back behind its beginning
            self._checkpoint()

    def _evaluate_after(self) -> None:
        if "after" in self.evaluations:
            return
        self._publish_weights(is_needed=True)
        modes = [*standard_modes(self._config), *variant_modes(self._config)]
        self.evaluations["after"] = self._evaluate(modes)
        self._note_evaluated(self.evaluations["after"])

    def _evaluate(self, modes: list[Mode]) -> dict[str, Any]:
        results: dict[str, Any] = {}
        for mode in modes:
            start = time.monotonic()
            keep_as = self._folder.trajectories / f"step-{self.step:08d}-{mode.name}"
            evaluation = play_held_out(self._pool, self._config, mode, keep_as=keep_as, show=self._view.set_status)
            values = evaluation_metrics(mode.name, evaluation, time.monotonic() - start)
            self._recorder.write("eval", self.step, values)
            # imitation may teach what its policy lacks, such as to judge itself
            may_end = self.step == 0 and self._phase.kind is not PhaseKind.pretrain
            heed_evaluation(mode.name, evaluation, self._faults.note, may_end=may_end)
            results[mode.name] = evaluation.to_json()
        self._view.set_status("training")
        return results

    def _note_evaluated(self, results: dict[str, Any]) -> None:
        self._evaluated_step = self.step
        score = results[SAMPLED_MODE]["success"]
        if score is not None and (self._best is None or score > self._best[0]):
            self._best = (score, self.step)

    def _checkpoint_when_due(self) -> None:
        is_best = self._best is not None and self._best[1] == self.step
        if is_best or self.step % self._config.train.checkpoint_every == 0:
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Commit everything up to the present step."""
        state = {
            "step": self.step,
            "tasks": self._tasks.state(),
            "effort": self._effort.state(),
            "buffer": self._buffer.state(),
            "evaluations": self.evaluations,
            "evaluated_step": self._evaluated_step,
            "stages": self._stages.state(),
            "best": self._best,
            "totals": self._totals.with_costs(time.monotonic() - self._started, self._meter.read()),
        }
        self._store.save(self.step, state, self._save_learners)
        self._buffer.collect(self._store.prune(best=None if self._best is None else self._best[1]))

    def _export(self) -> None:
        partial = self._folder.export.with_name(f".partial-{self._folder.export.name}")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            self._learners.ask("export", partial, what="the learner to export the model")
        except RunError:
            # the disk may be full
            shutil.rmtree(partial, ignore_errors=True)
            raise
        replace_folder(partial, self._folder.export)

    def _drop_unfit(self) -> None:
        """Drop groups with nothing left to train; they take no place in a batch."""
        for record in self._buffer.ready():
            reason = self._unfit(record)
            if reason is not None:
                self._buffer.drop(record.group_id, reason, step=self.step)
                self._totals.dropped[reason.value] += 1

    def _unfit(self, record: GroupRecord) -> DropReason | None:
        if not record.tokens_by_version:
            return DropReason.empty if record.episodes else DropReason.given_up
        if self._phase.max_staleness is None:
            return None
        age = measure_staleness(
            record.tokens_by_version, self._lineage, step=self.step, max_staleness=self._phase.max_staleness
        )
        if age.num_fresh == 0 and self._lineage.is_lost(record.tokens_by_version[-1][0]):
            return DropReason.lost_version
        is_stale = age.num_fresh == 0 or (self._phase.drops_stale and age.num_old > 0)
        return DropReason.stale if is_stale else None

    def _save_learners(self, folder: Path) -> None:
        self._learners.ask("save", folder, what="the learner to write a checkpoint")
