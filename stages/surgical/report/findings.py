"""Which claims of Lodha et al. (2023) show here, with the figures behind each."""

import pandas as pd

from stages.lib.report.document import Claim, Verdict
from stages.lib.report.format import counted, percent, points
from stages.lib.report.stats import mean_of, paired
from stages.surgical.report import ranking
from stages.surgical.report.collecting import Surgical
from stages.surgical.report.tables import INDEX, against, plain, score_of

RIVALS = ("bottom", "random", "first", "middle", "last")


def claims(data: Surgical) -> list[Claim]:
    """The claims that the stages which ran can tell about; a difference shows where its whole 95 % interval does."""
    return [*_enough(data), *_best(data), *_steady(data), *_same_for_tasks(data), *_bridge(data)]


def _enough(data: Surgical) -> list[Claim]:
    """Few layers are as good as all."""
    kept, found, runs = data.settings.surgical.kept, [], data.surgery
    whole = score_of(runs[runs.selection == "all"])
    for size in ranking.sizes(data):
        # a share of a score that is 0 or below, as a correlation may be, says nothing
        shares = (score_of(runs[runs.selection == f"top_{size}"]) / whole[whole > 0]).dropna()
        if len(shares):
            value = mean_of(shares)
            low = [f"{task}-{seed} ({percent(share)} %)" for (task, seed), share in shares.items() if share < kept]
            text = f"Training {_layers(size)} keeps {percent(kept, 0)} % of the score of all layers"
            difference = against(data, f"top_{size}", "all")
            figure = f"{value.text()} %, {difference.words()}, n = {value.n} cells"
            figure += _among_learners(data, f"top_{size}", "all")
            found.append(Claim(text, Verdict.of(value.mean >= kept), figure, low))
    return found


def _best(data: Surgical) -> list[Claim]:
    """The score chooses better than its reverse, chance and place."""
    found = []
    for rival in RIVALS:
        for size in ranking.sizes(data, ("top", rival)):
            pair = f"top_{size}", f"{rival}_{size}"
            difference = against(data, *pair)
            text = f"Training {_layers(size)} is better than {rival}_{size}"
            found.append(Claim(text, difference.above_zero, difference.words() + _among_learners(data, *pair), []))
    return found


def _among_learners(data: Surgical, selection: str, other: str) -> str:
    """The same difference without the cells where training all layers is flagged; empty if there are none."""
    learners = data.learners()
    if learners is None or len(learners) == len(data.surgery[INDEX].drop_duplicates()):
        return ""
    value = against(data, selection, other, learners)
    return f"; in cells where all layers learn: {value.words()}"


def _steady(data: Surgical) -> list[Claim]:
    """The ranking stays the same in fine-tuning that does change the model."""
    frame = ranking.checkpoints(data)
    frame = frame[frame.step > 0].dropna(subset="spearman")
    if frame.empty:
        return []
    limit = data.settings.surgical.steady
    low = [
        f"{row.task}-{row.seed} at step {row.step} ({row.spearman:.2f})"
        for row in frame.itertuples()
        if row.spearman < limit
    ]
    last = frame[frame.step == frame.groupby("task")["step"].transform("max")]
    figure = (
        f"lowest {frame.spearman.min():.2f}, after the last step {plain(mean_of(last.spearman))}, "
        f"n = {counted(len(last), 'cell')}; the layers moved by {mean_of(last.moved).text()} % of their norm"
    )
    text = f"The ranking of layers keeps a Spearman correlation of {limit:g} with that before fine-tuning"
    return [Claim(text, Verdict.of(not low), figure, low)]


def _same_for_tasks(data: Surgical) -> list[Claim]:
    """The score tells one task from another: tasks agree less than seeds of a task do."""
    tasks, seeds = ranking.between(data, "seed", "task"), ranking.between(data, "task", "seed")
    if not tasks.n or not seeds.n:
        return []
    figure = (
        f"Spearman {plain(tasks)} between tasks (n = {tasks.n} pairs), {plain(seeds)} between seeds (n = {seeds.n})"
    )
    return [
        Claim(
            "The ranking depends on the task: tasks agree less than seeds of one task",
            Verdict.of(tasks.mean < seeds.mean),
            figure,
            [],
        )
    ]


def _bridge(data: Surgical) -> list[Claim]:
    """Layers with a high score hold more of the learned graft than chance."""
    found = []
    for size in ranking.sizes(data):
        rows = ranking.caught(data, size).set_index(["task", "seed"])
        if rows.empty:
            continue
        value = paired(rows.share, rows.chance)
        text = f"More of the learned graft than by chance is in {_layers(size)}"
        figure = f"{percent(rows.share.mean())} against {percent(rows.chance.mean())} %, {value.words()}"
        found.append(Claim(text, value.above_zero, figure, []))
    return found


def _layers(size: int) -> str:
    return "the layer with the highest score" if size == 1 else f"the {size} layers with the highest scores"


def flagged_line(data: Surgical) -> str:
    """One line on runs that learned nothing; empty without runs."""
    if data.surgery.empty:
        return ""
    margin = points(data.settings.surgical.margin).lstrip("+")
    return (
        f"{len(data.flagged())} of {len(data.surgery)} fine-tunings are less than {margin} points better than the most "
        f"frequent label (surgical.margin), n = {_tested(data.surgery)} test rows"
    )


def _tested(runs: pd.DataFrame) -> str:
    low, high = runs.n.min(), runs.n.max()
    return str(low) if low == high else f"{low} to {high}"
