"""The records of the searches as tidy frames, and the columns that report.yaml names."""

from collections.abc import Iterable, Iterator
from itertools import permutations

import numpy as np
import pandas as pd

from skill_grafting.metrics.gain import add_gain, scores_of_ends
from skill_grafting.metrics.variants import GRAFTED, SIGNS
from skill_grafting.settings import Params
from skill_grafting.words import percent, words
from stages.smallest.experiment.code_length import certified_error, rows_for
from stages.workflow.records import Cell, Records, Row, exact, frame_of, grid, require_files, run_frame
from stages.workflow.report.stats import Estimate, estimate

CELL = ["task", "seed"]
SEARCH = ["localizer", *CELL]
# the certificate holds with a probability of 1 - DELTA
DELTA = 0.05
# a patch has a 32-bit index and a 32-bit value for each parameter
PATCH_BITS = 64
SIZES = [
    *SEARCH,
    "selected",
    "graftable",
    "model_parameters",
    "largest",
    "enough",
    "gradient_examples",
    "bits",
    "tensors",
]
SCORES = [*SEARCH, "variant", "where", "n", "score", "accuracy", "ece", "agreement", "retained", "constant", "majority"]
LOOKS = [*SEARCH, "selected", "gain"]


def collect(params: Params) -> dict[str, pd.DataFrame]:
    """Read the cells that the settings name; raises DataError for missing records.

    `enough` is True if the size is enough, False if not even the largest is, None if fine-tuning gained too little.
    """
    settings, least = params.smallest, params.summary.least_gain
    cells = grid(localizer=settings.localizers, seed=params.seeds, task=settings.tasks)
    records = Records(
        "smallest", "search", "metrics/search/{localizer}/{seed}/{task}.json", cells, needs=("stage", "rows")
    )
    require_files("make smallest", records)
    sizes = frame_of(records.rows(lambda cell, record: [{**record, **cell}]), SIZES).astype({"enough": object})
    scores = frame_of(records.rows(_scores), SCORES)
    scores = add_gain(scores, scores_of_ends(scores, [*SEARCH, "where"]), least)
    scores = scores[scores.variant.isin([GRAFTED, SIGNS])]
    limits = {name: getattr(settings, name) for name in ("gain", "largest", "precision")}
    return {
        "sizes": sizes,
        "scores": scores,
        "looks": frame_of(records.rows(lambda cell, record: [{**look, **cell} for look in record["asked"]]), LOOKS),
        "certificates": certificates(scores, sizes),
        "run": run_frame(params).assign(tasks=len(settings.tasks), least_gain=least, **limits),
    }


def _scores(cell: Cell, record: Row) -> Iterator[Row]:
    for row in record["rows"]:
        yield {**row, **cell, "where": "train" if row["test_set"].endswith(":train") else "test"}


def certificates(scores: pd.DataFrame, sizes: pd.DataFrame) -> pd.DataFrame:
    """The certified test error of grafts of signs: a row for each search that found a size.

    `certified` is the test error that the code promises, `baseline` that of the most frequent label on training rows, and
    `needed` at how many rows the promise would be below it.
    """
    rows = scores[(scores.variant == SIGNS) & (scores["where"] == "train")]
    rows = rows.merge(sizes[sizes.enough.eq(True)][[*SEARCH, "bits"]], on=SEARCH)
    found = rows[[*SEARCH, "n", "bits"]].assign(error=1 - rows.accuracy, baseline=1 - rows.majority)
    cells = [*found.itertuples()]
    return found.assign(
        certified=[certified_error(cell.error, int(cell.n), cell.bits, DELTA) for cell in cells],
        needed=[rows_for(cell.error, cell.baseline, cell.bits, DELTA) for cell in cells],
    )


# --- Derived columns ------------------------------------------------------------------------------------------------


def derive(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The frames with every quantity that report.yaml names as a column."""
    [run] = frames["run"].to_dict("records")
    tasks, searches = frames["sizes"].task.unique(), answered(frames["sizes"])
    measured = frames["scores"][frames["scores"]["where"] == "test"]
    measured = measured.assign(score=exact(measured.score, measured.n)).merge(
        searches[searches.enough][SEARCH], on=SEARCH
    )
    grafted = measured[measured.variant == GRAFTED].set_index(SEARCH).score.rename("grafted")
    measured = measured.assign(less_grafted=measured.score - measured.join(grafted, on=SEARCH).grafted)
    summary = by_localizer(searches)
    return frames | {
        "searches": searches,
        "measured": measured,
        "by_localizer": summary,
        "by_task": by_task(searches, tasks),
        "ratios": ratios(searches),
        "signs": _signs(measured),
        "looks": frames["looks"].assign(
            size=2.0 ** np.log2(frames["looks"].selected).round(), asked=run["gain"],
        ),
        "facts": _facts(frames["sizes"], summary, run["least_gain"]),
    }  # fmt: skip


def answered(sizes: pd.DataFrame) -> pd.DataFrame:
    """Searches with an answer, including that no size is enough."""
    found = sizes[sizes.enough.notna()]
    enough = found.enough.astype(bool)
    return found.assign(
        enough=enough,
        found=enough.astype(int),
        searched=1,
        log=np.log10(found.selected),
        bits_each=found.bits / found.selected,
    )


def _size(searches: pd.DataFrame) -> Estimate:
    """log10 of the size, by cell; where no size is enough, of the largest that was tried."""
    return estimate(searches.set_index(CELL).log)


def _size_text(searches: pd.DataFrame, size: float) -> str:
    """A size from its log10; a lower bound if in some of the searches not even the largest is enough: "at least 1,204"."""
    return "at least " * (not searches.enough.all()) + f"{10**size:,.0f}"


def by_localizer(searches: pd.DataFrame) -> pd.DataFrame:
    """A row for each localizer: the geometric mean of its sizes over tasks with the interval, and its share of the region."""
    rows = []
    for name, own in searches.groupby("localizer", sort=False):
        size = _size(own)
        interval = "" if size.error is None else f"{10**size.low:,.0f} to {10**size.high:,.0f}"
        mean = 10**size.mean
        rows.append({
            "localizer": name, "size_text": _size_text(own, size.mean), "parameters": float(round(mean)), "interval": interval,
            "share": mean / own.graftable.mean(), "smaller": PATCH_BITS / own.bits_each.mean(),
        })  # fmt: skip
    return pd.DataFrame(rows, columns=["localizer", "size_text", "parameters", "interval", "share", "smaller"])


def by_task(searches: pd.DataFrame, tasks: Iterable[str]) -> pd.DataFrame:
    """A row for each task and localizer: the geometric mean of its sizes over seeds."""
    groups = [(task, searches[searches.task == task].groupby("localizer", sort=False)) for task in tasks]
    rows = [(task, name, _size_text(own, own.log.mean())) for task, parts in groups for name, own in parts]
    return pd.DataFrame(rows, columns=["task", "localizer", "size_text"])


def ratios(searches: pd.DataFrame) -> pd.DataFrame:
    """log10 of how many times as many parameters a second localizer takes as a first, of every pair and each common cell.

    `hidden` gives a reason why nothing follows: the smaller size is only a lower bound in some cells.
    """
    own = {name: rows.set_index(CELL) for name, rows in searches.groupby("localizer", sort=False)}
    parts = []
    for first, second in permutations(own, 2):
        ratio = (own[second].log - own[first].log).dropna().rename("ratio")
        smaller = first if estimate(ratio).mean is not None and estimate(ratio).mean > 0 else second
        hidden = "" if own[smaller].enough.all() else f"no size was enough in some cells of {smaller}"
        parts.append(ratio.reset_index().assign(pair=f"{first}, {second}", hidden=hidden))
    return pd.concat(parts, ignore_index=True) if parts else frame_of([], [*CELL, "ratio", "pair", "hidden"])


def _signs(measured: pd.DataFrame) -> pd.DataFrame:
    """Share of the score of a graft that it keeps with signs for values."""
    scores = measured.pivot_table(index=SEARCH, columns="variant", values="score", sort=False)
    scores = scores.reindex(columns=[GRAFTED, SIGNS])
    return (scores[SIGNS] / scores[GRAFTED]).rename("kept").reset_index()


def _facts(sizes: pd.DataFrame, summary: pd.DataFrame, least: float) -> pd.DataFrame:
    """Values that the report names: all sizes as text, the smallest first, and the number of searches without a gain."""
    missing, ordered = int(sizes.enough.isna().sum()), summary.sort_values("parameters")
    sizes_text = ", ".join(f"{words(row.localizer)} {row.size_text}" for row in ordered.itertuples())
    gains = f"without {missing} of {len(sizes)} cells, in which fine-tuning gained less than {percent(least, 0)} points"
    return pd.DataFrame([{"sizes_text": sizes_text, "missing": gains if missing else ""}])
