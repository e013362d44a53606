"""YAML 1.2, as DVC reads and writes it; errors are one clear line."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from skill_grafting.support.errors import GraftError, one_line

# of a file, which is read in less than a second: characters, values with those of each alias counted anew, levels, and bits of a number
MOST_CHARACTERS, MOST_VALUES, MOST_LEVELS, MOST_BITS = 100_000, 20_000, 50, 1024


def load_yaml(path: Path, error: type[GraftError]) -> Any:
    """Read one YAML document; raise `error` that names the file when it can't be read or parsed."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise error(f"{path}: no such file; run this from the project's top folder") from None
    except OSError as problem:
        raise error(f"{path}: can't be read: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise error(f"{path}: not UTF-8 text (byte {problem.start})") from None
    return parse_yaml(text, str(path), error)


def parse_yaml(text: str, name: str, error: type[GraftError]) -> Any:
    """Parse one YAML document; raise `error` that names it if it is invalid, or larger than settings ever are."""
    if len(text) > MOST_CHARACTERS:
        raise error(f"{name}: has {len(text):,} characters; at most {MOST_CHARACTERS:,} are read")
    try:
        value = YAML(typ="safe").load(text)
    except MarkedYAMLError as problem:
        place = problem.problem_mark or problem.context_mark
        words = " ".join(filter(None, [problem.context, problem.problem]))
        hint = "; put braces in quotes" if "unhashable key" in words else ""
        where = f" in line {place.line + 1}" if place else ""
        raise error(f"{name}: not valid YAML: {words}{where}{hint}") from None
    except (YAMLError, ValueError) as problem:  # an invalid number or date
        raise error(f"{name}: not valid YAML: {' '.join(str(problem).split())}") from None
    except RecursionError:
        raise error(f"{name}: nested more than {MOST_LEVELS} levels deep") from None
    except Exception as problem:  # of what a tag like !!bool or !!float can't make of a value
        raise error(f"{name}: not valid YAML: a value doesn't fit its tag ({one_line(problem)})") from None
    if problem := _too_large(value):
        raise error(f"{name}: {problem}")
    return value


def _too_large(value: Any) -> str:
    """Why this is no settings' tree: an alias may hold itself, or stand for others that grow tenfold with each level."""
    level, size, depth = [value], 0, 0
    while level:
        size, depth = size + len(level), depth + 1
        if depth > MOST_LEVELS:
            return f"nested more than {MOST_LEVELS} levels deep; an alias can't stand in its own value"
        if size > MOST_VALUES:
            return f"has more than {MOST_VALUES:,} values, those of each alias counted"
        if any(isinstance(one, int) and one.bit_length() > MOST_BITS for one in level):
            return "has a number of too many digits"
        level = [part for one in level for part in _parts(one)]
    return ""


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list | set | tuple) else ()
