"""Errors that a user can fix.

Everything here is shown as one clear message and a non-zero exit code, without a traceback
(`skill_grafting.support.command`).  Programming errors stay a `TypeError` or `ValueError`.
"""

import difflib
import json
import re
from collections.abc import Iterable
from inspect import signature

LONGEST_LINE = 1_500
# what moves a terminal's cursor, colours or turns round its text, breaks lines where no reader sees it, or is half of a character
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# pydantic's type of error -> what is expected instead
EXPECTED = {
    "float_type": "a number",
    "finite_number": "a finite number",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "string_type": "text",
    "string_too_short": "some text, not nothing",
    "string_pattern_mismatch": "a name of a-z, 0-9, _ and . that starts with a letter or a digit",
    "list_type": "a list",
    "dict_type": "`name: value` pairs",
    "model_type": "`name: value` pairs",
}


class GraftError(Exception):
    """A mistake that the caller can fix; the message says what is wrong, where, and what is allowed."""

    def __str__(self) -> str:
        lines = printable(super().__str__()).split("\n")  # a library may quote the whole of a damaged file
        return "\n".join(line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..." for line in lines)


class ParamsError(GraftError):
    """A setting in params.yaml is not allowed."""


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
        what = (
            f"a tensor of {[*value.shape]}; take its mean" if hasattr(value, "shape") else f"a {type(value).__name__}"
        )
        raise ParamsError(f"{setting}: should give one number, not {what}") from None


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
    if "[key]" in problem["loc"]:
        path.pop()  # the name itself is wrong, and is shown as the value
    where = ".".join([*filter(None, [section]), *map(str, path)])
    what = "setting" if section or len(path) > 1 else "section"
    if problem["type"] == "missing":
        return f"{where}: this {what} is missing"
    if problem["type"] == "extra_forbidden":
        known = [*getattr(_model_at(kind, path[:-1]), "model_fields", ())]
        return f"{where}: unknown {what}{did_you_mean(path[-1], known)}; known: {', '.join(known) or 'none'}"
    whole_prompt = problem["type"] == "value_error" and isinstance(problem["input"], dict)
    or_null = "" if problem["type"] == "value_error" else _or_null(kind, path)
    given = "" if whole_prompt else f"{shown(problem['input'])} is not allowed: "
    return f"{where}: {given}should be {_expected(problem)}{or_null}{_hint(problem)}"


def _expected(problem: dict) -> str:
    if problem["type"] == "too_short":
        return f"a list of at least {problem['ctx']['min_length']}"
    if problem["type"] == "string_too_long":
        return f"at most {problem['ctx']['max_length']} characters"
    return EXPECTED.get(problem["type"]) or re.sub("^(Input should be|Value error,) ", "", problem["msg"])


def _hint(problem: dict) -> str:
    kind, value = problem["type"], problem["input"]
    if kind == "literal_error":
        return did_you_mean(value, problem["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", "))
    if kind == "string_type" and isinstance(value, int | float):
        return " (put it in quotes)"
    is_number = isinstance(value, str) and value.strip("-+").replace(".", "", 1).isdigit()
    return " (without quotes)" if kind in ("float_type", "int_type") and is_number else ""


def shown(value: object) -> str:
    """A value as messages show it: as YAML, shortened."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _or_null(kind: object, path: list) -> str:
    setting = _annotation(_model_at(kind, path[:-1]), path[-1]) if path else None
    return " or null" if type(None) in getattr(setting, "__args__", ()) else ""


def _annotation(kind: object, name: object) -> object:
    field = getattr(kind, "model_fields", {}).get(name)
    return field.annotation if field else None


def _model_at(kind: object, path: list) -> object:
    """The model at `path` inside the model `kind`; None if there is none."""
    for part in path:
        annotation = _annotation(kind, part)
        choices = getattr(annotation, "__args__", (annotation,))
        kind = next((choice for choice in choices if hasattr(choice, "model_fields")), None)
    return kind
