"""Words that problems are made of, and the wordings of each class; some of them training never shows."""

from enum import Enum


class Phrasing(Enum):
    """Which wordings a problem may use."""

    training = "training"
    held_out = "held_out"


FILE_NAMES = ("data", "list", "items", "notes", "log", "rows")
WORDS = (
    "rose", "fern", "tulip", "basil", "daisy", "ivy", "lily", "mint", "sage", "aloe", "red", "blue", "green", "open",
    "closed", "north", "south", "east", "wood", "steel", "glass",
)  # fmt: skip
COLUMNS = ("stock", "age", "price", "weight", "score", "speed", "size", "points", "cost", "width")

# problem class: (wordings of training, wordings that training never uses)
PHRASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "total": (
        ("{file}: total of the numbers?", "what is the total in {file}?"),
        ("add up every number of {file}", "{file}, all lines together"),
    ),
    "highest": (
        ("{file}: highest number?", "what is the highest number in {file}?"),
        ("name the biggest number of {file}", "{file} at its peak"),
    ),
    "spread": (
        ("{file}: highest number less the lowest?", "what is the highest less the lowest number in {file}?"),
        ("how far apart are the biggest and the smallest number of {file}", "{file}, from bottom to peak"),
    ),
    "middle": (
        ("{file}: median of the numbers?", "what is the median in {file}?"),
        ("name the number in the middle of {file} once sorted", "{file}, half above and half below"),
    ),
    "count_above": (
        ("{file}: how many numbers above {value}?", "count the numbers above {value} in {file}"),
        ("lines of {file} that exceed {value}", "{file} over {value}, how often"),
    ),
    "count_word": (
        ("{file}: how often {word}?", "count {word} in {file}"),
        ("number of lines of {file} that read {word}", "{word} occurs in {file} how many times"),
    ),
    "reverse": (
        ("{text}: reversed?", "what is {text} reversed?"),
        ("write {text} from its end to its beginning", "{text}, the other way round"),
    ),
    "reorder": (
        ("{text}: words sorted?", "what is {text} with its words sorted?"),
        ("put the words of {text} in the order of the alphabet", "{text}, as a dictionary would list it"),
    ),
    "initials": (
        ("{text}: first letters?", "what are the first letters of {text}?"),
        ("join what each word of {text} begins with", "{text}, as an acronym"),
    ),
    "simulate": (
        (
            "start at {start}, {rounds} times: times {factor}, plus {term}, modulo {modulus}. result?",
            "x={start}; {rounds} times x becomes (x*{factor}+{term}) modulo {modulus}. x?",
        ),
        (
            "a counter shows {start}; each of {rounds} ticks multiplies by {factor}, adds {term}, keeps the rest by "
            "{modulus}. what does it show",
        ),
    ),
    "table_total": (
        ("{file}: total {column} of kind {group}?", "what is the total {column} of kind {group} in {file}?"),
        ("add up every {column} whose kind equals {group} in {file}", "{file}, {group} alone: all {column} together"),
    ),
    "table_top": (
        ("{file}: id with the highest {column}?", "which id in {file} has the highest {column}?"),
        ("who leads {file} by {column}", "{file}: id of the biggest {column}"),
    ),
}
