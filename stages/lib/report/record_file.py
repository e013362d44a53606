"""The record of one cell, and what is said when it is missing or not what it should be."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stages.lib.errors import DataError
from stages.lib.io import read_json


def read_record(path: Path, stage: str, made_by: str, needs: Iterable[str]) -> dict[str, Any]:
    """The record; raises DataError that names it and what makes it if it isn't there or lacks one of `needs`."""
    if not path.exists():
        raise DataError(f"{path}: not there; {made_by}")
    found = read_json(path)
    if not isinstance(found, dict) or found.get("stage", stage) != stage or not all(found.get(name) for name in needs):
        raise DataError(f"{path}: not a record of {stage}; {made_by}")
    return found
