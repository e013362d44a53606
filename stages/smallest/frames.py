"""The records of the searches as tidy frames."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from stages.lib.metrics.gain import add_gain, scores_of_ends
from stages.lib.metrics.variants import GRAFTED, SIGNS
from stages.lib.report.load import Cell, Records, Row, frame_of, grid, require_files
from stages.lib.report.stats import Estimate, estimate
from stages.smallest.experiment.code_length import certified_error, rows_for
from stages.smallest.settings import SmallestParams

CELL = ["task", "seed"]
# the certificate holds with a probability of 1 - DELTA
DELTA = 0.05
# of a patch: a 32-bit place and a 32-bit value for each parameter
PATCH_BITS = 64
SIZES = [
    "localizer", *CELL, "selected", "graftable", "model_parameters", "largest", "enough", "gradient_examples", "bits", "tensors", "dev",
]  # fmt: skip
SCORES = [
    "localizer", *CELL, "variant", "where", "n", "score", "accuracy", "ece", "agreement", "retained", "constant", "majority",
]  # fmt: skip
LOOKS = ["localizer", *CELL, "selected", "gain"]


@dataclass(frozen=True, eq=False)  # told apart as objects, so that what follows from one can be cached
class Smallest:
    """A row for each search (`sizes`), each measured model (`scores`) and each look at dev (`looks`); measures are fractions.

    `enough` is True where the size is one, False where the largest is none, and None where fine-tuning gained too little.
    """

    settings: SmallestParams
    sizes: pd.DataFrame
    scores: pd.DataFrame
    looks: pd.DataFrame
    least_gain: float

    @property
    def localizers(self) -> list[str]:
        """Those that searched, in the order of params.yaml."""
        return [*dict.fromkeys(self.sizes.localizer)]

    def of(self, localizer: str) -> pd.DataFrame:
        """Searches of a localizer that have an answer, be it that no size is enough; by cell."""
        rows = self.sizes[(self.sizes.localizer == localizer) & self.sizes.enough.notna()]
        return rows.set_index(CELL)

    def measure(self, localizer: str, variant: str, name: str, where: str = "test") -> pd.Series:
        """A measure of the grafts of a localizer that are enough on dev, by cell."""
        rows = self.scores
        rows = rows[(rows.localizer == localizer) & (rows.variant == variant) & (rows["where"] == where)]
        found = self.of(localizer).enough.eq(True)
        values = rows.set_index(CELL)[name]
        return values[values.index.isin(found[found].index)].astype(float)

    def size(self, localizer: str) -> Estimate:
        """log10 of the size, over the cells with an answer; where no size is enough, of the largest that was tried."""
        return log_size(self.of(localizer))

    def at_least(self, localizer: str) -> bool:
        """True if some cell has no size that is enough, so that the mean is a lower bound."""
        return is_bound(self.of(localizer))

    @cached_property
    def certificates(self) -> pd.DataFrame:
        """localizer, task, seed, n, error, bits, certified, baseline, needed: of the grafts of signs on their training rows.

        `certified` is the test error that the code promises, `baseline` that of the most frequent label on training rows, and
        `needed` at how many rows the promise would be below it.
        """
        rows = self.scores[(self.scores.variant == SIGNS) & (self.scores["where"] == "train")]
        search = ["localizer", *CELL]
        rows = rows.merge(self.sizes[self.sizes.enough.eq(True)][[*search, "bits"]], on=search)
        found = rows[[*search, "n", "bits"]].assign(error=1 - rows.accuracy, baseline=1 - rows.majority)
        cells = [*found.itertuples()]
        found["certified"] = [certified_error(cell.error, int(cell.n), cell.bits, DELTA) for cell in cells]
        found["needed"] = [rows_for(cell.error, cell.baseline, cell.bits, DELTA) for cell in cells]
        return found

    @property
    def plots(self) -> dict[str, pd.DataFrame]:
        """The data behind the figures."""
        own = {"scores": self.scores, "looks": self.looks, "certificates": self.certificates}
        return {"sizes": self.sizes.drop(columns="dev"), **own}


def log_size(searches: pd.DataFrame) -> Estimate:
    """log10 of the sizes of searches, by cell."""
    return estimate(np.log10(searches.selected.astype(float)))


def is_bound(searches: pd.DataFrame) -> bool:
    """True if in some of these searches not even the largest size is enough, so that their mean is a lower bound."""
    return bool(searches.enough.eq(False).any())


def collect(seeds: list[int], settings: SmallestParams, least_gain: float) -> Smallest:
    """Read the cells that the settings name; raises DataError for missing records."""
    cells = grid(localizer=settings.localizers, seed=seeds, task=settings.tasks)
    path = "metrics/search/{localizer}/{seed}/{task}.json"
    records = Records("smallest", "search", path, cells, needs=("stage", "rows"))
    require_files("make smallest", records)
    sizes = frame_of(records.rows(lambda cell, record: [{**record, **cell}]), SIZES).astype({"enough": object})
    scores, by = frame_of(records.rows(_scores), SCORES), ["localizer", *CELL, "where"]
    scores = add_gain(scores, scores_of_ends(scores, by), least_gain)
    looks = frame_of(records.rows(lambda cell, record: [{**look, **cell} for look in record["asked"]]), LOOKS)
    return Smallest(settings, sizes, scores[scores.variant.isin([GRAFTED, SIGNS])], looks, least_gain)


def _scores(cell: Cell, record: Row) -> Iterator[Row]:
    for row in record["rows"]:
        yield {**row, **cell, "where": "train" if row["test_set"].endswith(":train") else "test"}
