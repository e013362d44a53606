"""Score against calibration error: what a graft reaches, and what simpler ways to a calibrated model do."""

from typing import Any

from .classification import reliability
from .predictions import Predictions
from .scores import Row
from .temperature import temperature
from .tokens import count_rows
from .variants import GRAFT_TEMPERED, GRAFTED, PRETRAINED, REFITS, TEMPERED, VARIANTS, WISE_FT, WISE_GRAFT


def frontier(tests: Predictions, dev: Predictions, task: str, record: dict[str, Any], bins: int) -> list[Row]:
    """One row for each model on a task's own test rows: method, alpha, temperature, score, ece, n.

    `method` is a variant; `wise_graft` has a row for each weight alpha of the graft, pretrained (0) and grafted (1) among them.
    `record` is what controls and evaluate stored of the cell, of completions also the temperature of the
    graft.  alpha and temperature are None where there is none.
    """
    scores, labels, told = record["scores"][task], tests.labels[task], tests.logits[task]
    hot = record.get("graft_temperature") or temperature(dev.logits[task][GRAFTED], dev.labels[task])
    if GRAFT_TEMPERED not in told:  # no logits are there of completions, of which evaluate predicts it
        told = {**told, GRAFT_TEMPERED: told[GRAFTED] / hot}

    def row(method: str, variant: str, alpha: float | None = None, degrees: float | None = None) -> Row:
        ece = reliability(told[method if method == GRAFT_TEMPERED else variant], labels, bins).ece
        fitted = {"alpha": alpha, "temperature": degrees}
        return {"method": method, **fitted, "score": scores[variant]["score"], "ece": ece, "n": count_rows(labels)}

    prefix = f"{WISE_GRAFT}_"
    between = {float(name.removeprefix(prefix)): name for name in tests.logits[task] if name.startswith(prefix)}
    between |= {0.0: PRETRAINED, 1.0: GRAFTED}
    return [
        *(row(name, name) for name in VARIANTS),
        row(TEMPERED, TEMPERED, degrees=record["temperature"]),
        row(GRAFT_TEMPERED, GRAFTED, degrees=hot),
        *(row(name, name) for name in REFITS if name in told),
        row(WISE_FT, WISE_FT, alpha=record["wise_alpha"]),
        *(row(WISE_GRAFT, between[alpha], alpha=alpha) for alpha in sorted(between)),
    ]
