"""A learner actor: one rank of the learner in a process of its own. Thin: it opens group files and wires."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import ray
import torch
from torch.distributed import TCPStore

from segue.actors.loopback import keep_collectives_at
from segue.actors.recorder import Values
from segue.actors.shared_folder import FolderMark
from segue.actors.user_loss import import_user_loss
from segue.actors.weight_channel import WeightTicket, put_weights
from segue.conf.placement import device_type
from segue.conf.schema import OptimizerConfig, SegueConfig
from segue.learner.curriculum import StagePlace
from segue.model.device import open_device
from segue.rollout.stored_group import StoredGroup
from segue.rollout.trajectory import PolicyVersion
from segue.rollout.trajectory_file import open_group


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """The batch of one step."""

    files: tuple[tuple[Path, str], ...]
    """Path and SHA-256 of each group's file, the same on every rank."""
    step: int
    """Steps that the weights have seen."""
    restored_steps: tuple[int, ...]
    """See `lineage.Lineage`."""
    place: StagePlace | None = None
    """See `curriculum.StagePlace`; None in reinforcement and where there are no stages."""


class LearnerActor:
    """One rank; every method but `open_store` is asked of all ranks together."""

    def __init__(self, config: SegueConfig, *, rank: int, mark: FolderMark | None) -> None:
        """`mark` is of the run folder; None where nothing is read from it."""
        self._mark = mark
        self._config = config
        self._rank = rank

    def open_store(self) -> tuple[str, int]:
        """Where the ranks meet: rank 0 serves the store of their collectives, at this node's address alone.

        Left to itself the store would listen at every address of the machine.
        """
        server = socket.socket()
        server.bind((ray.util.get_node_ip_address(), 0))
        server.listen()
        host, port = server.getsockname()
        self._store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())
        return host, port

    def start(self, address: tuple[str, int], optimizer: OptimizerConfig, initial_model: Path | None) -> None:
        """Join the other ranks and build the learner.

        Args:
            address: of rank 0's `open_store`.
            optimizer: the section of the configuration that the run's steps use.
            initial_model: folder of the exported model to start from; None draws weights.
        """
        if self._mark is not None:
            self._mark.look()
        device = open_device(device_type(self._config.cluster.learner_resources))
        # left to itself DeepSpeed takes a GPU that this process may see and was given no share of
        os.environ["DS_ACCELERATOR"] = device.type
        # DeepSpeed loads here, so that the controller, which names this class, goes without it
        from segue.learner.learner import Learner

        import_user_loss(self._config)
        torch.set_num_threads(self._config.cluster.threads)
        keep_collectives_at(ray.util.get_node_ip_address())
        # the store is open already: no rank starts one
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        self._learner = Learner(
            self._config, optimizer, rank=self._rank, address=address, device=device, initial_model=initial_model
        )

    def train_step(self, request: TrainRequest) -> Values:
        """One reinforcement step; metrics of all ranks together."""
        return self._learner.train_step(self._open(request), step=request.step, restored_steps=request.restored_steps)

    def imitate_step(self, request: TrainRequest) -> Values:
        """One imitation step; metrics of all ranks together."""
        return self._learner.imitate_step(self._open(request), step=request.step, place=request.place)

    def score(self, file: tuple[Path, str]) -> list[float]:
        """Log-probabilities of held-out sequences: see `Learner.score`.

        Args:
            file: path and SHA-256 of their group.
        """
        path, digest = file
        (group,) = self._learner.read_together([path.stem], lambda: [open_group(path, digest=digest)])
        return self._learner.score(group)

    def publish(self, version: PolicyVersion) -> WeightTicket | None:
        """Put the present weights where rollout actors find them; rank 0 returns the ticket."""
        update = self._learner.published()
        return None if update is None else put_weights(update, version)

    def save(self, folder: Path) -> None:
        """Write the learner's part of a checkpoint; rank 0 writes for all."""
        self._learner.save(folder)

    def load(self, folder: Path) -> None:
        """Take up the learner's part of a checkpoint."""
        self._learner.load(folder)

    def export(self, folder: Path) -> None:
        """Write the model as another implementation reads it."""
        self._learner.export(folder)

    def _open(self, request: TrainRequest) -> list[StoredGroup]:
        group_ids = [path.stem for path, _ in request.files]
        return self._learner.read_together(
            group_ids, lambda: [open_group(path, digest=digest) for path, digest in request.files]
        )
