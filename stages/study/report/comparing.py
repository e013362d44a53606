"""Localizers against each other on the same cells, and what readouts and training rows add."""

from itertools import combinations

import pandas as pd

from stages.lib.metrics.variants import FINETUNED, PRETRAINED
from stages.lib.report.document import Row, Table
from stages.lib.report.format import points, small_percent
from stages.lib.report.stats import Difference, mean_of, paired
from stages.study.report import choosing
from stages.study.report.collecting import Study
from stages.study.report.region_tables import VALUES


def compared(study: Study, sparsity: float, measure: str = "score") -> dict[tuple[str, str], Difference]:
    """Every two localizers: first - second, paired by cell, at this sparsity."""
    values = {
        name: choosing.by_cell(choosing.sweep(study, name, sparsity), measure) for name in choosing.localizers(study)
    }
    return {pair: paired(*(values[name] for name in pair)) for pair in combinations(values, 2)}


def localizer_table(study: Study) -> Table | None:
    """Score, calibration error and agreement of every localizer at the smallest sparsity that all have."""
    sizes = choosing.common_sparsities(study)
    if not sizes:
        return None
    rows = []
    for name in choosing.localizers(study):
        frame = choosing.sweep(study, name, sizes[0])
        values = [mean_of(choosing.by_cell(frame, measure)) for measure in ("score", "retained", "ece", "agreement")]
        rows.append(Row("ours", [name, str(values[0].n), *(value.text() for value in values)]))
    for variant in (PRETRAINED, FINETUNED):
        frame = choosing.anchor(study, variant)
        values = [mean_of(choosing.by_cell(frame, measure)) for measure in ("score", "retained", "ece", "agreement")]
        if values[0].n:
            rows.append(Row("average", [variant, str(values[0].n), *(value.text() for value in values)]))
    title = f"Localizers at a sparsity of {small_percent(sizes[0])}, over all tasks and seeds"
    return Table(title, ["localizer", "n", "score", "retained", "ECE", "agreement"], rows, [VALUES])


def order_table(study: Study) -> Table | None:
    """Paired differences of score between localizers, with 95 % intervals, at the smallest common sparsity."""
    sizes = choosing.common_sparsities(study)
    found = compared(study, sizes[0]) if sizes else {}
    rows = [
        Row("ours", [f"{first} - {second}", str(value.n), points(value.mean), points(value.sd), *_interval(value)])
        for (first, second), value in found.items()
        if value.n
    ]
    title = "Localizers compared pair by pair: difference of score in percentage points"
    header = ["pair", "n", "mean", "sd", "95 % from", "95 % to", "higher in"]
    note = "n: cells that both have; t-interval for the mean of the differences of single cells, which takes cells as independent"
    return Table(title, header, rows, [f"sparsity {small_percent(sizes[0])}", note]) if rows else None


def readout_kinds_table(study: Study) -> Table | None:
    """Every readout of every region: retrain, reset, prune, as far as they ran."""
    frame = study.rows("readout")
    rows = []
    for (readout, localizer, sparsity), _ in frame.groupby(["readout", "localizer", "sparsity"], sort=False):
        chosen = choosing.readout(study, readout, localizer, sparsity)
        values = [mean_of(choosing.by_cell(chosen, measure)) for measure in ("score", "retained", "ece")]
        rows.append(Row("ours", [f"{readout} {localizer}", small_percent(sparsity), str(values[0].n)]))
        rows[-1].cells.extend(value.text() for value in values)
    notes = [VALUES, "retrain: train only the region; reset: set it back to pretrained; prune: set all else to 0"]
    header = ["readout", "sparsity", "n", "score", "retained", "ECE"]
    return Table("Readouts of the regions, over all tasks and seeds", header, rows, notes) if rows else None


def gaps(study: Study) -> dict[str, pd.Series]:
    """Accuracy on training rows less that on test rows, by cell; for what ran with training rows."""
    sources = {
        PRETRAINED: lambda where: choosing.anchor(study, PRETRAINED, where),
        FINETUNED: lambda where: choosing.anchor(study, FINETUNED, where),
        "graft": lambda where: choosing.readout(study, "graft", choosing.LEARNED, None, where),
        "retrain": lambda where: choosing.readout(study, "retrain", choosing.LEARNED, None, where),
    }
    found = {
        name: choosing.by_cell(rows("train"), "accuracy") - choosing.by_cell(rows("id"), "accuracy")
        for name, rows in sources.items()
    }
    return {name: gap.dropna() for name, gap in found.items() if gap.notna().any()}


def gap_table(study: Study) -> Table | None:
    """The generalization gap (section 4.3 of the paper)."""
    rows = []
    for name, gap in gaps(study).items():
        value = mean_of(gap)
        rows.append(Row("ours", [name, str(value.n), points(value.mean), points(value.sd)]))
    notes = ["accuracy on training rows less accuracy on test rows, in percentage points", VALUES]
    return Table("Generalization gap", ["model", "n", "mean", "sd"], rows, notes) if rows else None


def _interval(value: Difference) -> list[str]:
    return [points(value.low), points(value.high), f"{value.positive} of {value.n}"]
