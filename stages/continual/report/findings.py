"""What the sequences show of the paper's claims about continual learning, with the figures behind it."""

import pandas as pd

from stages.continual.report.collecting import Sequences
from stages.lib.report.document import Claim, Verdict
from stages.lib.report.format import counted, percent, points
from stages.lib.report.stats import Difference, paired

NAIVE, GRAFTING = "naive", "grafting"
# What a new task may lose for the sake of earlier ones: the paper's "minimally affecting", in its table at most 2.3 points.
MARGIN = 0.03
TASK = ["order", "seed", "task"]


def claims(found: Sequences) -> list[Claim]:
    """A claim about a difference holds where its whole 95 % interval says so; it is over cells, (order, seed, task) each."""
    checks = (_unchanged, _naive_forgets, _retained, _costs, _average, _memory)
    return [claim for check in checks for claim in check(found)]


def _unchanged(found: Sequences) -> list[Claim]:
    """Section 5.2: forget-free, by what was predicted and not by averages."""
    later = found.steps()
    later = later[later.step > later.place]
    rows = {method: later[later.method == method] for method in found.methods}
    if GRAFTING not in rows:
        return []
    same = rows[GRAFTING].unchanged.astype(bool)
    others = [
        f"{method} in {int(values.unchanged.astype(bool).sum())} of {len(values)}"
        for method, values in rows.items()
        if method != GRAFTING
    ]
    figure = f"the same logits in {int(same.sum())} of {counted(len(same), 'later test')}"
    figure += f"; {', '.join(others)}" if others else ""
    return [Claim("Grafting predicts earlier tasks as before, bit for bit", Verdict.of(bool(same.all())), figure, [])]


def _naive_forgets(found: Sequences) -> list[Claim]:
    """Table 4: QNLI falls by 20 points."""
    text = "Naive fine-tuning loses accuracy on earlier tasks"
    return _claim(text, paired(_own(found, NAIVE, earlier=True), _last(found, NAIVE, earlier=True)))


def _retained(found: Sequences) -> list[Claim]:
    """Table 4, all columns but the last."""
    text = "At the end grafting is more accurate on earlier tasks than naive fine-tuning"
    return _claim(text, paired(_last(found, GRAFTING, earlier=True), _last(found, NAIVE, earlier=True)))


def _costs(found: Sequences) -> list[Claim]:
    """Table 4: "minimally affecting the performance of newer tasks"."""
    lost = paired(_own(found, NAIVE), _own(found, GRAFTING))
    if not lost.n:
        return []
    text = f"Grafting costs a task that was just learned less than {points(MARGIN, 0).lstrip('+')} points"
    return [Claim(text, lost.below(MARGIN), f"naive - grafting: {lost.words()}", [])]


def _average(found: Sequences) -> list[Claim]:
    """All columns of table 4."""
    text = "At the end grafting is more accurate than naive fine-tuning on all tasks together"
    return _claim(text, average_difference(found))


def average_difference(found: Sequences) -> Difference:
    """Average accuracy at the end, of grafting - naive fine-tuning, over orders and seeds."""
    average = {
        method: found.measure[found.measure.method == method].set_index(["order", "seed"]).average
        for method in (NAIVE, GRAFTING)
    }
    return paired(average[GRAFTING], average[NAIVE])


def _memory(found: Sequences) -> list[Claim]:
    """Section 5.2: memory grows with the regions and not with the models."""
    rows = found.memory[found.memory.method == GRAFTING]
    if rows.empty:
        return []
    last = rows.loc[rows.groupby(["order", "seed"]).place.idxmax()]
    share = float((last["skill"] / last.place / last.model).max())
    figure = f"at most {percent(share, 2)} % of a model a task"
    return [Claim("Grafting keeps less than a tenth of a model for each task", Verdict.of(share < 0.1), figure, [])]


def _claim(text: str, difference: Difference) -> list[Claim]:
    return [Claim(text, difference.above_zero, difference.words(), [])] if difference.n else []


def _own(found: Sequences, method: str, earlier: bool = False) -> pd.Series:
    """Accuracy right after a task was learned, of all tasks or of all but the last of each sequence."""
    rows = _of(found, method, earlier)
    return rows[rows.step == rows.place].set_index(TASK).accuracy


def _last(found: Sequences, method: str, earlier: bool = False) -> pd.Series:
    """Accuracy after the last step."""
    rows = _of(found, method, earlier)
    return rows[rows.step == rows.length].set_index(TASK).accuracy


def _of(found: Sequences, method: str, earlier: bool) -> pd.DataFrame:
    rows = found.steps()
    rows = rows[rows.method == method]
    return rows[rows.place < rows.length] if earlier else rows
