"""The scores that the pipeline stored for the graft of a mask, if it did."""

from pathlib import Path
from typing import Any

from stages.lib import paths
from stages.lib.io import read_json
from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED

# The learned mask is the one that two stages of the main pipeline measure.
MASKS = paths.LEARNED.parent
SHOWN = (PRETRAINED, FINETUNED, GRAFTED)


def pipeline_scores(mask: Path, task: str) -> dict[str, dict[str, Any]]:
    """variant -> n, score, retained, agreement and so on, on the task's own test set; nothing if none are stored.

    A stage keeps its masks at masks/<stage>/<axes>/<seed>/<task> and their scores at metrics/<same>.
    """
    inside = _inside(mask)
    if inside is None or mask.stem != task:
        return {}
    stage, *axes, seed, _ = inside.parts
    if stage == paths.LEARNED.name:
        return _main(task, int(seed))
    record = paths.reading_record(stage, tuple(axes), task, int(seed))
    rows = read_json(record).get("rows", []) if record.is_file() else []
    return {row["variant"]: row for row in rows if row["test_set"] == task and row["variant"] in SHOWN}


def _inside(mask: Path) -> Path | None:
    try:
        inside = mask.absolute().relative_to(MASKS.absolute())
    except ValueError:
        return None
    return inside if len(inside.parts) > 2 and inside.parts[-2].isdecimal() else None


def _main(task: str, seed: int) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for stage in ("evaluate", "calibration"):
        file = paths.scores(stage, task, seed)
        stored = read_json(file)["scores"].get(task, {}) if file.is_file() else {}
        for variant in SHOWN:
            found[variant] = {**found.get(variant, {}), **stored.get(variant, {})}
    return {variant: values for variant, values in found.items() if "score" in values}
