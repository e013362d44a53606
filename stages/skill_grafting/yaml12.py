"""YAML 1.2, as DVC reads and writes it; errors are one clear line."""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from .errors import GraftError


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
    """Parse one YAML document; raise `error` that names it if it is invalid."""
    try:
        return YAML(typ="safe").load(text)
    except MarkedYAMLError as problem:
        place = problem.problem_mark or problem.context_mark
        words = " ".join(filter(None, [problem.context, problem.problem]))
        hint = "; put braces in quotes" if "unhashable key" in words else ""
        raise error(f"{name}: not valid YAML: {words} in line {place.line + 1}{hint}") from None
    except (YAMLError, ValueError) as problem:  # an invalid number or date
        raise error(f"{name}: not valid YAML: {' '.join(str(problem).split())}") from None
