"""`docs/config.md` holds every key as the schema has it."""

from pathlib import Path

from segue.conf.flatten import flatten
from segue.conf.reference import key_table, stage_table
from segue.conf.schema import SegueConfig

DOCUMENT = Path(__file__).parents[3] / "docs" / "config.md"


def test_the_document_holds_the_schemas_table() -> None:
    assert key_table() in DOCUMENT.read_text(), (
        "replace the table in docs/config.md with segue.conf.reference.key_table()"
    )
    assert stage_table() in DOCUMENT.read_text(), (
        "replace the table of stages in docs/config.md with segue.conf.reference.stage_table()"
    )


def test_the_table_has_every_leaf_once_with_its_default() -> None:
    rows = [line.split(" | ") for line in key_table().splitlines()[2:]]
    keys = [row[0].removeprefix("| ").strip("`") for row in rows]
    # dictionaries of the user's own keys are leaves here, and so is an empty list
    assert sorted(keys) == sorted(flatten(SegueConfig()))
    defaults = dict(zip(keys, (row[2].strip("`") for row in rows), strict=True))
    assert (defaults["train.steps"], defaults["run.dir"], defaults["train.on_exceed"]) == ("50", "null", "mask")


def test_every_key_has_a_meaning_but_the_models_public_ones() -> None:
    silent = [line.split("`")[1] for line in key_table().splitlines()[2:] if line.endswith("|  |")]
    assert [key for key in silent if not key.startswith("model.")] == []
