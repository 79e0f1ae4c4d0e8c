"""What the two phases ask: here only whose section of the configuration the learner updates with."""

from segue.actors.phase import PhaseKind, make_phase
from segue.conf.load import load_config
from segue.conf.schema import OptimizerKind


def test_each_command_updates_with_its_own_section() -> None:
    config = load_config(["pretrain.optimizer.kind=muon"])
    assert make_phase(config, PhaseKind.train).optimizer is config.learner.optimizer
    assert make_phase(config, PhaseKind.pretrain).optimizer is config.pretrain.optimizer
    assert config.learner.optimizer.kind is OptimizerKind.adamw
