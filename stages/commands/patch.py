"""patch: a mask of the pipeline as a patch, with the task, settings and scores that it doesn't hold.

python -m stages.commands.patch masks/learned/13/movies.safetensors --to movies
"""

import argparse
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from skill_grafting.grafting.fingerprint import fingerprint
from skill_grafting.grafting.mask import StoredMask
from skill_grafting.grafting.mask_reading import read_mask, require_model
from skill_grafting.grafting.region import Region
from skill_grafting.models.anatomy import FILE, read_anatomy
from skill_grafting.models.loading import class_name, load_config, load_tokenizer, read_tensors
from skill_grafting.patches.card import AS_PATCH, require_free, write_folder
from skill_grafting.patches.patch_file import PatchContent, describe
from skill_grafting.support.command import guarded
from skill_grafting.support.errors import ModelError, ParamsError, one_line
from skill_grafting.support.fields import HEAD
from skill_grafting.support.io import read_json
from stages.text.scores.gain import with_gain
from stages.text.scores.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.workflow.core import paths

# masks/<stage>/... are scored in metrics/<stage>/...; the learned ones of the main pipeline by two stages of other names
SCORED_BY = {"learned": ("evaluate", "calibration")}
# what a card compares
COMPARED = (PRETRAINED, FINETUNED, GRAFTED)


def main() -> None:
    """Parse the command line and write the patch."""
    parser = argparse.ArgumentParser(
        prog="python -m stages.commands.patch", description="A mask of the pipeline as a patch."
    )
    parser.add_argument("mask", type=Path)
    parser.add_argument("--to", type=Path, required=True, help="folder to write, which must not exist yet")
    asked = parser.parse_args()
    target, stored = require_free(asked.to), read_mask(asked.mask)
    patch = as_patch(asked.mask, stored, paths.PRETRAINED)
    patch.scores = pipeline_scores(asked.mask, stored.about.get("task") or "")
    print(write_folder(target, patch, AS_PATCH))


def as_patch(path: Path, stored: StoredMask, base: Path) -> PatchContent:
    """The patch of a mask of the project, on its pretrained model; MaskError if it was made for another one."""
    if not (base / FILE).is_file():
        raise ModelError(f"{base}: a mask is for a model as the stage `model` writes it, and this has no {FILE}")
    spec, about = read_anatomy(base), stored.about
    tensors = read_tensors(base, spec.pretrained)
    region = Region({name: tuple(spec.shapes[name]) for name in stored.mask.region.shapes if name in tensors})
    require_model(path, about, region, fingerprint(region, tensors), spec.name)
    facts, padding = project_facts(about.get("task") or "", spec.mode), load_config(base).get_text_config().pad_token_id
    origin = {"name": spec.name, "source": spec.source, "revision": spec.revision}
    origin["model_class"] = class_name(load_config(base).model_type, spec.mode)
    weights = [name for name in spec.groups if name not in {*spec.names([HEAD])}]
    # by which fine-tuning began, or its tokenizer's
    settings = {"pad_token_id": load_tokenizer(base).pad_token_id if padding is None else padding, "problem_type": None}
    return PatchContent(stored, describe(stored, tensors, weights, origin | facts, settings))


def project_facts(name: str, mode: str) -> dict[str, Any]:
    """How a task's labels are read: its definition, as the project's stage `fetch` resolved it, and the longest input in tokens."""
    task = read_json(Path("data/tables") / name / "card.json")["task"]
    prompt = None if mode == "standard" else task["prompt" if mode == "prompt" else "causal_prompt"]
    try:
        length = int(YAML(typ="safe").load(paths.PARAMS)["model"]["max_length"])
    except Exception as error:  # of a file that isn't there, is no YAML or lacks it
        problem = f"takes model.max_length from a project's {paths.PARAMS}; run it there"
        raise ParamsError(f"{problem} ({one_line(error)})") from None
    return {"title": task["title"], "labels": task["labels"], "prompt": prompt, "max_length": length}


def pipeline_scores(mask: Path, task: str) -> dict[str, dict[str, Any]]:
    """variant -> n, score, retained, agreement and so on, on the task's own test set; nothing if none are stored."""
    masks, mask = Path("masks").absolute(), mask.absolute()
    if mask.stem != task or not mask.is_relative_to(masks):
        return {}
    stage, *parts = mask.relative_to(masks).with_suffix(".json").parts
    scores: dict[str, dict[str, Any]] = {variant: {} for variant in COMPARED}
    for file in (Path("metrics", name, *parts) for name in SCORED_BY.get(stage, [stage])):
        record = read_json(file) if file.is_file() else {}
        rows = {row["variant"]: row for row in record.get("rows", []) if row["test_set"] == task}
        for variant, row in {**rows, **record.get("scores", {}).get(task, {})}.items():
            scores.get(variant, {}).update(row)
    return with_gain({variant: row for variant, row in scores.items() if "score" in row})


if __name__ == "__main__":
    guarded("patch", main)
