"""Runs under names on a command line, as in 64=run/plots."""

from collections.abc import Sequence
from pathlib import Path

from stages.lib.errors import DataError


def named_runs(words: Sequence[str], form: str) -> dict[str, Path]:
    """The file or folder of each run by its name; raises DataError for a word without one, with the `form`, and for a name given twice."""
    found: dict[str, Path] = {}
    for word in words:
        name, _, place = word.partition("=")
        if not (name and place):
            raise DataError(f"{word!r}: {form}")
        if name in found:
            raise DataError(f"{' '.join(words)}: {name} is named twice")
        found[name] = Path(place)
    return found
