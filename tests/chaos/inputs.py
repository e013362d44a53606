"""Damaged params files and data files through the readers that stages use: they succeed, or say what is wrong."""

import csv
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from stages.lib.data.local import ENDINGS, load_local
from stages.lib.data.tables import build_table
from stages.lib.data.tasks import TaskSpec
from stages.lib.io import read_rows, write_rows
from stages.workflow.core.settings import PIPELINES, checked, params_file, read_files
from tests.chaos.campaign import Check

ROOT = Path(__file__).parents[2]
TASK = TaskSpec(name="mine", title="Mine", kind="test", labels=["bad", "good"])
ODD: list[Any] = [
    None, True, False, 0, -1, 1.5, 10**30, 1e308, float("inf"), float("nan"), "", " ", "\0", "\ud800", "13 $(touch x)", "../x", "é",
    "x" * 5000, [], [[]], {}, {"a": {}}, ["movies", "movies"], [None], {"task": None}, "1e-5", "null", "${seeds}", "[", "{mask}",
]  # fmt: skip
BYTES = [b"\0", b"\xff", b"\t", b"[", b"{", b'"', b"&a ", b"*a", b"<<: ", b"!!int ", b"\r", b": ", b"9" * 5000, b"[" * 3000, b"\\ud800", b"---\n"]  # fmt: skip


def params(chance: random.Random, folder: Path) -> None:
    """Settings with odd values, names or sections, or a torn file, as `load_params` reads and checks them."""
    files = {name: folder / params_file(name) for name in PIPELINES}
    for name, path in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((ROOT / params_file(name)).read_bytes())
    path = files[chance.choice([*files])]
    raw = path.read_bytes()
    if chance.random() < 0.5:
        path.write_bytes(torn(chance, raw))
    else:
        values = YAML(typ="safe").load(raw)
        for _ in range(chance.randint(1, 4)):
            disturb(chance, values)
        path.write_text(json.dumps(values), encoding="utf-8")
    checked(read_files(PIPELINES, folder), localizers=True)


def rows(chance: random.Random, folder: Path) -> None:
    """Rows of the user's with odd cells, or a torn file, as `fetch` reads them, makes a table of them and stores it."""
    ending = chance.choice(ENDINGS)
    made = [{"sentence1": f"text {n}", "sentence2": None, "label": TASK.labels[n % 2]} for n in range(40)]
    for _ in range(chance.randint(0, 3)):
        row = chance.choice(made)
        row[chance.choice([*row, "label2"])] = chance.choice(ODD)
    (folder / "mine").mkdir(exist_ok=True)
    for path in (folder / "mine").iterdir():
        path.unlink()
    content = as_jsonl(made) if "jsonl" in ending else as_table(made, "\t" if ending == ".tsv" else ",")
    content = torn(chance, content) if chance.random() < 0.5 else content
    if ending.endswith(".gz"):
        packed = gzip.compress(content, mtime=0)
        content = torn(chance, packed) if chance.random() < 0.5 else packed
    (folder / f"mine/train{ending}").write_bytes(content)
    raw, origin = load_local(TASK, folder)
    table = build_table(TASK, raw, origin)
    write_rows(folder / "table.jsonl", table.rows)
    assert read_rows(folder / "table.jsonl") == table.rows, "the table is not what was stored"


CHECKS: dict[str, Check] = {"params files": params, "data files": rows}


def disturb(chance: random.Random, values: dict[str, Any]) -> None:
    """Put something odd in the place of a setting, take it away, or give it another name."""
    place, key = values, chance.choice([*values])
    while isinstance(place[key], dict) and place[key] and chance.random() < 0.8:
        place, key = place[key], chance.choice([*place[key]])
    what = chance.random()
    if what < 0.7:
        listed = isinstance(place[key], list) and chance.random() < 0.5
        place[key] = [*place[key], chance.choice(ODD)] if listed else chance.choice(ODD)
    elif what < 0.85:
        del place[key]
    else:
        place[f"{key}x"] = place.pop(key)
    if not values:
        values["tasks"] = None


def torn(chance: random.Random, content: bytes) -> bytes:
    """Bytes cut, repeated, changed or put in between, at random places."""
    for _ in range(chance.randint(1, 3)):
        start, length = chance.randint(0, len(content)), chance.randint(0, 60)
        middle = chance.choice([b"", chance.choice(BYTES), content[start : start + length] * 2, chance.randbytes(3)])
        content = content[:start] + middle + content[start + length :]
        if chance.random() < 0.1:
            content = content[: chance.randint(0, len(content))]
    return content


def as_jsonl(made: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in made).encode()


def as_table(made: list[dict[str, Any]], delimiter: str) -> bytes:
    text = io.StringIO(newline="")
    names = ["sentence1", "sentence2", "label"]
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerows([names, *([row[name] for name in names] for row in made)])
    return text.getvalue().encode("utf-8", "surrogatepass")
