"""A learner at learning rate 0 with a frozen balance, and an engine that plays with each version that it publishes.

python frozen_rank.py <rank> <ranks> <port> <folder>
"""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import torch
from learner_cases import make_config, make_group, make_model
from rollout_cases import make_engine, make_id, make_prompt, make_sampling, open_session, play_turns, run

from segue.conf.schema import (
    BalanceConfig,
    ClusterConfig,
    LearnerConfig,
    OptimizerConfig,
    RunConfig,
    SegueConfig,
    TrainConfig,
)
from segue.learner.learner import Learner
from segue.model.checkpoint import export_checkpoint
from segue.model.weights import WeightUpdate
from segue.rollout.engine.native import NativeEngine
from segue.rollout.stored_group import StoredGroup
from segue.rollout.trajectory import Group, Outcome, PolicyVersion, Source, Trajectory, Turn

NUM_STEPS, NUM_SESSIONS = 4, 4
CPU = torch.device("cpu")


def make_learner(rank: int, num_ranks: int, port: int, folder: Path) -> Learner:
    """Of a model with slow decay, whose gradients would move every weight."""
    export_checkpoint(make_model(make_config(), torch.float32), folder / "start")
    config = SegueConfig(
        run=RunConfig(dir=str(folder)),
        model=make_config(),
        learner=LearnerConfig(
            segment_tokens=64,
            micro_step_tokens=192,
            optimizer=OptimizerConfig(lr=0.0, weight_decay=0.1, warmup_steps=0),
            balance=BalanceConfig(live=False),
        ),
        train=TrainConfig(steps=NUM_STEPS),
        cluster=ClusterConfig(learner_ranks=num_ranks),
    )
    optimizer, address = config.learner.optimizer, ("127.0.0.1", port)
    return Learner(config, optimizer, rank=rank, address=address, device=CPU, initial_model=folder / "start")


def play_group(engine: NativeEngine) -> Group:
    """The same task at every step: the same prompt and the same noise."""

    async def play():
        prefix = open_session(engine, make_prompt(37), None)
        sessions = [engine.open(make_id(index), fork_of=prefix) for index in range(NUM_SESSIONS)]
        sampling = make_sampling(max_new_tokens=40)
        turns = await asyncio.gather(*(play_turns(engine, session, sampling) for session in sessions))
        for session in (prefix, *sessions):
            engine.close(session)
        return sessions, turns

    sessions, turns = run(play())
    return make_group(
        [
            make_trajectory(s.token_ids, played, index)
            for index, (s, played) in enumerate(zip(sessions, turns, strict=True))
        ]
    )


def make_trajectory(token_ids: np.ndarray, played: list, index: int) -> Trajectory:
    """What an episode records of its turns; the reward is the index, so that every group has advantages."""
    trainable = np.zeros(len(token_ids), np.bool_)
    logprob = np.zeros(len(token_ids), np.float32)
    incarnation, step = np.zeros((2, len(token_ids)), np.int32)
    turns = []
    for start, completion in played:
        own = slice(start, start + len(completion.token_ids))
        trainable[own], logprob[own] = True, completion.logprobs
        incarnation[own], step[own] = completion.policy_incarnation, completion.policy_step
        temperature = make_sampling().temperature
        turns.append(Turn(start=own.start, end=own.stop, temperature=temperature, reward_terms={}, num_calls=1))
    return Trajectory(
        token_ids=token_ids.copy(),
        trainable=trainable,
        source=Source.policy,
        behaviour_logprob=logprob,
        policy_incarnation=incarnation,
        policy_step=step,
        turns=tuple(turns),
        outcome_terms={"success": float(index)},
        outcome=Outcome.success,
        task_id="task",
        group_id="group",
        index=index,
        attempt=0,
        seed=0,
    )


def take_up(engine: NativeEngine, learner: Learner, step: int) -> WeightUpdate:
    """Hand the learner's present weights to the engine."""
    update = learner.published()
    assert update is not None
    run(engine.load_weights(update, PolicyVersion(0, step)))
    return update


def main() -> None:
    rank, num_ranks, port, folder = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    learner = make_learner(rank, num_ranks, port, folder)
    # weights of its own, all of which the first update replaces
    engine = make_engine(make_model(make_config(), torch.float32, seed=1), num_pages=400)
    facts = []
    for step in range(NUM_STEPS):
        update = take_up(engine, learner, step)
        group = play_group(engine)
        facts.append(
            {
                "weights": {entry.name: entry.digest for entry in update.manifest},
                "tokens": [trajectory.token_ids.tolist() for trajectory in group.trajectories],
                "metrics": learner.train_step([StoredGroup.of(group)], step=step, restored_steps=(0,)),
            }
        )
    (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
