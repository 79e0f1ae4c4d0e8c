"""From the configuration's `tokenizer` to a tokenizer."""

from pathlib import Path

from segue.model.tokenizer.base import Tokenizer
from segue.model.tokenizer.bpe import BpeTokenizer
from segue.model.tokenizer.byte import ByteTokenizer

SHIPPED = Path(__file__).parent / "segue_bpe_1k.json"
"""The small vocabulary made for the `sql` environment; `train_bpe.py` makes it again."""


def load_tokenizer(name_or_path: str) -> Tokenizer:
    """The tokenizer of a name (`bytes`, `segue_bpe_1k`) or of a `tokenizer.json` file.

    Raises:
        ValueError: neither a name nor a fit file.
    """
    if name_or_path == "bytes":
        return ByteTokenizer()
    if name_or_path == SHIPPED.stem:
        return BpeTokenizer.from_file(SHIPPED)
    path = Path(name_or_path)
    if not path.is_file():
        raise ValueError(f"tokenizer must be bytes, {SHIPPED.stem} or the path of a file, got {name_or_path}")
    return BpeTokenizer.from_file(path)
