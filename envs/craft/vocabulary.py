"""Names of things: one vocabulary for training, whose words are tokens of the shipped tokenizer, one held out."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """Pools of names, none of them in both."""

    materials: tuple[str, ...]
    """What lies around."""
    products: tuple[str, ...]
    """What has a recipe."""


TRAINING = Vocabulary(
    materials=(
        "wood", "steel", "glass", "rock", "rose", "fern", "tulip", "basil", "ivy", "lily", "mint", "lotus",
    ),
    products=(
        "car", "ship", "book", "table", "hotel", "shop", "tool", "song", "film", "kiosk", "depot", "gallery", "crown",
        "harbor", "market", "taxi", "team", "city",
    ),
)  # fmt: skip

HELD_OUT = Vocabulary(
    materials=(
        "copper", "clay", "amber", "leather", "cotton", "marble", "salt", "honey", "willow", "pearl", "resin", "coal",
    ),
    products=(
        "lamp", "sword", "wagon", "tower", "bridge", "mirror", "barrel", "basket", "candle", "anchor", "hammer",
        "ladder", "statue", "lantern", "bucket", "saddle", "needle", "kettle",
    ),
)  # fmt: skip
