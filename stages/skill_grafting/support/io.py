"""Reading and writing files: JSON, JSON lines, text."""

import json
from collections.abc import Iterable
from hashlib import file_digest
from pathlib import Path
from typing import Any

from .errors import DataError, GraftError
from .writing import replacing


def require_permission(file: Path) -> None:
    """Raise OSError for a file that may not be read, which safetensors would call missing."""
    file.open("rb").close()


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON; NaN is an error, since JSON knows none."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, error: type[GraftError] = DataError) -> Any:
    """Read a JSON file; raise `error` that names it if it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except (ValueError, RecursionError) as problem:
        raise error(f"{path}: not valid JSON: {json_problem(problem)}") from None


def json_problem(problem: Exception) -> str:
    """The error of Python's reader of JSON (ValueError or RecursionError), in plain words."""
    if isinstance(problem, RecursionError):
        return "nested too deeply"
    return "a number of too many digits" if "int_max_str_digits" in str(problem) else str(problem)


def write_rows(path: Path, rows: Iterable[dict]) -> None:
    """Write one JSON object a line."""
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_rows(path: Path) -> list[dict]:
    """Read what write_rows wrote; raise DataError that names the file if it is missing or damaged."""
    try:
        # split on "\n" alone: text may hold other line separators, which JSON leaves as they are
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{path}: damaged: {json_problem(problem)}") from None


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
