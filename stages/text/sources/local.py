"""Data sets in files of the user's: <root>/<task>/{train,dev,test}.jsonl[.gz], .csv or .tsv.

Splits of the user's own stand one folder deeper, in <root>/<task>/<seed>/ or, as LM-BFF names them, <root>/<task>/<k>-<seed>/.
Every row has sentence1 and label, and for two-sentence tasks sentence2, or what `data.columns` calls them.  train has to be there.
Further columns don't matter.

Python's own readers are used: pandas fills rows that are too short with empty cells, shifts longer ones into an index, reads
quotation marks that don't match as text, makes the label 1 a 1.0 where a row has none, and names no line of damaged JSON.
"""

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unicodedata import normalize

from skill_grafting.support.errors import DataError, did_you_mean, shown
from skill_grafting.support.io import json_problem, sha256_of
from stages.text.rows.content import SPLITS, Row
from stages.text.tasks.tasks import TaskSpec

ENDINGS = (".jsonl", ".jsonl.gz", ".csv", ".tsv")
LONGEST_CELL = 1 << 27
# what others call our splits
ALIASES = {"training": "train", "validation": "dev", "valid": "dev", "val": "dev", "testing": "test"}
# bad rows of a file that its message shows
MOST_SHOWN = 5
# NUL, which tokenizers drop or read as their own, and half of a character, as JSON may spell one: no file of text can hold it
UNFIT = re.compile("[\0\ud800-\udfff]")
# tab-separated cells of which some stand in quotation marks, those inside them doubled, and no other mark is anywhere
ENCLOSED = re.compile(r'(?:(?:"[^"]*+(?:""[^"]*+)*+"|[^"\t\r\n]*+)(?:[\t\r\n]|\Z))*+')

# what separates the cells of a table; its header tells which
DELIMITERS = (",", ";", "\t")
# a folder of given splits: its seed, behind the k of LM-BFF
OF_SEED = re.compile(r"(?:\d+-)?(\d+)")

# where the user names a column of the files
SETTING = "data.columns.{}"

Record = dict[str, Any]


def load_local(
    spec: TaskSpec, root: Path, columns: Mapping[str, str] = MappingProxyType({})
) -> tuple[dict[str, list[Row]], dict[str, Any]]:
    """Give the raw rows of a task by split, and the name and SHA-256 of each file; rows of given splits have their `seed`.

    `columns` maps our names to those of the file.  Raises DataError that names the file and the lines with a mistake.
    """
    folder = _folder(spec, root)
    given = {seed: _files(part, SPLITS) for seed, part in _of_seeds(folder).items()}
    rows: dict[str, list[Row]] = {}
    about = {}
    for seed, files in given.items() or [(None, _files(folder, SPLITS[:1]))]:
        for split, path in files.items():
            read = read_file(path, spec, columns)
            rows.setdefault(split, []).extend(read if seed is None else ({**row, "seed": seed} for row in read))
            name = str(path.relative_to(folder))
            about[split if seed is None else name] = {"name": name, "sha256": sha256_of(path)}
    return rows, {"source": "local", "files": about}


def _of_seeds(folder: Path) -> dict[int, Path]:
    """The folders of given splits by their seed; raises DataError if two are of one seed, or if there is a train file beside them."""
    there = sorted(path for path in folder.iterdir() if path.is_dir() and OF_SEED.fullmatch(path.name))
    found = {int(OF_SEED.fullmatch(path.name)[1]): path for path in there}
    if len(found) < len(there):
        raise DataError(
            f"{folder}: two of the folders {', '.join(path.name for path in there)} are of one seed; keep one"
        )
    if there and (files := [f"train{ending}" for ending in ENDINGS if (folder / f"train{ending}").is_file()]):
        beside = f"{files[0]} is to be drawn from, the folder {there[0].name} holds splits to be taken as they are"
        raise DataError(f"{folder}: {beside}; keep one of the two")
    return found


def _folder(spec: TaskSpec, root: Path) -> Path:
    folder = root / (spec.local_name or spec.name)
    if folder.is_dir():
        return folder
    if not root.is_dir():
        needs = f"there is no folder {root}; data.source=local reads {root}/TASK/train.jsonl"
        raise DataError(f"data.root: {needs}")
    there = sorted(path.name for path in root.iterdir() if path.is_dir())
    raise DataError(
        f"task {spec.name}: there is no folder {folder}{did_you_mean(folder.name, there)}; "
        f"{root} has {', '.join(there) or 'no folders'}"
    )


def _files(folder: Path, needed: Iterable[str]) -> dict[str, Path]:
    """The file of each split; raises DataError unless there is one of those needed, none twice, and no valid.csv or Test.CSV."""
    there, endings = sorted(path.name for path in folder.iterdir()), f"{ENDINGS[0]} (or {', '.join(ENDINGS[1:])})"
    named = {split: [split + ending for ending in ENDINGS if (folder / (split + ending)).is_file()] for split in SPLITS}
    found = {split: names for split, names in named.items() if names}
    stems = {name: name.partition(".")[0].lower() for name in there}
    meant = {name: ALIASES.get(stem, stem) for name, stem in stems.items()}
    if unread := [f"{name} would not be read as {split}" for name, split in meant.items() if named.get(split) == []]:
        rule = f"a file is called {' or '.join(SPLITS)} with {endings}, in small letters"
        raise DataError(f"{folder}: {', '.join(unread)}; {rule}")
    for split in (split for split in needed if split not in found):
        raise DataError(f"{folder}: no {split}{endings} here; there is {', '.join(there) or 'nothing'}")
    for split, names in found.items():
        if len(names) > 1:
            raise DataError(f"{folder}: {' and '.join(names)} both hold the split {split}; keep one")
    return {split: folder / name for split, [name] in found.items()}


def read_file(path: Path, spec: TaskSpec, columns: Mapping[str, str], setting: str = SETTING) -> list[Row]:
    """The raw rows of one file; `columns` maps our names to those of the file where these differ.

    Raises DataError with the first lines that have a mistake, how many there are, and the `setting` of a column's name.
    """
    ours = ["sentence2"] * (spec.is_pair or "sentence2" in columns) + ["sentence1", "label"]
    columns = {name: columns.get(name, name) for name in ours}
    read = _jsonl if ".jsonl" in path.name else _table
    records = [*read(path, _text(path), {"sentence2", *columns.values()})]
    _require_columns(path, records, columns, setting)
    rows = [record if isinstance(record, str) else _row(record, spec, columns) for _, record in records]
    bad = [f"{path}:{line}: {row}" for (line, _), row in zip(records, rows, strict=True) if isinstance(row, str)]
    if bad:
        more = [f"and {len(bad) - MOST_SHOWN:,} more"] * (len(bad) > MOST_SHOWN)
        renamed = f"; renamed by task.{spec.name}.relabel: {', '.join(spec.relabel)}" if spec.relabel else ""
        if not renamed and any(isinstance(row, str) and row.startswith("the label") for row in rows):
            renamed = f"; in the pipeline task.{spec.name}.relabel renames labels and drops rows of all others"
        labels = f"the labels of the task {spec.name}: {', '.join(spec.labels)}{renamed}"
        count = f"{len(bad):,} rows" if len(bad) > 1 else "a row"
        raise DataError("\n  ".join([f"{path}: {count} can't be used", *bad[:MOST_SHOWN], *more, labels]))
    if not rows:
        raise DataError(f"{path}: no rows in it")
    return rows


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        # "utf-8-sig" also takes the mark that spreadsheets put first
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        before, byte = problem.object[: problem.start], problem.object[problem.start]
        line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
        where = f"byte {column} of the line is 0x{byte:02x}"
        raise DataError(f"{path}, line {line}: not UTF-8 text ({where}); save the file as UTF-8") from None
    except (OSError, EOFError, zlib.error) as problem:
        raise DataError(f"{path}: can't be read: {problem}") from None


def _jsonl(path: Path, text: str, wanted: Iterable[str]) -> Iterator[tuple[int, Record | str]]:
    """Line number and record, or what is wrong with the line."""
    for number, line in enumerate(io.StringIO(text, newline=""), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line, object_pairs_hook=_once)
        except json.JSONDecodeError as problem:
            record = f"not valid JSON: {problem.msg} (column {problem.colno})"
        except (ValueError, RecursionError) as problem:
            record = f"not valid JSON: {json_problem(problem)}"
        kind = type(record).__name__
        yield number, record if isinstance(record, dict | str) else f"should be an object of named values, not a {kind}"


def _once(pairs: list[tuple[str, Any]]) -> Record:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(shown(name) for name in record if names.count(name) > 1)} stands twice")
    return record


def _table(path: Path, text: str, wanted: Iterable[str]) -> Iterator[tuple[int, Record | str]]:
    """Line number and record, or what is wrong with the line; the first line that is not empty has the names."""
    csv.field_size_limit(LONGEST_CELL)
    delimiter = _delimiter(path, text, {*wanted})
    tabs = delimiter == "\t"
    form = {"quoting": csv.QUOTE_NONE} if tabs and not _is_quoted(text) else {"strict": True}
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, **form)
    inside = {",": "commas", ";": "semicolons", "\t": "tabs or line breaks"}[delimiter]
    advice = f"a text with {inside} wants quotes"
    line, header = 1, None
    try:
        for cells in lines:
            cells = cells if any(map(str.strip, cells)) else []  # as spreadsheets write an empty line
            if header is None and cells:
                header = cells
                if twice := sorted(name for name in wanted if cells.count(name) > 1):
                    raise DataError(
                        f"{path}:{line}: two columns are called {twice[0]!r}; the columns are {', '.join(cells)}"
                    )
            elif cells and len(cells) == len(header):
                yield line, {name: cell or None for name, cell in zip(header, cells, strict=True)}
            elif cells:
                yield line, f"{len(cells)} cell{'s'[: len(cells) != 1]}, but the header has {len(header)}; {advice}"
            line = lines.line_num + 1
    except csv.Error as problem:
        end = "a quotation mark that is never closed" if "end of data" in str(problem) else problem
        yield line, f"not a valid table from here on: {end}"


def _delimiter(path: Path, text: str, wanted: set[str]) -> str:
    """What separates the cells of a table: by which its header has most of the wanted names, then most cells, then as its ending says."""
    head, usual = re.search(r"[^\r\n]*\S[^\r\n]*|$", text)[0], "\t" if path.suffix == ".tsv" else ","

    def fits(delimiter: str) -> tuple[int, int, bool]:
        cells = next(csv.reader([head], delimiter=delimiter), ())
        return len(wanted & {*cells}), len(cells), delimiter == usual

    return max(DELIMITERS, key=fits)


def _is_quoted(text: str) -> bool:
    """True if quotation marks enclose cells of a tab-separated text, as pandas writes them; in benchmarks' files they are text."""
    if not ENCLOSED.fullmatch(text):
        return False
    ragged = len({line.count("\t") for line in text.split("\n") if line.strip("\r")}) > 1
    return ragged or '""' in text or text.startswith('"')


def _require_columns(
    path: Path, records: Sequence[tuple[int, Record | str]], columns: Mapping[str, str], setting: str
) -> None:
    """Raise DataError for columns that no row has, with the nearest of those that there are."""
    there = [*dict.fromkeys(name for _, record in records if isinstance(record, dict) for name in record)]
    lacking = {ours: name for ours, name in columns.items() if name not in there}
    if there and lacking:
        absent = " and ".join(f"no column {name!r}{did_you_mean(name, there)}" for name in lacking.values())
        which = "name it by" if len(lacking) == 1 else "name them by"
        other = "; cells are separated by commas, semicolons or tabs" if len(there) == 1 else ""
        named = " and ".join(setting.format(name) for name in lacking)
        raise DataError(f"{path}: {absent}; the columns are {', '.join(there)}; {which} {named}{other}")


def _row(record: Record, spec: TaskSpec, columns: Mapping[str, str]) -> Row | str:
    """The row of a record, or what is wrong with it."""
    if lacking := [repr(name) for name in columns.values() if name not in record]:
        return f"no {' and no '.join(lacking)}"
    text, label = record[columns["sentence1"]], record[columns["label"]]
    label = json.dumps(label) if isinstance(label, bool | int | float) else label  # as the file has it
    second = record.get(columns.get("sentence2", "sentence2"))
    for ours, value in {"sentence1": text, "label": label, "sentence2": second}.items():
        name = columns.get(ours, ours)
        if not isinstance(value, str | None):
            return f"{name!r} should be text, not {shown(value)}"
        if unfit := UNFIT.search(value or ""):
            what = "a NUL character" if unfit[0] == "\0" else "half of a character"
            return f"{name!r} has {what} in it (\\u{ord(unfit[0]):04x}), which no text should have"
    if not (label or "").strip():
        if spec.relabel is None:
            return "the label is empty"
        label = None  # of another label, and left out by tables.py
    if spec.is_pair and second is None:
        return f"the {columns['sentence2']} is empty, which the task {spec.name} needs"
    label = _as_named(label.strip(), [*spec.labels, *(spec.relabel or ())]) if label else label
    if spec.relabel is None and label not in spec.labels:
        return f"the label {label!r} is none of the task's{did_you_mean(label, spec.labels)}"
    return {"sentence1": text or "", "sentence2": second, "label": label}


def _as_named(label: str, names: Sequence[str]) -> str:
    """The name that is the same text, though a letter and its accent may be one character there and two here."""
    if label in names or label.isascii():
        return label
    form = normalize("NFC", label)
    return next((name for name in names if normalize("NFC", name) == form), label)
