"""Words that databases and questions are made of: one vocabulary for training, one that training never shows."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """Pools of names; the first five entities of a table are the ones of level 1."""

    entities: dict[str, tuple[str, tuple[str, ...]]]
    """Table name to (name of its key column, names of its rows)."""
    events: tuple[str, ...]
    """Tables whose rows refer to an entity (level 3)."""
    numbers: tuple[str, ...]
    """Columns that hold integers."""
    texts: dict[str, tuple[str, ...]]
    """Columns that hold one of a few words, and the words."""


TRAINING = Vocabulary(
    entities={
        "car": ("model", ("clio", "golf", "astra", "corsa", "polo", "fiesta", "punto", "yaris", "civic", "micra")),
        "plant": ("name", ("rose", "fern", "tulip", "basil", "daisy", "ivy", "lily", "mint", "sage", "aloe")),
        "hotel": ("name", ("ritz", "plaza", "astor", "savoy", "grand", "regal", "lotus", "crown", "orion", "vista")),
        "film": ("title", ("alien", "psycho", "rocky", "jaws", "heat", "fargo", "taxi", "tron", "dune", "argo")),
        "book": ("title", ("emma", "ulysses", "dracula", "hamlet", "lolita", "faust", "candide", "kim", "persuasion", "ivanhoe")),  # noqa: E501
        "song": ("title", ("hello", "yesterday", "thriller", "imagine", "creep", "zombie", "halo", "crazy", "smile", "bad")),  # noqa: E501
        "dog": ("name", ("rex", "bella", "toby", "luna", "rocco", "daisy", "bruno", "coco", "milo", "nala")),
        "team": ("name", ("lions", "eagles", "bulls", "sharks", "wolves", "bears", "hawks", "tigers", "colts", "rams")),
        "shop": ("name", ("corner", "harbor", "market", "bazaar", "depot", "outlet", "gallery", "kiosk", "arcade", "store")),  # noqa: E501
        "player": ("name", ("anna", "boris", "carla", "david", "elena", "felix", "greta", "hugo", "irene", "jonas")),
        "city": ("name", ("paris", "oslo", "lima", "cairo", "delhi", "tokyo", "quito", "rome", "accra", "perth")),
        "ship": ("name", ("titan", "argus", "nimbus", "vesta", "triton", "atlas", "hera", "zephyr", "apollo", "juno")),
    },
    events=("sale", "trip", "visit", "review", "repair"),
    numbers=(
        "stock", "age", "price", "weight", "height", "score", "speed", "size",
        "rating", "points", "cost", "power", "users", "width", "depth", "debt",
    ),
    texts={
        "season": ("spring", "summer", "winter"),
        "color": ("red", "blue", "green"),
        "region": ("north", "south", "east"),
        "status": ("open", "closed", "new"),
        "grade": ("low", "mid", "top"),
        "material": ("wood", "steel", "glass"),
    },
)  # fmt: skip

HELD_OUT = Vocabulary(
    entities={
        "horse": (
            "nickname",
            ("comet", "shadow", "ginger", "duke", "pearl", "storm", "copper", "misty", "scout", "ruby"),
        ),
        "river": ("label", ("rhine", "nile", "tagus", "volga", "loire", "indus", "congo", "tiber", "ebro", "oder")),
        "museum": (
            "label",
            ("prado", "louvre", "uffizi", "tate", "orsay", "getty", "moma", "brera", "frick", "morgan"),
        ),
        "drink": ("brand", ("cola", "lager", "cider", "tonic", "mocha", "latte", "chai", "mate", "soda", "kefir")),
        "tower": ("label", ("eiffel", "pisa", "shard", "willis", "burj", "macau", "berlin", "kobe", "sears", "ostan")),
        "lamp": (
            "brand",
            ("ikea", "flos", "luxo", "artek", "bover", "foscarini", "oluce", "vibia", "slamp", "estiluz"),
        ),
    },
    events=("loan", "audit", "tour"),
    numbers=("volume", "rooms", "votes", "profit", "area", "radius", "mass", "tax"),
    texts={
        "shape": ("round", "square", "flat"),
        "origin": ("local", "foreign", "mixed"),
        "mood": ("calm", "wild", "sad"),
        "flavor": ("sweet", "sour", "bitter"),
    },
)
