"""Model folders of strangers: odd settings, torn files, pickles and code beside them; they are refused, or read without running any of it."""

import json
import pickle
import random
import resource
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.torch import load_file, save_file

from stages.lib.models.importing import import_model
from stages.lib.models.loading import load_model, load_tokenizer
from stages.lib.models.sources import obtain
from tests.chaos.campaign import Check
from tests.chaos.inputs import ODD, torn
from tests.pico import model_settings, save_bert

SETTINGS = ["config.json", "tokenizer_config.json", "tokenizer.json"]
KEYS = [
    "auto_map", "_attn_implementation", "attn_implementation", "quantization_config", "model_type", "num_hidden_layers", "hidden_size",
    "vocab_size", "num_attention_heads", "hidden_act", "dtype", "architectures", "pad_token_id", "tokenizer_class", "num_labels", "id2label",
    "transformers_weights", "max_position_embeddings", "mask_token", "pad_token", "model_max_length",
]  # fmt: skip
VALUES = [*ODD, "gpt2", "t5", "evil/kernel", {"AutoConfig": "evil.Config"}, {"bits": 4}, ["BertModel"], 7, 64]
SHARDS = ["pytorch_model.bin", "../weights.safetensors", "/etc/passwd", "model-00002-of-00002.safetensors", "code.py", ""]  # fmt: skip
MEMORY = 16 * 2**30


class Hostile:
    """Makes a file when it is read by pickle."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def model_folders(chance: random.Random, folder: Path) -> None:
    """A folder with up to three oddities, as `model` brings it into the project."""
    _limit_memory()
    given, taken, mark = folder / "given", folder / "taken", folder / "mark"
    for path in (given, taken, folder / "downloads"):
        shutil.rmtree(path, ignore_errors=True)
    for path in (given, folder / "downloads"):
        path.mkdir()
    for name, content in _pico().items():
        (given / name).write_bytes(content)
    for _ in range(chance.randint(1, 3)):
        chance.choice([_tear, _set, _shard, _add])(chance, given, mark)
    settings = model_settings(chance.choice(["prompt", "standard", "autoregressive"]))
    try:
        import_model(obtain("local", "given", None, given, folder / "downloads"), settings, taken)
        load_tokenizer(taken)
        load_model(taken, settings.mode)
    finally:
        assert not mark.exists(), "code of the folder ran"


CHECKS: dict[str, Check] = {"model folders": model_folders}


@cache
def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


@cache
def _pico() -> dict[str, bytes]:
    """Content of the files of a small model, by name."""
    with TemporaryDirectory(prefix="chaos") as folder:
        return {path.name: path.read_bytes() for path in save_bert(Path(folder) / "pico").iterdir()}


def _tear(chance: random.Random, folder: Path, _mark: Path) -> None:
    path = folder / chance.choice([*SETTINGS, "model.safetensors"])
    if path.exists():
        path.write_bytes(torn(chance, path.read_bytes()))


def _set(chance: random.Random, folder: Path, _mark: Path) -> None:
    path = folder / chance.choice(SETTINGS)
    try:
        values = json.loads(path.read_bytes())
        place = values if path.name != "tokenizer.json" or chance.random() < 0.2 else values["model"]
        place[chance.choice([*KEYS, *place])] = chance.choice(VALUES)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError):
        return  # it is torn already
    path.write_text(json.dumps(values), encoding="utf-8")


def _shard(chance: random.Random, folder: Path, _mark: Path) -> None:
    """An index in place of the one file, which may name anything."""
    weights = folder / "model.safetensors"
    try:
        tensors = load_file(weights)
    except Exception:
        return  # it is torn or gone already
    save_file(tensors, folder / "model-00001-of-00002.safetensors", metadata={"format": "pt"})
    weights.unlink()
    names = dict.fromkeys(tensors, "model-00001-of-00002.safetensors")
    names[chance.choice([*names])] = chance.choice([*SHARDS, *ODD])
    index = {"metadata": {}, "weight_map": chance.choice([names, names, names, chance.choice(ODD)])}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _add(chance: random.Random, folder: Path, mark: Path) -> None:
    """Something that must not be looked at, let alone run."""
    hostile = pickle.dumps(Hostile(mark))
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\n".encode()
    adapter = json.dumps({"peft_type": "LORA", "base_model_name_or_path": "evil/base"}).encode()
    files = {"pytorch_model.bin": hostile, "training_args.bin": hostile, "evil.py": code}
    name, content = chance.choice([*files.items(), ("adapter_config.json", adapter)])
    (folder / name).write_bytes(content)
