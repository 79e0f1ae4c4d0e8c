"""Documents for `pretrain.curriculum.text` in which most of what can be learnt is recall.

python -m segue.envs.archive.recall_text <folder> [--documents 16000] [--lines 20] [--seed 0]

A line is an entry of an archive (`clio price 57`). Six in ten say again what the document said of a key last, how many
entries back, every order of magnitude as likely; a third of these stand behind their question
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
    parser.add_argument("--documents", type=int, default=16_000)
    parser.add_argument("--lines", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if min(arguments.documents, arguments.lines) < 1:
        parser.error(f"--documents and --lines must be at least 1, got {arguments.documents} and {arguments.lines}")
    if arguments.folder.exists():
        # others would be trained on with them
        parser.error(f"folder must be a new one, got {arguments.folder}, which is there")
    arguments.folder.mkdir(parents=True)
    for number in range(arguments.documents):
        text = make_document(random.Random(f"{arguments.seed}:{number}"), arguments.lines)
        (arguments.folder / f"{number:05d}.txt").write_text(text)
    print(f"{arguments.documents} documents in {arguments.folder}")


if __name__ == "__main__":
    main()
