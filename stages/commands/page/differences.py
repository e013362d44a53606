"""Nested settings or numbers as one flat table, and what differs between two of them."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Difference:
    """One entry that is not the same in both; None where one of them hasn't it."""

    name: str
    before: Any
    after: Any


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted name -> value; empty tables stay as they are, so that they can be told from missing ones."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[Difference]:
    """What differs, in the order of `after`, then what only `before` has."""
    old, new = flat(before), flat(after)
    return [
        Difference(name, old.get(name), new.get(name))
        for name in dict.fromkeys([*new, *old])
        if (name in old) != (name in new) or old.get(name) != new.get(name)
    ]


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
