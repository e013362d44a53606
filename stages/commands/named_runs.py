"""Runs under names on a command line, as in 64=run/plots: where each lies, what its tables hold, and how many seeds it has."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from stages.lib.errors import DataError
from stages.lib.report.format import counts


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


def read_csv(file: Path, columns: Sequence[str], of: str, types: Mapping[str, type] | None = None) -> pd.DataFrame:
    """A table that a run left; raises DataError that says `of` what it should be, if it can't be read or lacks one of the columns."""
    try:
        found = pd.read_csv(file, dtype=types)
        if missing := [name for name in columns if name not in found]:
            raise ValueError(f"no column {missing[0]}")
    except (OSError, ValueError) as problem:
        raise DataError(f"{file}: not {of}: {getattr(problem, 'strerror', None) or problem}") from None
    return found


def seeds_of(found: pd.DataFrame, by: str) -> str:
    """The number of seeds of each run, told by the column `by`: "2 seeds each", or "seeds 2, 1"."""
    seeds = found.groupby(by, sort=False).seed.nunique()
    return f"{counts(seed=seeds.iloc[0])} each" if seeds.nunique() == 1 else "seeds " + ", ".join(map(str, seeds))
