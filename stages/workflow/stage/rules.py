"""Building blocks of rules between settings; rules are checked only if every setting is valid by itself."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from skill_grafting.localizers.registry import NAMES
from skill_grafting.support.errors import did_you_mean
from stages.text.tasks.settings import Values, get_by_path


class Choice(NamedTuple):
    """A setting that names tasks: `place` takes them from the list `source`, null takes all; fewer than `least` switch it off.

    It is a list of tasks, a table of such lists, a table from task to task, or, `by_key`, one whose keys are the tasks.
    """

    place: str
    source: str = "tasks"
    least: int = 1
    by_key: bool = False

    def named(self, values: Values) -> list[str]:
        """Every task that it names."""
        found = get_by_path(values, self.place)
        if isinstance(found, dict):
            found = [name for key, part in found.items() for name in self._entry(key, part)]
        return [*dict.fromkeys(found or [])]

    def _entry(self, key: str, part: str | list[str] | None) -> list[str]:
        return [key] if self.by_key else [key, part] if isinstance(part, str) else part or []

    def fit(self, values: Values) -> list[str]:
        """Keep in `values` only what the source contains; returns a message about what was left out, if anything was."""
        known, found = get_by_path(values, self.source) or [], get_by_path(values, self.place)
        strange = [name for name in self.named(values) if name not in known]
        usable = self._usable(found, known) if isinstance(found, dict) else self._enough(found, known)
        values |= with_setting(values, self.place, usable)
        if not known or usable == found or (found is None and usable):
            return []
        if strange:
            return [f"{self.place}: {', '.join(strange)} left out, not among {self.source} ({', '.join(known)})"]
        return [f"{self.place}: off, since it takes {self.least} tasks or more"] * (not usable)

    def _usable(self, found: dict[str, Any], known: list[str]) -> dict[str, Any]:
        if self.by_key or any(isinstance(part, str) for part in found.values()):
            return {key: part for key, part in found.items() if {*self._entry(key, part)} <= {*known}}
        lists = {key: self._enough(part, known) for key, part in found.items()}
        # entries of a section are asked for by their names
        return {key: part for key, part in lists.items() if part or "." not in self.place}

    def _enough(self, tasks: list[str] | None, known: list[str]) -> list[str]:
        here = known if tasks is None else [task for task in tasks if task in known]
        return here if len(here) >= self.least else []


def with_setting(section: Any, key: str, value: object) -> Any:
    """A copy of a section, or of a table of them, in which a dotted key has this value."""
    name, _, rest = key.partition(".")
    part = with_setting(get_by_path(section, name), rest, value) if rest else value
    return section | {name: part} if isinstance(section, dict) else section.model_copy(update={name: part})


def not_among(values: Values, place: str, source: str) -> list[str]:
    """A problem for each item at `place` that isn't in the list `source`."""
    allowed, chosen = get_by_path(values, source), get_by_path(values, place)
    names = ", ".join(map(str, allowed)) or "empty"
    strange = [item for item in (chosen if isinstance(chosen, list) else [chosen]) if item not in allowed]
    return [f"{place}: {item!r} is not among {source} ({names}){did_you_mean(item, allowed)}" for item in strange]


def is_on(values: Values, section: str, *empty: Any) -> bool:
    """False if one of a section's lists is empty, which switches its stage off."""
    return all(item not in ([], *empty) for item in vars(values[section]).values())


def unknown_localizers(values: Values, place: str, names: list[str], others: Sequence[str] = ()) -> list[str]:
    """A problem for each of these names at `place` that has no line under `localizer`, which DVC needs, and is no other method."""
    lines, what = values["localizer"].model_extra, "method" if others else "localizer"
    known = [*others, *sorted({*lines, *NAMES})]
    return [
        f"localizer.{name}: this section is missing, and {place} names it; write `{name}: {{}}` under `localizer`"
        if name in NAMES
        else f"{place}: unknown {what} {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}"
        for name in names
        if name not in lines and name not in others
    ]
