"""Nested settings or numbers as one flat table, beside those of a baseline."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A setting or number by its dotted name, before and after; None on a side that doesn't have it."""

    name: str
    before: Any
    after: Any
    differs: bool

    @property
    def change(self) -> str:
        """The difference of two numbers with its sign; else empty."""
        numbers = [value for value in (self.before, self.after) if type(value) in (int, float)]
        return f"{numbers[1] - numbers[0]:+.6g}" if len(numbers) == 2 else ""


def compare(before: dict[str, Any], after: dict[str, Any]) -> list[Entry]:
    """Every entry in the order of `after`, then those that only `before` has."""
    old, new = flat(before), flat(after)
    return [
        Entry(name, old.get(name), new.get(name), (name in old) != (name in new) or old.get(name) != new.get(name))
        for name in dict.fromkeys([*new, *old])
    ]


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted name -> value; empty tables stay as they are, so that they can be told from missing ones."""
    entries: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            entries |= flat(value, f"{prefix}{name}.")
        else:
            entries[f"{prefix}{name}"] = value
    return entries


def written(value: Any) -> str:
    """A value as params.yaml would have it; at most six digits."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    return str(value)
