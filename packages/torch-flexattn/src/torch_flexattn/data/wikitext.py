"""WikiText-2 as whole articles."""

from __future__ import annotations

import re
from typing import Literal

from ..errors import DataFormatError
from ..factory_arguments import check_choice
from .locate import Root, locate

FOLDER = "wikitext-2"
SPLITS = ("valid", "test")
TITLE = re.compile(r" = [^=].*[^=] = | = [^=] = ")
"""One ``=`` at each side; sections have more."""


def load_wikitext_documents(split: Literal["valid", "test"] = "valid", root: Root = None) -> list[str]:
    """The articles of a split, in order, each from its title on; 60 of ``"valid"``, 62 of ``"test"``.

    Lines stay as they are, so the articles put together are the file from its first title on. Words are what stands
    between blanks; with an end of line for every line that has some, 216,347 and 244,102 tokens.

    Args:
        split: ``"valid"`` or ``"test"``.
        root: folder that holds ``wikitext-2`` or its files; default: ``../shared/data``, ``$TORCH_EXT_DATA``.

    Raises:
        InputError: another split.
        FileNotFoundError: no such file.
        DataFormatError: text before the first title, or no title at all, with the number of the line.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "test.txt"
        >>> _ = path.write_text(" \\n = Cats = \\n \\n = = Care = = \\n feed them \\n = Dogs = \\n ")
        >>> len(load_wikitext_documents("test", path.parent))
        2

    Reference:
        Merity et al. 2016 (Pointer sentinel mixture models), section 4.
    """
    check_choice("split", split, SPLITS)
    path = locate(FOLDER, f"{split}.txt", root)
    articles: list[list[str]] = []
    with path.open(encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            if TITLE.fullmatch(line.rstrip("\n")):
                articles.append([])
            if articles:
                articles[-1].append(line)
            elif line.strip():
                raise DataFormatError(
                    f"{path.name}, line {number}: expected a title such as ' = Cats = ' before the text, got "
                    f"{line.strip()[:60]!r}"
                )
    if not articles:
        raise DataFormatError(f"{path.name}, line 1: expected a title such as ' = Cats = ', got none in the whole file")
    return ["".join(article) for article in articles]
