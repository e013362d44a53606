"""What the commands know of a project that they run in: what its masks don't say themselves."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..data.tasks import TaskSpec
from ..errors import GraftError, ParamsError
from ..io import read_json
from ..metrics import variants
from ..settings import ModelParams
from ..yaml12 import load_yaml

SETTINGS = Path("params.yaml")
CARDS = Path("data/tables")
MASKS, METRICS = Path("masks"), Path("metrics")
MAIN = "learned"
# what a card compares
COMPARED = (variants.PRETRAINED, variants.FINETUNED, variants.GRAFTED)


def task_of(name: str) -> TaskSpec:
    """The definition of a task, as the project's stage `fetch` resolved it."""
    return TaskSpec.model_validate(read_json(CARDS / name / "card.json")["task"])


def max_length() -> int:
    """The longest input in tokens; raises GraftError outside of a project, ParamsError for one whose settings lack it."""
    if not SETTINGS.is_file():
        raise GraftError("takes settings from a project's params.yaml; run it there")
    try:
        return ModelParams.model_validate(load_yaml(SETTINGS, ParamsError)["model"]).max_length
    except (LookupError, TypeError, ValidationError):
        raise ParamsError(f"{SETTINGS}: has no valid section `model`") from None


def pipeline_scores(mask: Path, task: str) -> dict[str, dict[str, Any]]:
    """variant -> n, score, retained, agreement and so on, on the task's own test set; nothing if none are stored.

    The scores of masks/<stage>/... lie at metrics/<stage>/...; those of the learned mask two stages of the main pipeline measure.
    """
    masks = MASKS.absolute()
    if mask.stem != task or not mask.absolute().is_relative_to(masks):
        return {}
    inside = mask.absolute().relative_to(masks)
    if inside.parts[0] == MAIN:
        return _main_scores(task, inside.parent.name)
    record = (METRICS / inside).with_suffix(".json")
    rows = read_json(record).get("rows", []) if record.is_file() else []
    return {row["variant"]: row for row in rows if row["test_set"] == task and row["variant"] in COMPARED}


def _main_scores(task: str, seed: str) -> dict[str, dict[str, Any]]:
    """Scores of the learned mask, which two stages of the main pipeline measure."""
    files = [METRICS / stage / seed / f"{task}.json" for stage in ("evaluate", "calibration")]
    stored = [read_json(file)["scores"].get(task, {}) for file in files if file.is_file()]
    joined = {name: {key: value for part in stored for key, value in part.get(name, {}).items()} for name in COMPARED}
    return {variant: values for variant, values in joined.items() if "score" in values}
