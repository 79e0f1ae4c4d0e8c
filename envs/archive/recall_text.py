"""Documents for `pretrain.curriculum.text` in which most of what can be learnt is recall.

python -m segue.envs.archive.recall_text <folder> [--documents 24000] [--min-lines 5] [--max-lines 22] [--seed 0]

Every order of magnitude of a document's length is as likely: short ones teach first, and the longest have what lies
far back. A line is an entry of an archive (`clio price 57`). Six in ten say again what the document said of a key last,
how many entries back, every order of magnitude as likely; a third of these stand behind their question
(`question: price of clio?`), as at an archive's end.
"""

import argparse
import random
from pathlib import Path

from segue.envs.archive.entry import Entry, draw_register
from segue.envs.archive.question import recall_question

# an archive of so few subjects that the documents' keys have much in common
_REGISTER_TOKENS = 512
_REPEATED, _ASKED = 0.6, 1 / 3


def make_document(rng: random.Random, num_lines: int) -> str:
    """A document of so many lines, or one more."""
    register = draw_register(rng, _REGISTER_TOKENS)
    said: dict[tuple[str, str], Entry] = {}
    order: list[tuple[str, str]] = []
    lines: list[str] = []
    while len(lines) < num_lines:
        if order and rng.random() < _REPEATED:
            entry = said[order[-min(round(len(order) ** rng.random()), len(order))]]
            if rng.random() < _ASKED:
                lines.append(f"question: {recall_question(rng, entry)}")
        else:
            topic = rng.choice((*register.numbers, *register.relations))
            entry = Entry(topic=topic, subject=register.subjects(rng, 1)[0], value=register.value(rng, topic))
            said[entry.key] = entry
            order.append(entry.key)
        lines.append(entry.text)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=24_000)
    parser.add_argument("--min-lines", type=int, default=5)
    parser.add_argument("--max-lines", type=int, default=22)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    shortest, longest = arguments.min_lines, arguments.max_lines
    if arguments.documents < 1:
        parser.error(f"--documents must be at least 1, got {arguments.documents}")
    if not 1 <= shortest <= longest:
        parser.error(f"--min-lines must be at least 1 and at most --max-lines, got {shortest} and {longest}")
    if arguments.folder.exists():
        # others would be trained on with them
        parser.error(f"folder must be a new one, got {arguments.folder}, which is there")
    arguments.folder.mkdir(parents=True)
    for number in range(arguments.documents):
        rng = random.Random(f"{arguments.seed}:{number}")
        text = make_document(rng, round(shortest * (longest / shortest) ** rng.random()))
        (arguments.folder / f"{number:05d}.txt").write_text(text)
    print(f"{arguments.documents} documents in {arguments.folder}")


if __name__ == "__main__":
    main()
