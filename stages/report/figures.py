"""The five figures of the summary, and what each is to show."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from stages.lib.metrics.variants import FINETUNED, GRAFTED
from stages.lib.report.format import DAGGER, bounds, counted, name_of, percent, small_percent
from stages.lib.report.plot_data import pooled_bars, pooled_bins
from stages.lib.report.style import figure, save, styled, wrapped
from stages.report.bars import Bars, bars_figure
from stages.report.cells import Cells
from stages.report.panels import FEWEST_ROWS, confidence_figure, reliability_figure

WHISKERS = "Bars: mean over seeds; whiskers: standard deviation over seeds; dots: single seeds."
SINGLE = "Bars: the one seed; so there are no whiskers."
SIZE = "The movement graft has the size of the learned one."


def write_figures(cells: Cells, summary: dict[str, Any], folder: Path) -> None:
    """Write accuracy.png, calibration.png, reliability.png, confidence.png and ood.png into `folder`."""
    drawings = {
        "accuracy": accuracy,
        "calibration": calibration,
        "reliability": reliability,
        "confidence": confidence,
        "ood": ood,
    }
    for name, draw in drawings.items():
        with styled():
            save(draw(cells, summary), folder / f"{name}.png")


def accuracy(cells: Cells, summary: dict[str, Any]) -> Figure:
    """Score of every variant on each task's own test set."""
    axis = _score_axis(cells, [*cells.tasks])
    bars = Bars(_grouped(cells.scores, cells.scores.task), _task_labels(cells, summary), "score", axis, 100)
    title = "Score (paper: the graft comes close to the fine-tuned model)"
    return bars_figure(bars, title, _details(cells, summary), _bar_caption(cells, [*cells.tasks]))


def calibration(cells: Cells, summary: dict[str, Any]) -> Figure:
    """Calibration error of every variant on each task's own test set."""
    bars = Bars(
        _grouped(cells.scores, cells.scores.task), _task_labels(cells, summary), "ece", "ECE (%), lower is better"
    )
    title = "Calibration error (paper: the graft's is below the fine-tuned model's)"
    return bars_figure(bars, title, _details(cells, summary), _bar_caption(cells, [*cells.tasks]))


def ood(cells: Cells, summary: dict[str, Any]) -> Figure:
    """Score of every variant on test sets of other data sets, or a note that there are none."""
    if not cells.leaks:
        return _nothing("Out of distribution: no OOD sets configured", "Name some under ood.sets in params.yaml.")
    trained = [task for task, _ in cells.leaks]
    labels = {_pair(task, test): _pair_label(cells, summary, task, test) for task, test in cells.leaks}
    bars = Bars(
        _grouped(cells.ood, cells.ood.task + " -> " + cells.ood.test_set),
        labels,
        "score",
        _score_axis(cells, trained),
        100,
    )
    title = "Out of distribution (paper: the graft at least matches the fine-tuned model)"
    return bars_figure(
        bars, title, _details(cells, summary), f"Trained task → test set. {_bar_caption(cells, trained)}"
    )


def reliability(cells: Cells, summary: dict[str, Any]) -> Figure:
    """Accuracy in each bin of confidence, for each task."""
    titles = {task: f"{_panel_title(cells, summary, task)}\nECE {_ece(summary, task)} %" for task in cells.tasks}
    caption = (
        "ECE: finetuned → grafted, mean over seeds. Below each diagram: share of test rows in each bin of confidence, "
        f"all seeds together. Markers grow with it; bins of fewer than {FEWEST_ROWS} rows are not drawn."
    )
    title = "Reliability (paper: the graft is closer to the diagonal than the fine-tuned model)"
    bins = int(cells.reliability.bins.iloc[0])
    return reliability_figure(pooled_bins(cells.reliability), bins, titles, title, _details(cells, summary), caption)


def confidence(cells: Cells, summary: dict[str, Any]) -> Figure:
    """How sure the models are of their predictions, for each task (figure 6 of the paper)."""
    titles = {task: _panel_title(cells, summary, task) for task in cells.tasks}
    title = "Confidence (paper: the fine-tuned model is sure of nearly everything, the graft less often)"
    caption = "Top probability: the probability of the predicted label. All seeds together."
    return confidence_figure(pooled_bars(cells.confidence), titles, title, _details(cells, summary), caption)


def _nothing(title: str, remedy: str) -> Figure:
    drawn = figure(1.5, title, "", "")
    panel = drawn.subplots()
    panel.set_axis_off()
    panel.text(0.5, 0.5, f"no OOD sets configured\n{remedy}", ha="center", va="center", transform=panel.transAxes)
    return drawn


def _grouped(frame: pd.DataFrame, groups: pd.Series) -> pd.DataFrame:
    return frame.assign(group=groups)


def _details(cells: Cells, summary: dict[str, Any]) -> str:
    sparsities = [small_percent(share) for share in sorted(mask["sparsity"] for mask in summary["mask"].values())]
    return f"{counted(len(cells.tasks), 'task')}, {counted(len(cells.seeds), 'seed')}, graft of {bounds(sparsities)} of the graftable parameters"


def _bar_caption(cells: Cells, tasks: list[str]) -> str:
    dagger = f" {DAGGER}\u00a0F1, the others accuracy." if _any_f1(cells, tasks) else ""
    return f"{WHISKERS if len(cells.seeds) > 1 else SINGLE} {SIZE} n:\u00a0test\u00a0rows.{dagger}"


def _score_axis(cells: Cells, tasks: list[str]) -> str:
    return f"accuracy or F1{DAGGER} (%)" if _any_f1(cells, tasks) else "accuracy (%)"


def _any_f1(cells: Cells, tasks: list[str]) -> bool:
    return any(cells.tasks[task].metric == "f1" for task in tasks)


def _task_labels(cells: Cells, summary: dict[str, Any]) -> dict[str, str]:
    return {
        name: f"{wrapped(name_of(task))}\nn = {summary['task'][name][GRAFTED]['n']:,}"
        for name, task in cells.tasks.items()
    }


def _panel_title(cells: Cells, summary: dict[str, Any], task: str) -> str:
    return f"{wrapped(name_of(cells.tasks[task]), 18)}, n = {summary['task'][task][GRAFTED]['n']:,}"


def _ece(summary: dict[str, Any], task: str) -> str:
    return " → ".join(percent(summary["task"][task][variant]["ece_mean"]) for variant in (FINETUNED, GRAFTED))


def _pair(task: str, test_set: str) -> str:
    return f"{task} -> {test_set}"


def _pair_label(cells: Cells, summary: dict[str, Any], task: str, test_set: str) -> str:
    n = summary["ood"][task][test_set][GRAFTED]["n"]
    return f"{wrapped(name_of(cells.tasks[task]))}\n→ {wrapped(test_set, 10)}\nn = {n:,}"
