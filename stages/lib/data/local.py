"""Data sets in files of the user's: <root>/<task>/{train,dev,test}.jsonl[.gz], .csv or .tsv.

Every row has sentence1 and label, and for two-sentence tasks sentence2.  train has to be there.
"""

import csv
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from stages.lib.data.tasks import TaskSpec
from stages.lib.errors import DataError, did_you_mean

SPLITS = ("train", "dev", "test")
ENDINGS = (".jsonl", ".jsonl.gz", ".csv", ".tsv")
LONGEST_CELL = 1 << 27

Row = dict[str, str | None]


def load_local(spec: TaskSpec, root: Path) -> tuple[dict[str, list[Row]], dict[str, Any]]:
    """Give the raw rows of a task by split, and the name and SHA-256 of each file.

    Raises DataError that names the file and, where there is one, the line.
    """
    folder = _folder(spec, root)
    files = {split: path for split in SPLITS if (path := _file(folder, split))}
    if "train" not in files:
        there = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
        raise DataError(f"{folder}: no train{ENDINGS[0]} (or {', '.join(ENDINGS[1:])}) here; there is {there}")
    rows = {split: _read(path, spec) for split, path in files.items()}
    digests = {split: hashlib.sha256(path.read_bytes()).hexdigest() for split, path in files.items()}
    return rows, {
        "source": "local",
        "files": {split: {"name": files[split].name, "sha256": digests[split]} for split in files},
    }


def _folder(spec: TaskSpec, root: Path) -> Path:
    folder = root / (spec.local_name or spec.name)
    if folder.is_dir():
        return folder
    if not root.is_dir():
        raise DataError(f"data.root: there is no folder {root}; data.source=local reads {folder}/train.jsonl")
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


def _read(path: Path, spec: TaskSpec) -> list[Row]:
    reader = _jsonl if ".jsonl" in path.suffixes else _table
    try:
        with _open(path) as file:
            rows = [_checked(record, spec, f"{path}, line {line}") for line, record in reader(file, path)]
    except UnicodeDecodeError:
        raise DataError(_encoding_problem(path)) from None
    except (OSError, EOFError, zlib.error) as problem:
        raise DataError(f"{path}: can't be read: {problem}") from None
    if not rows:
        raise DataError(f"{path}: no rows in it")
    return rows


def _open(path: Path) -> IO[str]:
    # "utf-8-sig" also takes the mark that spreadsheets put first; newline="" leaves line ends to the readers
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _encoding_problem(path: Path) -> str:
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    for number, line in enumerate(raw.split(b"\n"), start=1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as problem:
            byte = f"byte {problem.start + 1} of the line is 0x{line[problem.start]:02x}"
            return f"{path}, line {number}: not UTF-8 text ({byte}); save the file as UTF-8"
    return f"{path}: not UTF-8 text; save the file as UTF-8"


def _jsonl(file: IO[str], path: Path) -> Iterator[tuple[int, dict]]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as problem:
            raise DataError(f"{path}, line {number}: not valid JSON: {problem.msg} (column {problem.colno})") from None
        if not isinstance(record, dict):
            raise DataError(
                f'{path}, line {number}: expected an object such as {{"sentence1": ..., "label": ...}}, found {type(record).__name__}'
            )
        yield number, record


def _table(file: IO[str], path: Path) -> Iterator[tuple[int, dict]]:
    csv.field_size_limit(LONGEST_CELL)
    # tab-separated files know no quoting: a quotation mark in them is text
    form = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {"strict": True}
    lines = csv.reader(file, **form)
    try:
        header = next(lines, [])
        _check_header(header, path)
        for cells in filter(None, lines):
            if len(cells) != len(header):
                raise DataError(f"{path}, line {lines.line_num}: {len(cells)} cells, but the header has {len(header)}")
            yield lines.line_num, {name: cell or None for name, cell in zip(header, cells, strict=True)}
    except csv.Error as problem:
        raise DataError(f"{path}, line {lines.line_num}: not a valid table: {problem}") from None


def _check_header(header: list[str], path: Path) -> None:
    for name in ("sentence1", "label") if header else ():
        if name not in header:
            raise DataError(
                f"{path}, line 1: no column {name!r}{did_you_mean(name, header)}; the columns are {', '.join(header)}"
            )


def _checked(record: dict, spec: TaskSpec, place: str) -> Row:
    for name in ("sentence1", "label"):
        if name not in record:
            raise DataError(
                f"{place}: no {name!r}{did_you_mean(name, record)}; it has {', '.join(record) or 'nothing'}"
            )
    if spec.is_pair and record.get("sentence2") is None:
        raise DataError(f"{place}: no 'sentence2', which the task {spec.name} needs")
    for name in ("sentence1", "sentence2"):
        if not isinstance(record.get(name) or "", str):
            raise DataError(f"{place}: {name!r} should be text, not {record[name]!r}")
    sentence1, sentence2 = record["sentence1"] or "", record.get("sentence2")
    return {"sentence1": sentence1, "sentence2": sentence2, "label": _label(record["label"], spec, place)}


def _label(value: Any, spec: TaskSpec, place: str) -> str:
    label = "" if value is None else str(value).strip()
    allowed = spec.relabel or spec.labels
    if not label:
        raise DataError(f"{place}: the label is empty; allowed: {', '.join(allowed)}")
    if spec.relabel is None and label not in allowed:
        raise DataError(
            f"{place}: {label!r} is not a label of the task {spec.name}{did_you_mean(label, allowed)}; allowed: {', '.join(allowed)}"
        )
    return label
