"""Errors that a user can fix.

Everything here is shown as one clear message and a non-zero exit code, without a traceback
(`skill_grafting.support.command`).  Programming errors stay a `TypeError` or `ValueError`.
"""

import difflib
import json
import re
from collections.abc import Iterable
from importlib import import_module
from inspect import signature
from types import ModuleType

LONGEST_LINE = 1_500
# what moves a terminal's cursor, colours or turns round its text, breaks lines where no reader sees it, or is half of a character
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

# package -> the extra of this one that has it
EXTRAS = {"matplotlib": "tables", "pandas": "tables", "peft": "merge"}


class GraftError(Exception):
    """A mistake that the caller can fix; the message says what is wrong, where, and what is allowed."""

    def __str__(self) -> str:
        lines = printable(super().__str__()).split("\n")  # a library may quote the whole of a damaged file
        return "\n".join(line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..." for line in lines)


class ParamsError(GraftError):
    """A setting or an argument is not allowed."""


class DataError(GraftError):
    """A data set is missing, unreadable, or not what its task says it is."""


class ModelError(GraftError):
    """A model or tokenizer is missing, unreadable, or does not fit its task."""


class MaskError(GraftError):
    """A mask is damaged, or belongs to another model."""


class TrainingError(GraftError):
    """Training failed in a way that settings can fix, for instance a diverging loss."""


class StorageError(GraftError):
    """A file could not be written or is not what was written."""


def printable(text: str) -> str:
    """A stranger's text for a terminal: control characters are written out, as \\u001b; tabs and line breaks stay."""
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(error: Exception) -> str:
    """Type and beginning of the message of a library's error."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def optional(module: str) -> ModuleType:
    """Import a module of such a package; raises GraftError with what installs it."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise GraftError(f"needs the package {package}: pip install 'skill-grafting[{EXTRAS[package]}]'") from None


def require_takes(function: object, setting: str, *arguments: str) -> None:
    """Raise ParamsError unless this is a function that can be called with arguments in these places."""
    try:
        signature(getattr(function, "forward", function)).bind(*arguments)
    except TypeError:
        given = type(function).__name__ if not callable(function) else f"one of other arguments: {function}"
        raise ParamsError(f"{setting}: should be a function ({', '.join(arguments)}), not {given}") from None
    except ValueError:  # a builtin function that says nothing of its arguments
        pass


def one_number(value: object, setting: str) -> float:
    """What a caller's function gives as a number; raises ParamsError for anything else."""
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):
        what = f"a tensor of {[*value.shape]}; take its mean" if hasattr(value, "shape") else a_kind(value)
        raise ParamsError(f"{setting}: should give one number, not {what}") from None


def a_kind(value: object) -> str:
    """`an int`, `a list` or `None`, as messages call what was given."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def did_you_mean(name: object, allowed: Iterable[str]) -> str:
    """Give ` (did you mean 'x'?)` for the nearest allowed name, or an empty string."""
    names = {str(item).casefold(): str(item) for item in allowed}
    near = difflib.get_close_matches(str(name).casefold(), names, n=1, cutoff=0.6)
    return f" (did you mean {names[near[0]]!r}?)" if near else ""


def plain_problem(problem: dict, section: str, kind: object) -> str:
    """One line for one finding of pydantic in a `section` of this `kind`: dotted key, value, what is allowed, nearest name.

    Without a section the kind is of a whole file of them.
    """
    path = [part for part in problem["loc"] if part != "[key]"]
    where, value = ".".join([*filter(None, [section]), *map(str, path)]), problem["input"]
    if problem["type"] == "missing":
        return f"{where}: is missing"
    if problem["type"] == "extra_forbidden":
        fields = getattr(_model_at(kind, path[:-1]), "model_fields", {})
        known = [field.alias or name for name, field in fields.items()]
        return f"{where}: unknown setting{did_you_mean(path[-1], known)}; known: {', '.join(known) or 'none'}"
    near = (
        did_you_mean(value, re.findall("'(.*?)'", problem["ctx"]["expected"]))
        if problem["type"] == "literal_error"
        else ""
    )
    # what our own validators raise says what should be there
    told = problem["msg"].replace("Value error, ", "should be ") + near
    return f"{where}: {told}" if isinstance(value, dict) else f"{where}: {shown(value)} is not allowed: {told}"


def shown(value: object) -> str:
    """A value as messages show it: as YAML, shortened."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _model_at(kind: object, path: list) -> object:
    """The model at `path` inside the model `kind`; None if there is none."""
    for part in path:
        if isinstance(part, int):  # of a list of these
            continue
        field = getattr(kind, "model_fields", {}).get(part)
        choices = getattr(field.annotation, "__args__", (field.annotation,)) if field else ()
        kind = next((choice for choice in choices if hasattr(choice, "model_fields")), None)
    return kind
