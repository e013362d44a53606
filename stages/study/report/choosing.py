"""Which rows, sizes and localizers a table or figure of the study is about."""

from collections.abc import Iterable

import pandas as pd

from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.lib.report.format import DAGGER
from stages.study.report.collecting import Study

LEARNED, ATTRIBUTION, GROWN = "learned", "attribution", "grown"
MOVEMENT, FISH, RANDOM, BIAS = "movement", "fish", "random", "bias"
ORDER = (LEARNED, ATTRIBUTION, GROWN, "stitch", MOVEMENT, FISH, "magnitude", BIAS, RANDOM)
PRUNED = "pruned"
CELL = ["task", "seed"]
PAPER_SPARSITY = 0.0001


def localizers(study: Study) -> list[str]:
    """Localizers of the sweep, known ones first, in the order in which they are compared."""
    return ordered(study.frames["sweep"].localizer.unique())


def ordered(names: Iterable[str]) -> list[str]:
    """Known localizers in the order of ORDER, then the others as they come."""
    found = [*dict.fromkeys(names)]
    return [*(name for name in ORDER if name in found), *(name for name in found if name not in ORDER)]


def sparsities(frame: pd.DataFrame) -> list[float]:
    """Sizes that occur, smallest first."""
    return sorted(frame.sparsity.dropna().unique())


def common_sparsities(study: Study) -> list[float]:
    """Sizes that every localizer of the sweep has, smallest first."""
    sets = [{*rows.sparsity} for _, rows in study.frames["sweep"].groupby("localizer")]
    return sorted(set.intersection(*sets)) if sets else []


def nearest(sizes: list[float], wanted: float = PAPER_SPARSITY) -> float | None:
    """The size next to the wanted one, the smaller of two as near; None without sizes."""
    return min(sizes, key=lambda size: (abs(size - wanted), size)) if sizes else None


def sweep(study: Study, localizer: str, sparsity: float | None = None, where: str = "id") -> pd.DataFrame:
    """Grafted rows of a localizer, at one size or at all."""
    rows = study.rows("sweep", where)
    rows = rows[(rows.localizer == localizer) & (rows.variant == GRAFTED)]
    return rows if sparsity is None else rows[rows.sparsity == sparsity]


def anchor(study: Study, variant: str, where: str = "id") -> pd.DataFrame:
    """Rows of the pretrained or fine-tuned model."""
    rows = study.rows("anchor", where)
    return rows[rows.variant == variant]


def readout(study: Study, name: str, localizer: str, sparsity: float | None = None, where: str = "id") -> pd.DataFrame:
    """Rows of one readout of a localizer's region."""
    rows = study.rows("readout", where)
    rows = own(rows[(rows.readout == name) & (rows.localizer == localizer)])
    return rows if sparsity is None else rows[rows.sparsity == sparsity]


def peft(study: Study, method: str, where: str = "id") -> pd.DataFrame:
    """Rows of a parameter-efficient method."""
    rows = study.rows("peft", where)
    return own(rows[rows.method == method])


def own(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows about the model a stage made, without those it is compared with.

    A stage that calls its own model `finetuned` or `grafted` is understood too: these are left out only
    beside another.
    """
    for reference in ([PRETRAINED], [FINETUNED], [GRAFTED]):
        others = rows[~rows.variant.isin(reference)]
        rows = others if len(others) else rows
    return rows


def by_cell(rows: pd.DataFrame, measure: str = "score") -> pd.Series:
    """A measure of each cell (task, seed), averaged over further rows such as test sets."""
    return rows.groupby(CELL, sort=False)[measure].mean()


def pairs(study: Study) -> list[tuple[str, str]]:
    """(trained task, other test set) that any stage has rows about."""
    frames = [study.rows(stage, "ood") for stage in ("anchor", "sweep", "readout", "peft", "wise")]
    found = pd.concat([frame[["task", "test_set"]] for frame in frames]).drop_duplicates()
    return sorted(found.itertuples(index=False, name=None), key=lambda pair: study.tasks.index(pair[0]))


def f1_tasks(study: Study) -> set[str]:
    """Tasks whose score isn't accuracy."""
    rows = pd.concat([study.rows("anchor"), study.rows("sweep")])
    return {*rows.task[(rows.score - rows.accuracy).abs() > 1e-9]}


def named(study: Study, task: str) -> str:
    """A task's name, with a dagger if its score is F1."""
    return task + (DAGGER if task in f1_tasks(study) else "")
