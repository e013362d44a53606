"""Measured generalization beside what the paper's appendix D guarantees."""

from dataclasses import dataclass

import pandas as pd

from stages.lib.metrics.variants import FINETUNED
from stages.lib.report.document import Row, Table
from stages.lib.report.format import bounds, percent, points, small_percent
from stages.lib.report.stats import mean_of
from stages.study.bound import (
    Bound,
    ModelClass,
    epsilon_2,
    examples_for,
    grafted_bound,
    log_all_regions,
    measured_bias,
    retrained_bound,
)
from stages.study.report import choosing
from stages.study.report.choosing import LEARNED
from stages.study.report.collecting import Study
from stages.study.report.region_tables import region_size

DELTA = 0.05
# A difference of two shares is never larger, so a bound of 1 says nothing.
NOTHING = 1.0
GRAFT, RETRAIN = "graft", "retrain"


@dataclass(frozen=True)
class Line:
    """One task and model: mean errors over seeds, and the bound with one region (Theta_n = 1) or with any of them.

    `needed`: examples at which the variance term of each of the two falls to 1.
    """

    task: str
    model: str
    cells: int
    train: float
    test: float
    selected: int
    examples: int
    fixed: Bound
    free: Bound
    needed: tuple[int, int]


def bound_lines(study: Study) -> list[Line]:
    """The graft and the retrained region of every task whose two readouts were measured on training rows too."""
    size = region_size(study)
    lines = []
    for task in study.tasks if size is not None else []:
        errors = {name: _errors(study, name, size, task) for name in (GRAFT, RETRAIN)}
        if all(len(found) for found in errors.values()):
            lines += _task_lines(study, task, errors)
    return lines


def bound_table(study: Study) -> Table | None:
    """Train and test errors, their gap, and theorems D.2 and D.4 term by term."""
    lines = bound_lines(study)
    header = ["task", "model", "n", "train error", "test error", "gap", "s", "examples", "variance", "eps_2", "bias"]
    header += ["bound", "bound, any region", "examples needed"]
    title = f"Generalization bound, at a sparsity of {small_percent(region_size(study) or 0)}"
    return Table(title, header, [_row(line) for line in lines], _notes(lines)) if lines else None


def _errors(study: Study, readout: str, size: float, task: str) -> pd.DataFrame:
    """Train and test error, s, training rows and graftable parameters of each cell that has both errors."""
    test, train = (choosing.readout(study, readout, LEARNED, size, where) for where in ("id", "train"))
    test, train = (rows[rows.task == task] for rows in (test, train))
    columns = {
        "train": 1 - choosing.by_cell(train, "accuracy"),
        "test": 1 - choosing.by_cell(test, "accuracy"),
        **{name: choosing.by_cell(train, name) for name in ("selected", "n", "graftable")},
    }
    return pd.DataFrame(columns).dropna()


def _task_lines(study: Study, task: str, errors: dict[str, pd.DataFrame]) -> list[Line]:
    whole = choosing.anchor(study, FINETUNED)
    best = 1 - mean_of(whole[whole.task == task].accuracy).mean if len(whole[whole.task == task]) else None
    bias = None if best is None else measured_bias(float(errors[RETRAIN].test.mean()), best)
    short = epsilon_2(float(errors[GRAFT].train.mean()), float(errors[RETRAIN].train.mean()))
    return [_line(task, model, found, short, bias) for model, found in errors.items()]


def _line(task: str, model: str, errors: pd.DataFrame, short: float, bias: float | None) -> Line:
    # the largest mask and the smallest training set of the seeds, so that the bound covers each of them
    selected, examples = int(errors.selected.max()), int(errors.n.min())
    one = ModelClass(selected)
    many = ModelClass(selected, log_regions=log_all_regions(selected, int(errors.graftable.max())))
    if model == GRAFT:
        fixed, free = (grafted_bound(models, examples, DELTA, short, bias=bias) for models in (one, many))
    else:
        fixed, free = (retrained_bound(models, examples, DELTA, bias=bias) for models in (one, many))
    delta = DELTA / 2 if model == GRAFT else DELTA
    needed = examples_for(one, NOTHING, delta), examples_for(many, NOTHING, delta)
    means = float(errors.train.mean()), float(errors.test.mean())
    return Line(task, model, len(errors), *means, selected, examples, fixed, free, needed)


def _row(line: Line) -> Row:
    measured = [percent(line.train), percent(line.test), points(line.test - line.train)]
    terms = [f"{line.fixed.variance:.2f}", percent(line.fixed.suboptimality), percent(line.fixed.bias)]
    totals = [f"{line.fixed.total:.2f}", f"{line.free.total:.2f}", f"{line.needed[0]:,}"]
    sizes = [f"{line.selected:,}", f"{line.examples:,}"]
    return Row("ours", [line.task, line.model, str(line.cells), *measured, *sizes, *terms, *totals])


def _notes(lines: list[Line]) -> list[str]:
    return [
        "errors: share of wrong predictions in %, mean over n seeds; gap: test - train in percentage points; eps_2, bias in %",
        "bound on test error - that of the best model, both within 0..1 (appendix D): variance + eps_2 + bias, eps_1 = 0; "
        f"delta = {DELTA}, q = 2^32 values a parameter, log Theta_n = 0, or s log d for any region of the d graftable parameters",
        "s: parameters of the region; those of a new head, which is trained too, are not counted",
        "bias is measured (retrained - fine-tuned test error, at least 0), not the best models' own, which nobody knows",
        _verdict(lines),
    ]


def _verdict(lines: list[Line]) -> str:
    empty = [line for line in lines if line.fixed.vacuous]
    if not empty:
        return "no bound for a region given beforehand is vacuous (1 or more)"
    fixed, free = (bounds([f"{count:,}" for count in sorted(line.needed[at] for line in empty)]) for at in (0, 1))
    return (
        f"vacuous (1 or more, which any error fulfils) in {len(empty)} of {len(lines)} lines: the variance term alone "
        f"takes {fixed} training examples to fall to 1, for any region {free}"
    )
