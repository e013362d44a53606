"""Damaged, forged and hostile input, drawn by Hypothesis: it is refused in clear lines, or read as exactly what it is.

CASES=1000 draws more of each kind (make chaos); the same number draws the same ones.
"""

import csv
import gzip
import io
import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import randoms
from ruamel.yaml import YAML
from safetensors.torch import load, load_file, save_file

from skill_grafting.data.local import ENDINGS, load_local
from skill_grafting.data.tables import build_table
from skill_grafting.data.tasks import TaskSpec
from skill_grafting.digest import seal
from skill_grafting.errors import GraftError
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_file import StoredMask, read_header, read_mask, write_mask
from skill_grafting.grafting.region import Region
from skill_grafting.io import read_rows, write_rows
from skill_grafting.metrics.predictions import Predictions, read_predictions, write_predictions
from skill_grafting.models.importing import import_model
from skill_grafting.models.loading import load_model, load_tokenizer
from skill_grafting.models.sources import obtain
from skill_grafting.patches.patch_file import KEY, VERSION
from stages.workflow.core.settings import PIPELINES, checked, params_file, read_files
from tests.pico import model_settings, save_bert
from tests.sealed import read_patch

# makes a case in a folder from what it draws, and has the project read it
Check = Callable[[random.Random, Path], None]
ROOT = Path(__file__).parents[2]
CASES = int(os.environ.get("CASES", "20"))
ODD: list[Any] = [
    None, True, False, 0, -1, 1.5, 10**30, 1e308, float("inf"), float("nan"), "", " ", "\0", "\ud800", "13 $(touch x)", "../x", "é",
    "x" * 5000, [], [[]], {}, {"a": {}}, ["movies", "movies"], [None], {"task": None}, "1e-5", "null", "${seeds}", "[", "{mask}",
    {"auto_map": "a.py"},
]  # fmt: skip
BYTES = [b"\0", b"\xff", b"\t", b"[", b"{", b'"', b"&a ", b"*a", b"<<: ", b"!!int ", b"\r", b": ", b"9" * 5000, b"[" * 3000, b"\\ud800", b"---\n"]  # fmt: skip
TASK = TaskSpec(name="mine", title="Mine", kind="test", labels=["bad", "good"])


def examine(check: Check, folder: Path, cases: int = CASES) -> None:
    """Raise whatever a check raises that is no refusal in clear lines."""

    @settings(
        max_examples=cases, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(randoms(use_true_random=False))
    def run(chance: random.Random) -> None:
        try:
            check(chance, folder)
        except GraftError as error:
            assert str(error).strip(), "refused without a word"

    run()


def torn(chance: random.Random, content: bytes) -> bytes:
    """Bytes cut, repeated, changed or put in between, at random places."""
    for _ in range(chance.randint(1, 3)):
        start, length = chance.randint(0, len(content)), chance.randint(0, 60)
        middle = chance.choice([b"", chance.choice(BYTES), content[start : start + length] * 2, chance.randbytes(3)])
        content = content[:start] + middle + content[start + length :]
    return content[: chance.randint(0, len(content))] if chance.random() < 0.1 else content


def disturb(chance: random.Random, values: Any) -> None:
    """Put something odd in the place of a value somewhere in a table, take it away, or give it another name."""
    key = chance.choice([*values] if isinstance(values, dict) else range(len(values)))
    if isinstance(values[key], dict | list) and values[key] and chance.random() < 0.8:
        disturb(chance, values[key])
    elif (what := chance.random()) < 0.7 or isinstance(values, list):
        values[key] = chance.choice(ODD)
    elif what < 0.85 and len(values) > 1:
        del values[key]
    else:
        values[chance.choice([f"{key}x", "auto_map", "num_hidden_layers"])] = values.pop(key)


# --- Settings and rows -----------------------------------------------------------------------------------------


def params(chance: random.Random, folder: Path) -> None:
    """Settings with odd values, names or sections, or a torn file."""
    files = {name: folder / params_file(name) for name in PIPELINES}
    for other, path in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((ROOT / params_file(other)).read_bytes())
    name = chance.choice([*files])
    path = files[name]
    if chance.random() < 0.5:
        path.write_bytes(torn(chance, path.read_bytes()))
    else:
        values = YAML(typ="safe").load(path)
        for _ in range(chance.randint(1, 4)):
            disturb(chance, values)
        path.write_text(json.dumps(values), encoding="utf-8")
    checked(read_files(dict.fromkeys(("", name)), folder), localizers=True)


def rows(chance: random.Random, folder: Path) -> None:
    """Rows of the user's with odd cells, or a torn file, as `fetch` reads them, makes a table of them and stores it."""
    ending, place = chance.choice(ENDINGS), folder / "mine"
    made = [{"sentence1": f"text {n}", "sentence2": None, "label": TASK.labels[n % 2]} for n in range(40)]
    for _ in range(chance.randint(0, 3)):
        row = chance.choice(made)
        row[chance.choice([*row, "label2"])] = chance.choice(ODD)
    content = as_text(made, ending).encode("utf-8", "surrogatepass")
    content = torn(chance, content) if chance.random() < 0.5 else content
    if ending.endswith(".gz"):
        packed = gzip.compress(content, mtime=0)
        content = torn(chance, packed) if chance.random() < 0.5 else packed
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / f"train{ending}").write_bytes(content)
    table = build_table(TASK, *load_local(TASK, folder))
    write_rows(folder / "table.jsonl", table.rows)
    assert read_rows(folder / "table.jsonl") == table.rows, "the table is not what was stored"


def as_text(made: list[dict[str, Any]], ending: str) -> str:
    if "jsonl" in ending:
        return "".join(json.dumps(row) + "\n" for row in made)
    text, names = io.StringIO(newline=""), ["sentence1", "sentence2", "label"]
    writer = csv.writer(text, delimiter="\t" if ending == ".tsv" else ",")
    writer.writerows([names, *([row[name] for name in names] for row in made)])
    return text.getvalue()


# --- Masks, patches, orders and predictions --------------------------------------------------------------------


def damaged(read: Callable[[Path], Any], write: Callable[[Path], None], chance: random.Random, folder: Path) -> None:
    """A file with bits or bytes that it was not written with: whatever they are, it has to be refused."""
    path, whole = folder / "file.safetensors", content_of(write)
    content = bytearray(whole)
    for place in {chance.randrange(len(whole)) for _ in range(chance.randint(1, 8))}:
        content[place] ^= 1 << chance.randrange(8)
    path.write_bytes(chance.choice([content, whole[: chance.randrange(len(whole))]]))
    read(path)
    raise AssertionError("was read as if it were whole")


def forged(read: Callable[[Path], Any], write: Callable[[Path], None], chance: random.Random, folder: Path) -> None:
    """A file with another value in its header, by somebody who knows how to seal it anew: the tensors stay the same."""
    path, whole = folder / "file.safetensors", content_of(write)
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    [(name, text)] = header["__metadata__"].items()
    about = json.loads(text)
    digest = about.pop("sha256")
    disturb(chance, about)
    header["__metadata__"][name] = json.dumps(about | {"sha256": digest})
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + whole[8 + size :])
    seal(path)
    found = read(path)
    if read is read_patch:
        assert {*found[1].config} <= {"pad_token_id", "id2label", "label2id"}, f"config {found[1].config} was taken"
    if read in (read_patch, read_mask):
        stored, original = found[0] if read is read_patch else found, load(whole)
        same = (torch.equal(original[f"values/{name}"], part) for name, part in stored.values.items())
        assert all(same), "other values were read"


@cache
def content_of(write: Callable[[Path], None]) -> bytes:
    with TemporaryDirectory() as folder:
        write(path := Path(folder) / "whole.safetensors")
        return path.read_bytes()


def make_mask(about: dict[str, Any]) -> StoredMask:
    generator = torch.Generator().manual_seed(0)
    region = Region({"layer.weight": (7, 5), "layer.bias": (11,)})
    mask = GraftMask.from_region_indices(region, torch.randperm(region.size, generator=generator)[:12])
    values = {name: torch.randn(len(indices), generator=generator) for name, indices in mask.indices.items()}
    return StoredMask(mask, values, {}, {"model": "pico", "task": "toy", "seed": 13} | about)


USE = {
    "version": VERSION, "auto_class": "AutoModelForMaskedLM", "labels": ["bad", "good"], "config": {"pad_token_id": 0},
    "base": "pico", "source": "local", "revision": None, "fingerprint": "0" * 64, "outside": {"embedding": [3, 4]},
    "task": "toy", "title": "Toy", "prompt": {"template": "{sentence1} {mask}", "verbalizer": {"bad": "a", "good": "b"}},
    "max_length": 64,
}  # fmt: skip
LOGITS = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
PREDICTED = Predictions(["bad", "good"], {"toy": np.arange(9, dtype=np.int32) % 2}, {"toy": {"grafted": LOGITS}})
FILES = {
    "patches": (read_patch, lambda path: write_mask(path, make_mask({KEY: USE}))),
    "masks": (read_mask, lambda path: write_mask(path, make_mask({}))),
    "headers of masks": (read_header, lambda path: write_mask(path, make_mask({}))),
    "predictions": (read_predictions, lambda path: write_predictions(path, PREDICTED)),
}


# --- Model folders of strangers --------------------------------------------------------------------------------

SETTINGS = ["config.json", "tokenizer_config.json", "tokenizer.json"]
KEYS = [
    "auto_map", "_attn_implementation", "attn_implementation", "quantization_config", "model_type", "num_hidden_layers", "hidden_size",
    "vocab_size", "num_attention_heads", "hidden_act", "dtype", "architectures", "pad_token_id", "tokenizer_class", "num_labels", "id2label",
    "transformers_weights", "max_position_embeddings", "mask_token", "pad_token", "model_max_length",
]  # fmt: skip
VALUES = [*ODD, "gpt2", "t5", "evil/kernel", {"AutoConfig": "evil.Config"}, {"bits": 4}, ["BertModel"], 7, 64]
SHARD, INDEX = "model-00001-of-00002.safetensors", "model.safetensors.index.json"
SHARDS = [
    "pytorch_model.bin",
    "../weights.safetensors",
    "/etc/passwd",
    "model-00002-of-00002.safetensors",
    "code.py",
    "",
    *ODD,
]


class Hostile:
    """Makes a file when it is read by pickle."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def model_folders(chance: random.Random, folder: Path) -> None:
    """A folder with up to three oddities, as `model` brings it into the project: none of its code runs."""
    given, taken, mark, downloads = (folder / name for name in ("given", "taken", "mark", "downloads"))
    for place in (given, taken, downloads):
        shutil.rmtree(place, ignore_errors=True)
    given.mkdir()
    for name, content in pico().items():
        (given / name).write_bytes(content)
    for _ in range(chance.randint(1, 3)):
        chance.choice([tear, set_key, name_shards, add_code])(chance, given, mark)
    chosen = model_settings(chance.choice(["prompt", "standard", "autoregressive"]))
    try:
        import_model(obtain("local", "given", None, given, downloads), chosen, taken)
        load_tokenizer(taken)
        load_model(taken, chosen.mode)
    finally:
        assert not mark.exists(), "code of the folder ran"


@cache
def pico() -> dict[str, bytes]:
    """Content of the files of a small model, by name."""
    with TemporaryDirectory() as folder:
        return {path.name: path.read_bytes() for path in save_bert(Path(folder) / "pico").iterdir()}


def tear(chance: random.Random, folder: Path, _mark: Path) -> None:
    path = folder / chance.choice([*SETTINGS, "model.safetensors"])
    if path.exists():
        path.write_bytes(torn(chance, path.read_bytes()))


def set_key(chance: random.Random, folder: Path, _mark: Path) -> None:
    path = folder / chance.choice(SETTINGS)
    try:
        values = json.loads(path.read_bytes())
        place = values if path.name != "tokenizer.json" or chance.random() < 0.2 else values["model"]
        place[chance.choice([*KEYS, *place])] = chance.choice(VALUES)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError):
        return  # it is torn already
    path.write_text(json.dumps(values), encoding="utf-8")


def name_shards(chance: random.Random, folder: Path, _mark: Path) -> None:
    """An index in place of the one file, which may name anything."""
    weights = folder / "model.safetensors"
    try:
        tensors = load_file(weights)
    except Exception:
        return  # it is torn or gone already
    save_file(tensors, folder / SHARD, metadata={"format": "pt"})
    weights.unlink()
    names = dict.fromkeys(tensors, SHARD) | {chance.choice([*tensors]): chance.choice(SHARDS)}
    index = {"metadata": {}, "weight_map": chance.choice([names, names, names, chance.choice(ODD)])}
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")


def add_code(chance: random.Random, folder: Path, mark: Path) -> None:
    """Something that must not be looked at, let alone run."""
    hostile, adapter = pickle.dumps(Hostile(mark)), {"peft_type": "LORA", "base_model_name_or_path": "evil/base"}
    files = {
        "pytorch_model.bin": hostile, "training_args.bin": hostile, "adapter_config.json": json.dumps(adapter).encode(),
        "evil.py": f"from pathlib import Path\nPath({str(mark)!r}).touch()\n".encode(),
    }  # fmt: skip
    name = chance.choice([*files])
    (folder / name).write_bytes(files[name])


# --- All of them -----------------------------------------------------------------------------------------------

CHECKS: dict[str, Check] = {"params files": params, "data files": rows, "model folders": model_folders}
CHECKS |= {f"{name}, damaged": partial(damaged, *pair) for name, pair in FILES.items()}
CHECKS |= {f"{name}, forged": partial(forged, *pair) for name, pair in FILES.items()}


@pytest.mark.parametrize("name", CHECKS)
def test_no_reader_breaks_on_damaged_input(name, tmp_path):
    examine(CHECKS[name], tmp_path, CASES // 3 if name == "model folders" else CASES)


def test_what_is_whole_is_read(tmp_path):
    for name, (read, write) in FILES.items():
        (tmp_path / name).write_bytes(content_of(write))
        assert read(tmp_path / name), "control"


def test_control_a_careless_reader_is_seen(tmp_path):
    with pytest.raises(AssertionError, match="was read as if it were whole"):
        examine(partial(damaged, Path.read_bytes, FILES["patches"][1]), tmp_path)
