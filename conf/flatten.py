"""A configuration as dotted keys and plain values."""

from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf

from segue.conf.schema import SegueConfig


def flatten(config: SegueConfig) -> dict[str, Any]:
    """Dotted key to plain value (enums by name), for every leaf of a configuration."""
    container = OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)
    return dict(_leaves("", container))


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(f"{prefix}.{key}" if prefix else str(key), inner)
    else:
        yield prefix, value
