"""patch: a mask of the pipeline as a patch, with the task, settings and scores that it doesn't hold.

python -m stages.commands.patch masks/learned/13/movies.safetensors --to movies
"""

import argparse
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from skill_grafting.grafting.fingerprint import fingerprint
from skill_grafting.grafting.mask_files import StoredMask, read_mask, require_model
from skill_grafting.grafting.region import Region
from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.models.loading import class_name, load_config, load_tokenizer, read_tensors
from skill_grafting.patches.card import AS_PATCH, write_folder
from skill_grafting.patches.making import described
from skill_grafting.patches.patch_file import PatchContent
from skill_grafting.support.command import guarded
from skill_grafting.support.errors import MaskError, ParamsError, plain_problem
from skill_grafting.support.fields import HEAD, Positive, Section
from skill_grafting.support.io import read_json
from skill_grafting.support.writing import require_free
from stages.text.scores.gain import with_gain
from stages.text.scores.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.text.tasks.prompts import Prompt
from stages.text.tasks.tasks import TaskSpec
from stages.text.tasks.yaml12 import load_yaml
from stages.workflow.stage import paths

# masks/<stage>/... are scored in metrics/<stage>/...; the learned ones of the main pipeline by two stages of other names
SCORED_BY = {"learned": ("evaluate", "calibration")}


class Notes(Section):
    """What the pipeline says in a patch about its use: how labels are read off texts, of at most how many tokens, and its scores."""

    prompt: Prompt | None = None
    max_length: Positive | None = None
    scores: dict[str, dict[str, Any]] = Field({})

    @classmethod
    def of(cls, patch: PatchContent) -> "Notes":
        """Those of a patch, which may have others, too; raises MaskError for some that are none of the pipeline's."""
        try:
            return cls.model_validate(
                {name: patch.use.notes[name] for name in cls.model_fields if name in patch.use.notes}
            )
        except ValidationError as error:
            raise MaskError(f"{patch!r}: {plain_problem(error.errors()[0], 'notes', cls)}") from None


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and write the patch."""
    about = "A mask of the pipeline as a patch."
    parser = argparse.ArgumentParser(prog="python -m stages.commands.patch", description=about)
    parser.add_argument("mask", type=Path)
    parser.add_argument("--to", type=Path, required=True, help="folder to write, which must not exist yet")
    asked = parser.parse_args(argv)
    target = require_free(asked.to)
    print(write_folder(target, as_patch(asked.mask, read_mask(asked.mask)), AS_PATCH))


def as_patch(file: Path, stored: StoredMask) -> PatchContent:
    """The patch of a mask of the project, on its pretrained model; MaskError if it was made for another one."""
    base, about = paths.PRETRAINED, stored.about
    spec, config = read_anatomy(base), load_config(base)
    tensors = read_tensors(base, spec.pretrained)
    region = Region({name: tuple(spec.shapes[name]) for name in stored.mask.region.shapes if name in tensors})
    require_model(file, about, region, fingerprint(region, tensors), spec.name)
    task = TaskSpec.model_validate(read_json(paths.card(about.get("task") or ""))["task"])
    facts = {
        "name": spec.name,
        "source": spec.source,
        "revision": spec.revision,
        "model_class": class_name(config.model_type, spec.mode),
        "title": task.title,
        "labels": task.labels if spec.mode == "standard" else [],
        "notes": notes_of(task, spec.mode, file).model_dump(exclude_defaults=True),
        "generation": {},
        "beside": {},
    }
    # by which fine-tuning began, or its tokenizer's
    padding = config.get_text_config().pad_token_id
    settings = {"pad_token_id": load_tokenizer(base).pad_token_id if padding is None else padding, "problem_type": None}
    weights = [name for name in spec.groups if name not in {*spec.names([HEAD])}]
    return described(stored, tensors, weights, settings, facts)


def notes_of(task: TaskSpec, mode: str, mask: Path) -> Notes:
    """How this mode reads the labels of a task, with the words in the order of the labels, and how the mask's graft scored."""
    prompt = task.prompt_for(mode)
    if prompt:
        words = {label: prompt.verbalizer[label] for label in task.labels}
        prompt = prompt.model_copy(update={"verbalizer": words})
    try:
        length = load_yaml(paths.PARAMS, ParamsError)["model"]["max_length"]
    except (KeyError, TypeError):
        raise ParamsError(f"{paths.PARAMS}: model.max_length is missing, which says how long texts may be") from None
    return Notes(prompt=prompt, max_length=length, scores=scores_of(mask, task.name))


def scores_of(mask: Path, task: str) -> dict[str, dict[str, Any]]:
    """variant -> n, score, retained, agreement and so on, on the task's own test set; nothing if none are stored."""
    masks, mask = paths.MASKS.absolute(), mask.absolute()
    if mask.stem != task or not mask.is_relative_to(masks):
        return {}
    stage, *parts = mask.relative_to(masks).with_suffix(".json").parts
    scores: dict[str, dict[str, Any]] = {variant: {} for variant in (PRETRAINED, FINETUNED, GRAFTED)}
    for file in (paths.METRICS.joinpath(name, *parts) for name in SCORED_BY.get(stage, [stage])):
        record = read_json(file) if file.is_file() else {}
        rows = {row["variant"]: row for row in record.get("rows", []) if row["test_set"] == task}
        for variant, row in {**rows, **record.get("scores", {}).get(task, {})}.items():
            scores.get(variant, {}).update(row)
    return with_gain({variant: row for variant, row in scores.items() if "score" in row})


if __name__ == "__main__":
    guarded("patch", main)
