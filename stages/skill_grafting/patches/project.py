"""export: a mask of the project that the command runs in, with the task, settings and scores that it doesn't hold, or a patch."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..data.tasks import TaskSpec
from ..errors import ModelError, ParamsError
from ..grafting.mask_file import require_model
from ..grafting.region import Region
from ..io import read_json, require_free
from ..metrics.gain import with_gain
from ..metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from ..models.anatomy import FILE, read_anatomy
from ..models.folders import find_checkpoint
from ..models.loading import load_tokenizer, read_tensors
from ..settings import ModelParams
from ..yaml12 import load_yaml
from .adapter import write_adapter
from .card import AS_PATCH, write_folder
from .live import load_base
from .patch_file import GraftFile, make_patch, read_graft

SETTINGS = Path("params.yaml")
# masks/<stage>/... are scored in metrics/<stage>/...; the learned ones of the main pipeline by two stages of other names
SCORED_BY = {"learned": ("evaluate", "calibration")}
# what a card compares
COMPARED = (PRETRAINED, FINETUNED, GRAFTED)


def export(mask: Path, form: str, base: str, to: Path, leave_out: bool) -> str:
    """Write the graft of a mask file or patch to a new folder, as a patch or an adapter of peft; gives one line about it.

    Raises MaskError if the mask is damaged, was made for another model than `base` or doesn't fit the form, and StorageError if
    something is at `to`.
    """
    target, graft = require_free(to), read_graft(mask)
    patch = graft if graft.use else _as_patch(graft, Path(base))

    scores = pipeline_scores(patch.path, patch.use.task)
    if form == AS_PATCH:
        return write_folder(target, patch, form, scores)
    pretrained = load_base(find_checkpoint(base, tokenizer=False)[0], patch)
    return write_folder(target, patch, form, scores, lambda folder: write_adapter(folder, patch, pretrained, leave_out))


def _as_patch(graft: GraftFile, base: Path) -> GraftFile:
    """The patch of a mask of the project, on its pretrained model."""
    if not (base / FILE).is_file():
        raise ModelError(f"{base}: a mask is for a model as the stage `model` writes it, and this has no {FILE}")
    spec, about = read_anatomy(base), graft.stored.about
    tensors = read_tensors(base, spec.pretrained)
    region = Region({name: tuple(spec.shapes[name]) for name in graft.region.shapes if name in tensors})
    require_model(graft.path, about, region, region.fingerprint(tensors), spec.name)
    task = project_task(about.get("task") or "")
    return make_patch(graft, task, spec, tensors, max_length(), load_tokenizer(base).pad_token_id)


def project_task(name: str) -> TaskSpec:
    """The definition of a task, as the project's stage `fetch` resolved it."""
    return TaskSpec.model_validate(read_json(Path("data/tables") / name / "card.json")["task"])


def max_length() -> int:
    """The longest input in tokens; raises ParamsError outside of a project, or for one whose settings lack it."""
    if not SETTINGS.is_file():
        raise ParamsError("takes settings from a project's params.yaml; run it there")
    try:
        return ModelParams.model_validate(load_yaml(SETTINGS, ParamsError)["model"]).max_length
    except (LookupError, TypeError, ValidationError):
        raise ParamsError(f"{SETTINGS}: has no valid section `model`") from None


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
