"""Words that archives and their questions are made of.

Each word of an entry is one token of the shipped vocabulary, which `entry.count_tokens` relies on.
"""

NAMES = (
    "clio", "golf", "astra", "corsa", "polo", "fiesta", "punto", "yaris", "rose", "fern", "tulip", "basil", "daisy",
    "ivy", "lily", "mint", "ritz", "plaza", "astor", "savoy", "grand", "regal", "lotus", "crown", "alien", "psycho",
    "rocky", "jaws", "heat", "fargo", "taxi", "tron", "emma", "ulysses", "dracula", "hamlet", "lolita", "faust",
    "candide", "kim", "hello", "yesterday", "thriller", "imagine", "creep", "zombie", "halo", "crazy", "rex", "bella",
    "toby", "luna", "rocco", "bruno", "coco", "lions", "eagles", "bulls", "sharks", "wolves", "bears", "hawks",
    "tigers", "corner", "harbor", "market", "bazaar", "depot", "outlet", "gallery", "kiosk", "anna", "boris", "carla",
    "david", "elena", "felix", "greta", "hugo", "paris", "oslo", "lima", "cairo", "delhi", "tokyo", "quito", "rome",
    "titan", "argus", "nimbus", "vesta", "triton", "atlas", "hera", "zephyr",
)  # fmt: skip
NUMBERS = (
    "stock", "age", "price", "weight", "height", "score", "speed", "size",
    "rating", "points", "cost", "power", "users", "width", "depth", "debt",
)  # fmt: skip
"""What a subject has an integer of."""
RELATIONS = ("team", "player", "shop", "hotel", "ship", "city", "model", "plant")
"""What another subject is to a subject."""
EVENTS = ("sale", "trip", "visit", "review", "repair")
"""What another subject does to a subject, perhaps more than once."""

# question class: its wordings
PHRASES: dict[str, tuple[str, ...]] = {
    "recall": ("{topic} of {subject}?", "what is the {topic} of {subject}?"),
    "latest": ("latest {topic} of {subject}?", "what is the latest {topic} of {subject}?"),
    "count": ("how many {topic} of {subject}?", "count {topic} of {subject}"),
    "two_hop": ("{topic} of the {relation} of {subject}?", "what is the {topic} of the {relation} of {subject}?"),
}
