"""Published values of TaLoS, to stand beside ours (paper.yaml)."""

from functools import cache
from pathlib import Path

from stages.lib.errors import DataError
from stages.lib.yaml12 import load_yaml

VALUES = Path(__file__).with_name("paper.yaml")


@cache
def published(operation: str) -> dict[str, dict[str, float]]:
    """Method -> measure -> fraction, of `addition` or `negation`."""
    found = load_yaml(VALUES, DataError)[operation]
    return {name: {key: value / 100 for key, value in values.items()} for name, values in found.items()}
