"""Figures of curves: accuracy against sparsity, against density when pruned, by optimizer, over training steps."""

import pandas as pd
from matplotlib.figure import Figure

from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.lib.report.format import DAGGER, counted, small_percent
from stages.lib.report.line_styles import line_style, line_styles
from stages.study.report import choosing
from stages.study.report.choosing import BIAS, LEARNED, PRUNED
from stages.study.report.collecting import Study
from stages.study.report.curves import WHISKERS, Chart, Curve, curves_figure

SPARSITY = "region (% of graftable)"


def localizers_figure(study: Study) -> Figure | None:
    """Figure 2: score against the size of the region, for every localizer."""
    names = choosing.localizers(study)
    if not names:
        return None
    curves = [Curve(name, sized(choosing.sweep(study, name)), look) for name, look in line_styles(names).items()]
    chart = Chart(curves, "share", SPARSITY, score_axis(study), panels(study), levels(study))
    title = "Localizers by size (paper: the learned region comes close to the fine-tuned model at the smallest size)"
    return curves_figure(chart, title, details(study, "sweep"), WHISKERS)


def bias_figure(study: Study) -> Figure | None:
    """Figure 4: grafts of biases alone, and models pruned to a region, beside learned grafts."""
    pruned = study.rows("anchor")
    pruned = pruned[pruned.variant == PRUNED]
    sources = {
        "learned graft": sized(choosing.sweep(study, LEARNED)),
        "graft of biases": sized(choosing.sweep(study, BIAS)),
        "learned region, rest set to 0": sized(choosing.readout(study, "prune", LEARNED)),
        "most moved, rest set to 0": pruned.assign(share=pruned.sparsity, panel=pruned.task),
    }
    if all(rows.empty for name, rows in sources.items() if name != "learned graft"):
        return None
    numbered = zip(sources.items(), (0, 7, 5, 4), strict=True)
    curves = [Curve(name, rows, line_style(number)) for (name, rows), number in numbered if len(rows)]
    chart = Chart(curves, "share", SPARSITY, score_axis(study), panels(study), levels(study))
    title = "Biases and pruning (paper: neither carries the skill as the learned graft does)"
    return curves_figure(chart, title, details(study, "sweep"), WHISKERS)


def paradigm_figure(study: Study) -> Figure | None:
    """Figure 5: how small a graft may be for models fine-tuned in different ways."""
    frame = study.rows("paradigm")
    if frame.empty:
        return None
    names = [*frame.paradigm.unique()]
    curves = [
        Curve(name, _with_whole(frame[frame.paradigm == name]), look) for name, look in line_styles(names).items()
    ]
    shown = {task: choosing.named(study, task) for task in study.tasks if task in {*frame.task}}
    pretrained = levels(study).get(PRETRAINED)
    chart = Chart(
        curves, "share", SPARSITY, score_axis(study), shown, {} if pretrained is None else {PRETRAINED: pretrained}
    )
    title = "Optimizers (paper: small grafts keep less after AdamW than after SGD; an L1 penalty helps)"
    return curves_figure(chart, title, details(study, "paradigm"), f"At 100 %: the fine-tuned model itself. {WHISKERS}")


def trajectory_figure(study: Study) -> Figure | None:
    """Figure 15: a fixed region over the steps of fine-tuning."""
    frame = study.rows("trajectory")
    if frame.empty:
        return None
    frame = frame.assign(panel=frame.task)
    sizes = choosing.sparsities(frame[frame.variant == GRAFTED])
    curves = [Curve("checkpoint", frame[frame.variant == "checkpoint"], line_style(7) | {"linestyle": "-"})]
    for number, size in enumerate(sizes):
        rows = frame[(frame.variant == GRAFTED) & (frame.sparsity == size)]
        curves.append(Curve(f"graft of {small_percent(size)}", rows, line_style(number)))
    shown = {task: choosing.named(study, task) for task in study.tasks if task in {*frame.task}}
    chart = Chart(
        curves, "step", "step of fine-tuning", score_axis(study), shown, levels(study), logarithmic=False, scale=1.0
    )
    title = "Over training (paper: the graft follows the model and saturates before it does)"
    return curves_figure(chart, title, details(study, "trajectory"), WHISKERS)


def ood_sparsity_figure(study: Study) -> Figure | None:
    """Figure 7, first part: score on other test sets against the size of the region."""
    if study.rows("sweep", "ood").empty:
        return None
    names = choosing.localizers(study)
    curves = [
        Curve(name, paired_panel(sized(choosing.sweep(study, name, where="ood"))), look)
        for name, look in line_styles(names).items()
    ]
    across = {
        variant: paired_panel(rows)
        for variant in (FINETUNED, PRETRAINED)
        if len(rows := choosing.anchor(study, variant, "ood"))
    }
    shown = {f"{task} → {test}": f"{choosing.named(study, task)} → {test}" for task, test in choosing.pairs(study)}
    chart = Chart(curves, "share", SPARSITY, score_axis(study), shown, across)
    title = "Out of distribution (paper: small grafts match or surpass the fine-tuned model)"
    return curves_figure(chart, title, details(study, "sweep"), f"Trained task → test set. {WHISKERS}")


def sized(rows: pd.DataFrame) -> pd.DataFrame:
    """With the share of the graftable parameters that is really selected, averaged over the cells of a size."""
    share = (rows.selected / rows.graftable).fillna(rows.sparsity)
    return rows.assign(share=share.groupby(rows.sparsity).transform("mean").round(12), panel=rows.task)


def paired_panel(rows: pd.DataFrame) -> pd.DataFrame:
    """With the panel of a trained task and a test set."""
    return rows.assign(panel=rows.task + " → " + rows.test_set)


def panels(study: Study) -> dict[str, str]:
    """A panel for each task."""
    return {task: choosing.named(study, task) for task in study.tasks}


def levels(study: Study) -> dict[str, pd.DataFrame]:
    """The fine-tuned and the pretrained model, as far as the anchor stage ran."""
    found = {variant: choosing.anchor(study, variant) for variant in (FINETUNED, PRETRAINED)}
    return {variant: rows.assign(panel=rows.task) for variant, rows in found.items() if len(rows)}


def score_axis(study: Study) -> str:
    """What the scores are."""
    return f"accuracy, F1{DAGGER} (%)" if choosing.f1_tasks(study) else "accuracy (%)"


def details(study: Study, stage: str) -> str:
    """How many tasks, seeds and test rows a figure is about."""
    frame = study.rows(stage)
    rows = frame.groupby("task")["n"].max()
    n = f"{rows.min():,.0f}" + (f" to {rows.max():,.0f}" if rows.max() > rows.min() else "")
    return f"{counted(frame.task.nunique(), 'task')}, {counted(frame.seed.nunique(), 'seed')}, n = {n} test rows a task"


def _with_whole(rows: pd.DataFrame) -> pd.DataFrame:
    """Grafts, and the fine-tuned model as the graft of everything."""
    grafts, whole = rows[rows.variant == GRAFTED], rows[rows.variant == FINETUNED]
    both = pd.concat([grafts, whole.assign(sparsity=1.0)])
    return both.assign(share=both.sparsity, panel=both.task)
