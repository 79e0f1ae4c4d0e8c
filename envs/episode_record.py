"""What brings an episode back in another process."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EpisodeRecord:
    """A snapshot where the environment makes them, else all calls from the reset on, which stands first among them."""

    snapshot: bytes | None
    num_snapshot_steps: int
    """Steps that the snapshot has behind it; 0 without one."""
    calls: tuple[tuple[dict[str, Any], dict[str, Any]], ...]
    """JSON values: each call that followed the snapshot, and what must come back from it when it is run again."""
