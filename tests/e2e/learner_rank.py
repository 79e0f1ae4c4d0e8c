"""One rank of the learner's tests, started as a process: runs a fixed story and leaves what happened in files.

python learner_rank.py <rank> <ranks> <port> <folder>
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from learner_cases import QK_CLIP, make_config, make_group, make_step_groups, make_trajectory
from safetensors.torch import save_file

from segue.conf.schema import (
    AdvantageConfig,
    AdvantageKind,
    BalanceConfig,
    ClusterConfig,
    CriticConfig,
    GspoConfig,
    LearnerConfig,
    LossConfig,
    LossKind,
    MuonConfig,
    NormalisationKind,
    OptimizerConfig,
    OptimizerKind,
    PretrainConfig,
    RunConfig,
    SegueConfig,
    TrainConfig,
)
from segue.learner.failure import NonFiniteError
from segue.learner.learner import Learner
from segue.model.weights import copy_weights
from segue.rollout.stored_group import StoredGroup
from segue.rollout.trajectory import Source

STAGES = (1, 2, 3)


def make_run(
    num_ranks: int,
    folder: Path,
    *,
    stage: int = 1,
    is_live: bool = True,
    is_by_sequence: bool = False,
    has_critic: bool = False,
    qk_clip: float | None = None,
) -> SegueConfig:
    optimizer = OptimizerConfig(lr=1e-2, warmup_steps=0)
    if qk_clip is not None:
        optimizer = OptimizerConfig(kind=OptimizerKind.muon, lr=1e-2, warmup_steps=0, muon=MuonConfig(qk_clip=qk_clip))
    loss, advantage = LossConfig(), AdvantageConfig()
    if has_critic:
        loss, advantage = LossConfig(kind=LossKind.ppo_clip), AdvantageConfig(kind=AdvantageKind.turn_gae, whiten=True)
    if is_by_sequence:
        loss = LossConfig(
            kind=LossKind.gspo,
            gspo=GspoConfig(clip_low=0.05, clip_high=0.05),
            normalisation=NormalisationKind.sequence_mean,
        )
        advantage = AdvantageConfig(kind=AdvantageKind.reinforce_pp)
    return SegueConfig(
        run=RunConfig(dir=str(folder)),
        model=make_config(),
        learner=LearnerConfig(
            zero_stage=stage,
            segment_tokens=64,
            micro_step_tokens=192,
            optimizer=optimizer,
            balance=BalanceConfig(live=is_live),
            loss=loss,
            advantage=advantage,
            critic=CriticConfig(coefficient=0.5, warmup_steps=1, lr_ratio=2.0, clip=0.01),
        ),
        train=TrainConfig(steps=10, max_staleness=1 if has_critic else 0),
        pretrain=PretrainConfig(steps=12, optimizer=OptimizerConfig(lr=1e-2, warmup_steps=2)),
        cluster=ClusterConfig(learner_ranks=num_ranks),
    )


class Story:
    """What one rank does and notes."""

    def __init__(self, rank: int, num_ranks: int, port: int, folder: Path) -> None:
        self.rank, self.num_ranks, self.folder = rank, num_ranks, folder
        self.address = ("127.0.0.1", port)
        self.facts: dict = {}

    def learner(self, *, is_imitation: bool = False, **changes) -> Learner:
        config = make_run(self.num_ranks, self.folder / f"run-{self.num_ranks}", **changes)
        optimizer = config.pretrain.optimizer if is_imitation else config.learner.optimizer
        device = torch.device("cpu")
        return Learner(config, optimizer, rank=self.rank, address=self.address, device=device, initial_model=None)

    def keep(self, name: str, learner: Learner) -> None:
        update = learner.published()
        if update is not None:
            tensors = {e.name: torch.empty(e.shape, dtype=getattr(torch, e.dtype)) for e in update.manifest}
            copy_weights(update, tensors)
            save_file(tensors, self.folder / f"{name}-{self.num_ranks}.safetensors")

    def step(self, learner: Learner, step: int, sampled_step: int | None = None) -> dict:
        groups = map(StoredGroup.of, make_step_groups(step if sampled_step is None else sampled_step))
        named = [replace(group, group_id=f"group-{number}") for number, group in enumerate(groups)]
        return learner.train_step(named, step=step, restored_steps=(0,))

    def train(self, stage: int) -> None:
        learner = self.learner(stage=stage)
        self.keep(f"start-{stage}", learner)
        self.facts[f"first-{stage}"] = self.step(learner, 0)
        self.keep(f"first-{stage}", learner)
        checkpoint = self.folder / f"checkpoint-{stage}-{self.num_ranks}"
        if self.rank == 0:
            checkpoint.mkdir()
        learner.save(checkpoint)
        self.facts[f"second-{stage}"] = self.step(learner, 1)
        self.keep(f"straight-{stage}", learner)

    def resume(self, stage: int) -> None:
        # a learner with other weights and another history takes up its own kind's checkpoint, then another kind's
        other = self.learner(stage=stage)
        self.step(other, 7)
        for name, source in [("resumed", f"{stage}-{self.num_ranks}"), ("moved", f"{stage % 3 + 1}-2")]:
            other.load(self.folder / f"checkpoint-{source}")
            self.keep(f"{name}-loaded-{stage}", other)
            self.facts[f"{name}-{stage}"] = self.step(other, 1)
            self.keep(f"{name}-{stage}", other)
        other.export(self.folder / f"export-{stage}-{self.num_ranks}")

    def train_with_muon(self) -> None:
        learner = self.learner(qk_clip=QK_CLIP)
        self.facts["muon-first"] = self.step(learner, 0)
        self.keep("muon-first", learner)
        if self.num_ranks == 1:
            return
        checkpoint = self.folder / f"checkpoint-muon-{self.num_ranks}"
        if self.rank == 0:
            checkpoint.mkdir()
        learner.save(checkpoint)
        self.facts["muon-second"] = self.step(learner, 1)
        self.keep("muon-straight", learner)
        free = self.learner(qk_clip=1e9)
        self.step(free, 0)
        self.keep("muon-free", free)
        for name, stage in (("resumed", 1), ("moved", 3)):
            other = self.learner(qk_clip=QK_CLIP, stage=stage)
            self.step(other, 7)
            other.load(checkpoint)
            self.keep(f"muon-loaded-{name}", other)
            self.facts[f"muon-{name}"] = self.step(other, 1)
            self.keep(f"muon-{name}", other)

    def train_by_sequence(self) -> None:
        self.facts["by-sequence"] = self.step(self.learner(is_by_sequence=True), 0)

    def train_critic(self) -> None:
        # one step of warm-up, one of both on the same groups; from its checkpoint the second again
        learner = self.learner(has_critic=True)
        self.keep("critic-start", learner)
        self.facts["critic-warm-up"] = self.step(learner, 0)
        self.keep("critic-warm-up", learner)
        checkpoint = self.folder / f"checkpoint-critic-{self.num_ranks}"
        if self.rank == 0:
            checkpoint.mkdir()
        learner.save(checkpoint)
        self.facts["critic-second"] = self.step(learner, 1, sampled_step=0)
        self.keep("critic-second", learner)
        other = self.learner(has_critic=True)
        self.step(other, 7)
        other.load(checkpoint)
        self.facts["critic-resumed"] = self.step(other, 1, sampled_step=0)
        self.keep("critic-resumed", other)

    def imitate(self) -> None:
        learner = self.learner(is_imitation=True, is_live=False)
        self.keep("frozen-start", learner)
        shown = [
            StoredGroup.of(make_group([make_trajectory(s, reward=1.0, source=Source.demonstrator) for s in range(4)]))
        ]
        self.facts["scores"] = learner.score(shown[0])
        self.facts["imitation"] = [learner.imitate_step(shown, step=step, place=None) for step in range(12)]
        self.keep("frozen-end", learner)

    def empty_step(self) -> None:
        learner = self.learner()
        self.keep("empty-start", learner)
        even = [StoredGroup.of(make_group([make_trajectory(s, reward=1.0) for s in range(2)]))]
        self.facts["empty"] = learner.train_step(even, step=0, restored_steps=(0,))
        self.keep("empty-end", learner)

    def fail(self) -> None:
        learner = self.learner()
        self.keep("failed-start", learner)
        groups = make_step_groups(0)
        groups[1].trajectories[2].behaviour_logprob[:] = np.nan
        try:
            learner.train_step([StoredGroup.of(group) for group in groups], step=0, restored_steps=(0,))
        except NonFiniteError as error:
            self.facts["failure"] = str(error)
        self.keep("failed-end", learner)


def main() -> None:
    rank, num_ranks, port, folder = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    story = Story(rank, num_ranks, port, folder)
    for stage in STAGES:
        story.train(stage)
    for stage in STAGES:
        story.resume(stage)
    story.train_with_muon()
    story.train_by_sequence()
    story.train_critic()
    story.imitate()
    story.empty_step()
    story.fail()
    (folder / f"facts-{num_ranks}-{rank}.json").write_text(json.dumps(story.facts))


if __name__ == "__main__":
    main()
