"""What the commands read from the project that they run in: tasks, settings and scores, which its masks don't hold."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..data.tasks import TaskSpec
from ..errors import GraftError, ParamsError
from ..io import read_json
from ..metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from ..settings import ModelParams
from ..yaml12 import load_yaml

SETTINGS = Path("params.yaml")
# masks/<stage>/... are scored in metrics/<stage>/...; the learned ones of the main pipeline by two stages of other names
SCORED_BY = {"learned": ("evaluate", "calibration")}
# what a card compares
COMPARED = (PRETRAINED, FINETUNED, GRAFTED)


def project_task(name: str) -> TaskSpec:
    """The definition of a task, as the project's stage `fetch` resolved it."""
    return TaskSpec.model_validate(read_json(Path("data/tables") / name / "card.json")["task"])


def max_length() -> int:
    """The longest input in tokens; raises GraftError outside of a project, ParamsError for one whose settings lack it."""
    if not SETTINGS.is_file():
        raise GraftError("takes settings from a project's params.yaml; run it there")
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
    return {variant: row for variant, row in scores.items() if "score" in row}
