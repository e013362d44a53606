"""Score against calibration error: what a graft reaches, and what simpler ways to a calibrated model do."""

from typing import Any

from .classification import reliability
from .predictions import Predictions
from .temperature import temperature
from .variants import FINETUNED, GRAFTED, MOVEMENT_GRAFTED, PRETRAINED, TEMPERED, WISE_FT, WISE_GRAFT

GRAFT_TEMPERED = "grafted_tempered"


def frontier(
    tests: Predictions, dev: Predictions, task: str, record: dict[str, Any], bins: int
) -> list[dict[str, Any]]:
    """One row for each model on a task's own test rows: method, alpha, temperature, score, ece, n.

    `method` is a variant; `wise_graft` has a row for each weight alpha of the graft, pretrained (0) and grafted (1) among them.
    `record` is what evaluate stored of the cell.  alpha and temperature are None where there is none.
    """
    scores, labels = record["scores"][task], tests.labels[task]

    def row(method: str, variant: str, alpha: float | None = None, degrees: float | None = None) -> dict[str, Any]:
        logits = tests.logits[task][variant] / (degrees if method == GRAFT_TEMPERED else 1)
        ece = reliability(logits, labels, bins).ece
        fitted = {"alpha": alpha, "temperature": degrees}
        return {"method": method, **fitted, "score": scores[variant]["score"], "ece": ece, "n": len(labels)}

    prefix = f"{WISE_GRAFT}_"
    between = {float(name.removeprefix(prefix)): name for name in tests.logits[task] if name.startswith(prefix)} | {
        0.0: PRETRAINED,
        1.0: GRAFTED,
    }
    return [
        *(row(name, name) for name in (PRETRAINED, FINETUNED, MOVEMENT_GRAFTED, GRAFTED)),
        row(TEMPERED, TEMPERED, degrees=record["temperature"]),
        row(GRAFT_TEMPERED, GRAFTED, degrees=temperature(dev.logits[task][GRAFTED], dev.labels[task])),
        row(WISE_FT, WISE_FT, alpha=record["wise_alpha"]),
        *(row(WISE_GRAFT, between[alpha], alpha=alpha) for alpha in sorted(between)),
    ]
