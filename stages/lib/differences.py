"""Nested settings or numbers as one flat table, beside those of a baseline or those that a report was made under."""

import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from .settings import Params, is_partial

SHOWN = 4
NOT_THERE = "not there"


@dataclass(frozen=True)
class Entry:
    """A setting or number by its dotted name, before and after; NOT_THERE on a side that doesn't have it."""

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
    """Every entry in the order of `after`, then those that only `before` has; a table that one side has empty goes by its entries."""
    old, new = flat(before), flat(after)
    names = dict.fromkeys([*new, *old])
    sides = [(name, old.get(name, NOT_THERE), new.get(name, NOT_THERE)) for name in names]
    filled = {name for name, *both in sides if {} in both and any(other.startswith(f"{name}.") for other in names)}
    return [Entry(*side, side[1] != side[2]) for side in sides if side[0] not in filled]


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted name -> value; empty tables stay as they are, so that they can be told from missing ones."""
    entries: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            entries |= flat(value, f"{prefix}{name}.")
        else:
            entries[f"{prefix}{name}"] = value
    return entries


def plain(params: Params) -> dict[str, Any]:
    """Settings that a stage asked for, under the dotted keys it asked with: {"tasks": [...], "graft.region": [...], "model": {...}}."""
    found: dict[str, Any] = {}
    for name, value in vars(params).items():
        parts = {f"{name}.{key}": part for key, part in vars(value).items()} if is_partial(value) else {name: value}
        found |= {key: _dumped(part) for key, part in parts.items()}
    return found


def told(entries: list[Entry]) -> str:
    """The first of them in words: "model.name roberta-base, now mine; seeds [13], now [21]; and 3 more"."""
    sides = [(entry.name, _side(entry.before), _side(entry.after)) for entry in entries]
    texts = [f"{name} {before}, now {after}" for name, before, after in sides if before != after]
    return "; ".join(texts[:SHOWN] + [f"and {len(texts) - SHOWN} more"] * (len(texts) > SHOWN))


def _side(value: object) -> str:
    return "none" if value in (None, {}, NOT_THERE) else written(value)


def _dumped(value: object) -> Any:
    """Sections as tables, tuples as lists: what JSON gives back."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {name: _dumped(part) for name, part in value.items()}
    return [_dumped(part) for part in value] if isinstance(value, list | tuple) else value


def written(value: object) -> str:
    """A value as params.yaml would have it; at most six digits."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    return str(value)
