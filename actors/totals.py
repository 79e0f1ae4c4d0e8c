"""What a run did and cost so far, over all its launches: held in checkpoints, printed in the summary."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from segue.actors.evaluation import check_names
from segue.actors.group_record import GroupRecord
from segue.actors.process_meter import Usage


@dataclass(slots=True, kw_only=True)
class Totals:
    """Counts over the steps on the line of the run; costs over its launches.

    A checkpoint hands both to the next launch, so what a launch that was killed or failed spent after its last
    checkpoint, on steps that are undone, is in no later total.
    """

    num_groups: int = 0
    """Groups trained, each use counted."""
    num_episodes: int = 0
    """Episodes in them."""
    num_tokens: int = 0
    """Tokens in them, prompts and observations included."""
    num_sampled_tokens: int = 0
    """Of these, written by the policy or the demonstrator."""
    num_text_tokens: int = 0
    """Tokens of plain text beside them."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Outcome to episodes."""
    checks: Counter[str] = field(default_factory=Counter)
    """True-or-false entry of the environment's info to episodes in which it held."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Reason to groups that were finished and dropped."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0

    def add_batch(self, records: list[GroupRecord]) -> None:
        """A step trained on these groups."""
        episodes = [episode for record in records for episode in record.episodes]
        self.num_groups += len(records)
        self.num_episodes += len(episodes)
        self.num_tokens += sum(episode.num_tokens for episode in episodes)
        self.num_sampled_tokens += sum(episode.num_sampled_tokens for episode in episodes)
        self.num_text_tokens += sum(record.num_text_tokens for record in records)
        self.outcomes.update(episode.outcome.value for episode in episodes)
        for name in check_names(episodes):
            self.checks[name] += sum(episode.info.get(name) is True for episode in episodes)

    def with_costs(self, wall_s: float, usage: Usage) -> dict[str, Any]:
        """JSON values, with what this launch has cost so far added."""
        return {
            "num_groups": self.num_groups,
            "num_episodes": self.num_episodes,
            "num_tokens": self.num_tokens,
            "num_sampled_tokens": self.num_sampled_tokens,
            "num_text_tokens": self.num_text_tokens,
            "outcomes": dict(self.outcomes),
            "checks": dict(self.checks),
            "dropped": dict(self.dropped),
            "wall_s": self.wall_s + wall_s,
            "cpu_s": self.cpu_s + usage.cpu_s,
            "peak_memory_bytes": max(self.peak_memory_bytes, usage.peak_memory_bytes),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Totals":
        """From what a checkpoint holds; empty values are the start of a run."""
        counters = {name: Counter(values.get(name, {})) for name in ("outcomes", "checks", "dropped")}
        return cls(**{**values, **counters})
