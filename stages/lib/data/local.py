"""Data sets in files of the user's: <root>/<task>/{train,dev,test}.jsonl[.gz], .csv or .tsv.

Every row has sentence1 and label, and for two-sentence tasks sentence2, or what `data.columns` calls them; of a task without
labels prompt and completion.  train has to be there.  Further columns don't matter.
"""

import contextlib
import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from ..digest import sha256_of
from ..errors import DataError, did_you_mean, shown
from ..io import json_problem
from .rows import SPLITS, Row
from .tasks import TaskSpec

ENDINGS = (".jsonl", ".jsonl.gz", ".csv", ".tsv")
LONGEST_CELL = 1 << 27
# what others call our splits
ALIASES = {"training": "train", "validation": "dev", "valid": "dev", "val": "dev", "testing": "test"}
# bad rows of a file that its message shows
MOST_SHOWN = 20

# half of a character, as JSON may spell one: no file of text can hold it
SURROGATE = re.compile("[\ud800-\udfff]")

Record = dict[str, Any]


def load_local(
    spec: TaskSpec, root: Path, columns: Mapping[str, str] = MappingProxyType({})
) -> tuple[dict[str, list[Row]], dict[str, Any]]:
    """Give the raw rows of a task by split, and the name and SHA-256 of each file.

    `columns` maps our names to those of the file.  Raises DataError that names the file and every line with a mistake.
    """
    folder = _folder(spec, root)
    files = {split: path for split in SPLITS if (path := _file(folder, split))}
    if "train" not in files:
        there = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
        raise DataError(f"{folder}: no train{ENDINGS[0]} (or {', '.join(ENDINGS[1:])}) here; there is {there}")
    _require_read(folder, files)
    second = {"sentence2": columns["sentence2"]} if "sentence2" in columns and spec.labels else {}
    columns = {name: columns.get(name, name) for name in spec.columns} | second
    rows = {split: read_file(path, spec, columns) for split, path in files.items()}
    about = {split: {"name": path.name, "sha256": sha256_of(path)} for split, path in files.items()}
    return rows, {"source": "local", "files": about}


def _folder(spec: TaskSpec, root: Path) -> Path:
    folder = root / (spec.local_name or spec.name)
    if folder.is_dir():
        return folder
    if not root.is_dir():
        raise DataError(f"data.root: there is no folder {root}; data.source=local reads {root}/TASK/train.jsonl")
    there = sorted(path.name for path in root.iterdir() if path.is_dir())
    raise DataError(
        f"task {spec.name}: there is no folder {folder}{did_you_mean(folder.name, there)}; "
        f"{root} has {', '.join(there) or 'no folders'}"
    )


def _file(folder: Path, split: str) -> Path | None:
    files = [path for ending in ENDINGS if (path := folder / f"{split}{ending}").is_file()]
    if len(files) > 1:
        raise DataError(f"{folder}: {' and '.join(path.name for path in files)} both hold the split {split}; keep one")
    return files[0] if files else None


def _require_read(folder: Path, files: Mapping[str, Path]) -> None:
    """Raise DataError for files that look like a split and aren't read as one: valid.csv, or Test.CSV."""
    stems = {path.name: path.name.partition(".")[0].lower() for path in sorted(folder.iterdir())}
    other = {name: ALIASES.get(stem, stem) for name, stem in stems.items()}
    other = {name: split for name, split in other.items() if split in SPLITS and split not in files}
    if other:
        names = ", ".join(f"{name} would not be read as {split}" for name, split in other.items())
        endings = f"{ENDINGS[0]} (or {', '.join(ENDINGS[1:])})"
        raise DataError(f"{folder}: {names}; a file is called {' or '.join(SPLITS)} with {endings}, in small letters")


def setting(columns: Sequence[str]) -> str:
    """Where settings say what these columns of ours are called in the files."""
    return f"data.columns: {{{', '.join(f'{column}: ...' for column in columns)}}}"


def read_file(
    path: Path, spec: TaskSpec, columns: Mapping[str, str], place: Callable[[Sequence[str]], str] = setting
) -> list[Row]:
    """The raw rows of one file; `columns` maps the task's columns and perhaps sentence2 to those of the file.

    Raises DataError that names every line with a mistake, and the `place` where the user says what a column is called.
    """
    reader = _jsonl if path.name.endswith((".jsonl", ".jsonl.gz")) else _table
    rows, bad = [], []
    try:
        with _open(path) as file:
            for line, record in reader(file, path, columns, place):
                row = record if isinstance(record, str) else _checked(record, spec, columns, place)
                if isinstance(row, str):
                    bad.append(f"{path}:{line}: {row}")
                else:
                    rows.append(row)
    except UnicodeDecodeError:
        raise DataError(_encoding_problem(path)) from None
    except (OSError, EOFError, zlib.error) as problem:
        raise DataError(f"{path}: can't be read: {problem}") from None
    if bad:
        raise DataError(_bad_rows(path, bad, spec))
    if not rows:
        raise DataError(f"{path}: no rows in it")
    return rows


def _bad_rows(path: Path, bad: list[str], spec: TaskSpec) -> str:
    more = [f"and {len(bad) - MOST_SHOWN:,} more"] if len(bad) > MOST_SHOWN else []
    words = f"{len(bad):,} rows" if len(bad) > 1 else "a row"
    renamed = f"; renamed by task.{spec.name}.relabel: {', '.join(spec.relabel)}" if spec.relabel else ""
    labels = [f"the labels of the task {spec.name}: {', '.join(spec.labels)}{renamed}"] if spec.labels else []
    return "\n  ".join([f"{path}: {words} can't be used", *bad[:MOST_SHOWN], *more, *labels])


def _open(path: Path, errors: str = "strict") -> IO[str]:
    # "utf-8-sig" also takes the mark that spreadsheets put first; newline="" leaves line ends to the readers
    opened = gzip.open if path.suffix == ".gz" else open
    return opened(path, "rt", encoding="utf-8-sig", errors=errors, newline="")


def _encoding_problem(path: Path) -> str:
    # what is also damaged further on may end it early
    with contextlib.suppress(OSError, EOFError, zlib.error), _open(path, "surrogateescape") as file:
        for number, line in enumerate(file, start=1):
            if odd := SURROGATE.search(line):
                place, byte = len(line[: odd.start()].encode()) + 1, ord(odd[0]) - 0xDC00
                where = f"byte {place} of the line is 0x{byte:02x}"
                return f"{path}, line {number}: not UTF-8 text ({where}); save the file as UTF-8"
    return f"{path}: not UTF-8 text; save the file as UTF-8"


def _jsonl(file: IO[str], path: Path, columns: Mapping[str, str], _: object) -> Iterator[tuple[int, Record | str]]:
    """Line number and record, or what is wrong with the line."""
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line, object_pairs_hook=_once)
        except json.JSONDecodeError as problem:
            record = f"not valid JSON: {problem.msg} (column {problem.colno})"
        except (ValueError, RecursionError) as problem:
            record = f"not valid JSON: {json_problem(problem)}"
        else:
            if not isinstance(record, dict):
                text, label, *_ = columns.values()
                example = f'{{"{text}": ..., "{label}": ...}}'
                record = f"expected an object such as {example}, found {type(record).__name__}"
        yield number, record


def _once(pairs: list[tuple[str, Any]]) -> Record:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(shown(name) for name in record if names.count(name) > 1)} stands twice")
    return record


def _table(
    file: IO[str], path: Path, columns: Mapping[str, str], place: Callable[[Sequence[str]], str]
) -> Iterator[tuple[int, Record | str]]:
    """Line number and record, or what is wrong with the line."""
    csv.field_size_limit(LONGEST_CELL)
    form, advice = {"strict": True}, "a text with commas wants quotes"
    if path.suffix == ".tsv":
        # tab-separated files know no quoting: a quotation mark in them is text
        form = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
        advice = "a text with tabs or line breaks needs a .csv or .jsonl"
    lines = csv.reader(file, **form)
    line = 1
    try:
        header = next(lines, [])
        if not header and lines.line_num:
            raise DataError(f"{path}:1: the line is empty; the names of the columns belong there")
        _check_header(header, path, columns, place)
        while True:
            line = lines.line_num + 1
            if (cells := next(lines, None)) is None:
                return
            if len(cells) == len(header):
                yield line, {name: cell or None for name, cell in zip(header, cells, strict=True)}
            elif cells:
                yield line, f"{len(cells)} cells, but the header has {len(header)}; {advice}"
    except csv.Error as problem:
        end = "a quotation mark that is never closed" if "end of data" in str(problem) else problem
        yield line, f"not a valid table from here on: {end}"


def _check_header(
    header: list[str], path: Path, columns: Mapping[str, str], place: Callable[[Sequence[str]], str]
) -> None:
    there = f"the columns are {', '.join(header)}"
    named = {"sentence2": "sentence2", **columns} if header else {}
    if twice := [
        f"{header.count(name)} columns are called {name!r}" for name in named.values() if header.count(name) > 1
    ]:
        raise DataError(f"{path}:1: {', '.join(twice)}; {there}")
    if missing := header and _missing(header, columns, place, there, "column "):
        other = "; cells of a .csv are parted by commas, those of a .tsv by tabs" if len(header) == 1 else ""
        raise DataError(f"{path}:1: {missing}{other}")


def _missing(
    names: Sequence[str], columns: Mapping[str, str], place: Callable[[Sequence[str]], str], there: str, kind: str = ""
) -> str:
    """Which of these columns are not among the names, in words that begin with `no`; nothing if all are."""
    lacking = {ours: name for ours, name in columns.items() if name not in names}
    told = " and ".join(f"no {kind}{name!r}{did_you_mean(name, names)}" for name in lacking.values())
    which = "say which one it is" if len(lacking) == 1 else "say which ones they are"
    return told and f"{told}; {there}; {which}: {place([*lacking])}"


def _checked(
    record: Record, spec: TaskSpec, columns: Mapping[str, str], place: Callable[[Sequence[str]], str]
) -> Row | str:
    """The row of a record, or what is wrong with it."""
    if missing := _missing([*record], columns, place, f"it has {', '.join(record) or 'nothing'}"):
        return missing
    text_column, label_column = spec.columns
    row = {"sentence1": record[columns[text_column]]}
    row["sentence2"] = record.get(columns.get("sentence2", "sentence2")) if spec.labels else None
    if spec.is_pair and row["sentence2"] is None:
        name = columns.get("sentence2", "sentence2")
        return f"{f'the {name} is empty' if name in record else f'no {name!r}'}, which the task {spec.name} needs"
    for ours, text in row.items():
        name = text_column if ours == "sentence1" else ours
        if text is not None and not isinstance(text, str):
            return f"{name!r} should be text, not {shown(text)}"
        if half := SURROGATE.search(text or ""):
            return f"{name!r} has half of a character in it (\\u{ord(half[0]):04x}), which no text file can hold"
    value = record[columns[label_column]]
    if isinstance(value, bool):
        value = shown(value)  # true or false, as the file has it
    label = "" if value is None else str(value).strip()
    if not label:
        return f"the {label_column} is empty"
    if not spec.labels:
        return row | {"sentence1": row["sentence1"] or "", "label": str(value)}
    if spec.relabel is None and label not in spec.labels:
        return f"the label {label!r} is none of the task's{did_you_mean(label, spec.labels)}"
    return row | {"sentence1": row["sentence1"] or "", "label": label}
