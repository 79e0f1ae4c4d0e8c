"""Documents for `pretrain.curriculum.text` in which most of what can be learnt is recall.

python -m segue.envs.archive.recall_text <folder> [--documents 600] [--lines 190] [--seed 0]

A line is an entry of `archive` (`clio price 57`). Six lines in ten repeat an earlier one of their document; how
many lines back, every order of magnitude is as likely. The rest say something new.
"""

import argparse
import random
from pathlib import Path

from segue.envs.archive.entry import MAX_NUMBER
from segue.envs.archive.vocabulary import NAMES, NUMBERS

REPEATED = 0.6


def make_document(rng: random.Random, num_lines: int) -> str:
    """Entries of keys that a document defines once; a repeated key has its value."""
    lines: list[str] = []
    new = rng.sample([(topic, name) for topic in NUMBERS for name in NAMES], num_lines)
    for topic, name in new:
        if lines and rng.random() < REPEATED:
            lines.append(lines[-min(round(len(lines) ** rng.random()), len(lines))])
        else:
            lines.append(f"{name} {topic} {rng.randint(1, MAX_NUMBER)}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=600)
    parser.add_argument("--lines", type=int, default=190)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for number in range(arguments.documents):
        text = make_document(random.Random(f"{arguments.seed}:{number}"), arguments.lines)
        (arguments.folder / f"{number:05d}.txt").write_text(text)


if __name__ == "__main__":
    main()
