"""Antiphon: a server for the Responses API over models that you run yourself."""

from pathlib import Path

__version__ = "0.1.0"

_FOLDER = Path(__file__).parent
if not (_FOLDER / "domain").is_dir():
    # A checkout where the links to the layers are files of text: docs/decisions/0006 says why.
    __path__.append(str(_FOLDER.parents[1]))
