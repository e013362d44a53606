"""summary: the report of the main pipeline, as tables, figures and claims.

Measures are fractions 0..1, undefined ones NaN.  `scores` is about a task's own test set and `ood` about other test sets.
`reliability` (bins of confidence from 0) and `confidence` (bars between low and high) are of the own test set, all seeds together.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from skill_grafting.calibration import calibration_floor
from skill_grafting.support.formatting import percent, small_percent
from skill_grafting.support.io import read_json, read_rows
from stages.text.models.encoding import cut_share
from stages.text.scores.scores import cross_entropy, drawn_scores
from stages.text.scores.variants import (
    CONTROLS,
    FINETUNED,
    GRAFTED,
    LABEL_WORDS,
    MOVEMENT_GRAFTED,
    PRETRAINED,
    TEMPERED,
    VARIANTS,
    WISE_FT,
    WISE_GRAFT,
)
from stages.workflow.cells.scoring import read_cell
from stages.workflow.cells.stored import read_task
from stages.workflow.records import (
    Records,
    Row,
    add_gain,
    frame_of,
    grid,
    label_kinds,
    left_out,
    mask_header,
    require_files,
    run_frame,
    scores_of_ends,
    search_in_words,
    search_of,
    shifts,
    shifts_in_words,
)
from stages.workflow.report.formats import counts
from stages.workflow.report.publish import publish
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage
from stages.workflow.stage.sections import Settings
from stages.workflow.tokens import stored_tokenizer

SCORE_COLUMNS = ("score", "accuracy", "f1", "ece", "agreement", "retained", "gain")
KEYS = ["task", "test_set", "seed", "variant"]
CELL = ["task", "seed"]
# columns in the files of evaluate and ood, and in those of calibration
SCORED = ["n", "score", "accuracy", "f1", "agreement", "retained", "constant"]
CALIBRATED = ["ece", "bin_count", "bin_confidence", "bin_accuracy", "histogram"]
# of the own test set: the calibration error that a perfectly calibrated model would measure, and the log loss, in nats
FLOOR, LOSS = "floor", "loss"
# of the pretrained and the fine-tuned model alone
ON_TRAIN = "train_accuracy"
# of the loss on all training rows while a mask was learned
SEARCH = ["loss_start", "loss_end"]
MASK_COLUMNS = [
    *CELL, "localizer", "selected", "graftable", "model_parameters", "head_parameters", *SEARCH, "steps", "candidates",
]  # fmt: skip
STUDY = "the study asks the same of each size of learned grafts that it has, on its own test rows and as one family (study.md)"
# columns of the scores that others are measured from
BASELINES = {PRETRAINED: "baseline", LABEL_WORDS: "words"}
# the pairs whose calibration errors are compared, by the model beside the graft
BESIDE = {FINETUNED: (FINETUNED, GRAFTED), TEMPERED: (GRAFTED, TEMPERED), WISE_FT: (WISE_FT, GRAFTED)}
# as in the paper's tables
SHORT = {
    PRETRAINED: "pre", LABEL_WORDS: "pre/B", FINETUNED: "FT", WISE_FT: "WiSE", MOVEMENT_GRAFTED: "move", GRAFTED: "graft", TEMPERED: "FT/T",
}  # fmt: skip
MARKED, MARKS = {"f1": "F1", "mcc": "Matthews correlation"}, {"f1": "†", "mcc": "‡"}
# the paper's table for each kind of model, and its number of shots that other runs are compared with
TABLES, TABLE_2, OUT_OF_DISTRIBUTION, USUAL_SHOTS = {"autoregressive": "Table 9"}, "Table 2", "Table 3", 64
# the accuracy of fewer rows than this is hardly more than chance; a confidence above this is a sure prediction
FEWEST_ROWS, SURE = 10, 0.9


# --- From the records ----------------------------------------------------------------------------------------------


def collect(params: Settings) -> dict[str, pd.DataFrame]:
    """Read the files of every (task, seed); raises DataError for one that is missing or incomplete."""
    tasks, cells = params.tasks, grid(task=params.tasks, seed=params.seeds)
    files = "metrics/{}/{{seed}}/{{task}}.json".format
    evaluated = Records("", "evaluate", files("evaluate"), cells, "{task}-{seed}")
    calibrated, tested = (Records("", stage, files(stage), cells) for stage in ("calibration", "ood"))
    masks = Records("", "mask", "masks/learned/{seed}/{task}.safetensors", cells, "{task}-{seed}")
    referred = Records("", "reference", files("reference"), cells)
    require_files("dvc repro", referred, evaluated, calibrated, tested, masks)
    others = {task: params.ood.sets.get(task, []) for task in tasks}
    scored = [_variants(evaluated, {task: [task] for task in tasks}, SCORED), _variants(tested, others, SCORED)]
    calibration = _variants(calibrated, {task: [task, *others[task]] for task in tasks}, CALIBRATED)
    scores = pd.concat([rows for rows in scored if len(rows)]).merge(calibration, on=KEYS, how="left")
    scores = add_gain(scores, scores_of_ends(scores, KEYS[:-1]), params.summary.least_gain)
    # a column of only undefined values would have the dtype object
    scores = scores.astype(dict.fromkeys(SCORE_COLUMNS, float))
    own = scores[scores.test_set == scores.task].merge(_on_train(referred), on=[*CELL, "variant"], how="left")
    own = own.merge(_losses(cells), on=[*CELL, "variant"])
    own[FLOOR] = [calibration_floor(*bins) for bins in zip(own.bin_count, own.bin_confidence, strict=True)]
    return {
        "scores": own[[*CELL, "variant", "n", *SCORE_COLUMNS, FLOOR, LOSS, "constant", ON_TRAIN]],
        "scores_drawn": _drawn(params),
        "ood": scores.loc[scores.test_set != scores.task, [*KEYS, "n", *SCORE_COLUMNS]],
        "reliability": _bins(own),
        "confidence": _bars(own),
        "frontier": calibrated.table(_points, ["task", "seed"], more=True),
        "masks": frame_of(map(_mask_row, map(masks.file, cells), cells), MASK_COLUMNS),
        "tasks": _tasks(tasks).assign(cut=_cut_shares(tasks, params)),
        "leaks": _leaks([(task, test_set) for task in tasks for test_set in others[task]]),
        "run": run_frame(params).assign(
            k=params.data.k,
            least_gain=params.summary.least_gain,
            leaks=params.ood.leaks,
            max_length=params.model.max_length,
            wise_alphas=len(params.calibration.wise_alphas),
        ),
    }


def _points(_: Row, record: Row) -> list[Row]:
    """The points of a cell's frontier, temperatures with the four digits that any machine finds: their search ends within 1e-5."""
    rows = record["frontier"]
    return [row | {"temperature": float(f"{row['temperature']:.4g}")} if row["temperature"] else row for row in rows]


def _mask_row(file: Path, cell: Row) -> Row:
    header, head = mask_header(file)
    losses = dict(zip(SEARCH, header.get("found", {}).get("loss", ()), strict=False))
    return {**header, "head_parameters": sum(head.values()), **losses, **search_of(header), **cell}


def _variants(records: Records, test_sets: dict[str, list[str]], names: Sequence[str]) -> pd.DataFrame:
    """A row for each variant on each of these test sets of a cell."""

    def make(cell: Row, record: Row) -> Iterator[Row]:
        for test_set in test_sets[cell["task"]]:
            found = record["scores"][test_set]
            first, *others = VARIANTS if test_set != cell["task"] else (*VARIANTS, *CONTROLS)
            for variant in (first, *({LABEL_WORDS} & {*found}), *others):
                values = found[variant]
                yield {"test_set": test_set, "variant": variant, **{name: values[name] for name in names}}

    return records.table(make, [*KEYS, *names])


def _on_train(records: Records) -> pd.DataFrame:
    """Accuracy on the rows that were trained on, of the pretrained and the fine-tuned model."""

    def make(_: Row, record: Row) -> Iterator[Row]:
        yield from ({"variant": variant, ON_TRAIN: share} for variant, share in record[ON_TRAIN].items())

    return records.table(make, [*CELL, "variant", ON_TRAIN])


def _losses(cells: Sequence[Row]) -> pd.DataFrame:
    """The log loss of each model on the test rows of its cell."""
    found = ((cell, read_cell(**cell).part([cell["task"]])) for cell in cells)
    rows = [
        {**cell, "variant": variant, LOSS: cross_entropy(logits, tests.labels[cell["task"]])}
        for cell, tests in found
        for variant, logits in tests.logits[cell["task"]].items()
    ]
    return frame_of(rows, [*CELL, "variant", LOSS])


def _drawn(params: Settings) -> pd.DataFrame:
    """Scores of a run's only task on samples of its test rows; none of several tasks."""
    task, *others = params.tasks
    seeds = [] if others else params.seeds
    rows = [
        {"task": task, "seed": seed, **row}
        for seed in seeds
        for row in drawn_scores(read_cell(task, seed).part([task]), read_task(task), params.calibration.bins)
    ]
    scores = frame_of(rows, [*CELL, "draw", "variant", "constant", *SCORE_COLUMNS[:-1], LOSS])
    return add_gain(scores, scores_of_ends(scores, [*CELL, "draw"]), params.summary.least_gain)


def _bins(scores: pd.DataFrame) -> pd.DataFrame:
    """Bins that have rows."""
    rows = scores.explode(["bin_count", "bin_confidence", "bin_accuracy"])
    means = {name: rows[f"bin_{name}"].astype(float) for name in ("confidence", "accuracy")}
    bins = pooled_bins(rows.assign(bin=rows.groupby(level=0).cumcount(), count=rows.bin_count.astype(int), **means))
    return bins[bins["count"] > 0]


def pooled_bins(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each bin of a task's variant, of rows that several seeds or runs have of it: counts added up, means weighted."""
    means = ["confidence", "accuracy"]
    # sums over the test rows of a bin, so that they can be added
    sums = rows.assign(**{name: rows[name] * rows["count"] for name in means})
    bins = sums.groupby(["task", "variant", "bin"], sort=False)[["count", *means]].sum().reset_index()
    return bins.assign(**{name: bins[name] / bins["count"].clip(lower=1) for name in means})


def _bars(scores: pd.DataFrame) -> pd.DataFrame:
    rows = scores.assign(bars=scores.histogram.str.len()).explode("histogram")
    place = rows.groupby(level=0).cumcount()
    sides = {"low": place / rows.bars, "high": (place + 1) / rows.bars}
    return pooled_bars(rows.assign(**sides, count=rows.histogram.astype(int)))


def pooled_bars(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each bar of a task's variant, of rows that several seeds or runs have of it, with its share of all counts."""
    bars = rows.groupby(["task", "variant", "low", "high"], sort=False)["count"].sum().reset_index()
    return bars.assign(share=bars["count"] / bars.groupby(["task", "variant"])["count"].transform("sum"))


def _tasks(names: list[str]) -> pd.DataFrame:
    """What the score of each task is, and what its rows are."""
    specs = [read_task(name) for name in names]
    return pd.DataFrame({
        "task": names,
        "metric": [spec.metric for spec in specs],
        "macro": [spec.metric == "f1" and spec.positive is None for spec in specs],
        "sentences": ["two sentences" if spec.is_pair else "one sentence" for spec in specs],
        "labels": [len(spec.labels) for spec in specs],
    })  # fmt: skip


def _cut_shares(tasks: list[str], params: Settings) -> list[float]:
    """Share of each task's test rows, those of the first seed, whose text is cut at model.max_length."""
    model, tokenizer = params.model, stored_tokenizer(paths.PRETRAINED)
    rows = {task: read_rows(paths.sample(task, params.seeds[0], "test")) for task in tasks}
    return [cut_share(rows[task], read_task(task), tokenizer, model.mode, model.max_length) for task in tasks]


def _leaks(pairs: list[tuple[str, str]]) -> pd.DataFrame:
    """How many test texts of another data set are also in the task's training data, as far as known."""
    shared = read_json(paths.LEAKAGE) if pairs else {}
    rows = ({"task": task, "test_set": test_set, **shared.get(task, {}).get(test_set, {})} for task, test_set in pairs)
    return frame_of(rows, ["task", "test_set", "leaked", "test"])


# --- For the report ------------------------------------------------------------------------------------------------


def derive(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The frames with every quantity that report.yaml names as a column."""
    run, tasks = frames["run"].iloc[0], frames["tasks"]
    names = tasks.task + tasks.metric.map(MARKS).fillna("")
    kinds = label_kinds(tasks.labels)
    kinds = kinds if tasks.sentences.nunique() < 2 else tasks.sentences + ", " + kinds
    named = tasks.assign(name=names, kind=kinds)[["task", "name", "kind", "labels"]]
    scores, drawn = (
        _scores(frames[name], frames["masks"], named, run.least_gain) for name in ("scores", "scores_drawn")
    )
    ood = _elsewhere(frames["ood"].merge(named, on="task"), frames["leaks"])
    frontier, confidence = frames["frontier"], pooled_bars(frames["confidence"])
    bins = pooled_bins(frames["reliability"])
    fewest = min(FEWEST_ROWS, bins.groupby("variant")["count"].max().min())  # so that each model has a bin
    # no confidence is below one in the number of labels
    lowest = confidence.low[confidence["count"] > 0].min()
    sure = sure_shares(confidence)
    masks, published = sizes_of(frames["masks"]), _published(frames["paper"], named, run)
    return frames | {
        "scores": scores,
        "scores_drawn": drawn,
        "ood": ood,
        "reliability": bins[bins["count"] >= fewest].merge(named, on="task"),
        "overconfidence": overconfidence(bins),
        "confidence": confidence[confidence.low >= lowest].assign(low=lambda bars: 100 * bars.low).merge(named, on="task"),
        "sure": sure,
        # dev chooses an alpha of WiSE-FT in each cell; all of them are one point
        "frontier": frontier.assign(alpha=frontier.alpha.where(frontier.method == WISE_GRAFT)).merge(named, on="task"),
        "masks": masks,
        "paper": published,
        "scores_published": _judged_alike(published[published.compared], scores.task),
        "facts": pd.DataFrame([{
            **_facts(run, frames, scores), **_paper_facts(published, run["mode"]), "fewest": fewest,
            "size": " to ".join(dict.fromkeys(map(small_percent, (masks.share.min(), masks.share.max())))),
            "edge": next((f"{100 * edge:.3g}" for edge in sure.edge), ""),
            "source": _source(published[published.compared & published.name.isin(scores.name)]),
            "ood_source": _source(published[published.pair.isin(ood.pair)]),
            "shifts": shifts_in_words(ood),
        }]),
    }  # fmt: skip


def _scores(scores: pd.DataFrame, masks: pd.DataFrame, named: pd.DataFrame, least: float) -> pd.DataFrame:
    """Adds names, the localizer, how far each score is above the best baseline of its cell, and the gain beyond that of label words.

    The baselines are the pretrained model with the fine-tuned one's head or with its label words calibrated, and always the same label.
    """
    cell = [*CELL, *({"draw"} & {*scores})]
    for variant, name in BASELINES.items():
        scores = scores.merge(_score_of(variant, scores, cell, name), on=cell, how="left")
    best = scores[["baseline", "words", "constant"]].max(axis=1)
    measured = {name: scores.get(name) for name in (FLOOR, LOSS, ON_TRAIN)}
    scores = scores.assign(gained=scores.score - best, **measured)
    scores = add_gain(scores, scores_of_ends(scores, cell, LABEL_WORDS), least, LABEL_WORDS, "beyond")
    found_by = masks[[*CELL, "localizer"]]
    return scores.assign(short=scores.variant.map(SHORT)).merge(named, on="task").merge(found_by, on=CELL)


def _score_of(variant: str, scores: pd.DataFrame, cell: list[str], name: str) -> pd.DataFrame:
    return scores.loc[scores.variant == variant, [*cell, "score"]].rename(columns={"score": name})


def _elsewhere(ood: pd.DataFrame, leaks: pd.DataFrame) -> pd.DataFrame:
    """Scores on other data sets, with those above the fine-tuned model's, and how many of their texts were in the training data."""
    cell, both = ["task", "test_set", "seed"], ["task", "test_set"]
    trained_on = [
        f"{row.leaked:,.0f} of {row.test:,.0f}" if row.leaked >= 0 else "not known" for row in leaks.itertuples()
    ]
    ood = ood.merge(_score_of(FINETUNED, ood, cell, "finetuned"), on=cell)
    ood = ood.merge(leaks.assign(trained_on=trained_on)[[*both, "trained_on"]], on=both)
    rows = ood.groupby(both).n.transform("min")
    return ood.assign(
        pair=ood.name + " → " + ood.test_set,
        rows=rows,
        short=ood.variant.map(SHORT),
        over_finetuned=ood.score - ood.finetuned,
        shift=shifts(ood.task, ood.test_set),
    )


def overconfidence(bins: pd.DataFrame) -> pd.DataFrame:
    """Mean confidence less accuracy of each variant over the rows of each task."""
    sums = bins.assign(above=(bins.confidence - bins.accuracy) * bins["count"])
    sums = sums.groupby(["task", "variant"], sort=False)[["above", "count"]].sum()
    return (sums.above / sums["count"]).rename("above").reset_index()


def sure_shares(bars: pd.DataFrame) -> pd.DataFrame:
    """Share of each variant's predictions whose confidence is above the first bar edge from 90 % on, and that edge."""
    edge = min((low for low in bars.low if low >= SURE), default=bars.low.max())
    sure = bars[bars.low >= edge].groupby(["task", "variant"], sort=False).share.sum()
    return sure.reset_index().assign(edge=edge)


def sizes_of(masks: pd.DataFrame) -> pd.DataFrame:
    """One row for each size of masks that there is, mean over seeds, with its tasks, both denominators and the head beside it."""
    size = ["selected", "graftable", "model_parameters", "head_parameters"]
    means = masks.groupby("task", sort=False)[size].mean().reset_index()
    sizes = means.groupby(size, sort=False).task.agg(", ".join).rename("tasks").reset_index()
    shares = {"share": sizes.selected / sizes.graftable, "share_of_model": sizes.selected / sizes.model_parameters}
    return sizes.assign(**shares, tasks="all" if len(sizes) == 1 else sizes.tasks)


def _published(paper: pd.DataFrame, named: pd.DataFrame, run: pd.Series) -> pd.DataFrame:
    """The paper's values, those to compare with marked: of as many shots where it has them, of its causal model for another."""
    place, wanted = TABLES.get(run["mode"], TABLE_2), run.k if run.k in {*paper.shots} else USUAL_SHOTS
    compared = (paper.place == place) & (paper.shots == wanted)
    paper = paper.merge(named, on="task", how="left")
    pair = (paper.name + " → " + paper.test_set).where(paper.place == OUT_OF_DISTRIBUTION)
    return paper.assign(compared=compared.to_numpy(), pair=pair, short=paper.variant.map(SHORT))


def _judged_alike(paper: pd.DataFrame, tasks: pd.Series) -> pd.DataFrame:
    """The paper's scores to be judged as ours are: of the tasks that a run has, or of all where it has none of these."""
    common = paper[paper.task.isin(tasks)]
    rows = common if len(common) else paper
    rows = rows.merge(_score_of(FINETUNED, rows, ["task"], "whole"), on="task")
    source = rows.place + ", " + rows.shots.map("{:.0f}-shot, ".format) + counts(task=rows.task.nunique())
    return rows.assign(seed=0, retained=rows.score / rows.whole, source=source)


def _paper_facts(paper: pd.DataFrame, mode: str) -> dict[str, str]:
    """The paper's table on a model of this kind: its place, what it is of, and between what its agreement lies."""
    place = TABLES.get(mode, TABLE_2)
    rows = paper[paper.place == place]
    tasks, agreed = rows.groupby("shots").task.nunique(), rows.dropna(subset="agreement")
    low, high = agreed.agreement.min(), agreed.agreement.max()
    first, *others = (f"{n} of {shots:.0f} shots" for shots, n in tasks.items())
    return {
        "paper_place": f"abstract, {place}" if place == TABLE_2 else place,
        "paper_size": rows["size"].iloc[0],
        "paper_model": rows.model.iloc[0],
        "paper_tasks": ", ".join([first.replace(" ", " tasks ", 1), *others, rows["sample"].iloc[0]]),
        "agreed": f"{percent(low)} to {percent(high)} %",
        "limit_of": "" if place == TABLE_2 else "; 86 % is what section 3.1 has for RoBERTa-base",
        "agreed_place": place,
        "agreed_tasks": f"{counts(task=agreed.task.nunique())} of {agreed.shots.iloc[0]:.0f} shots, {agreed['sample'].iloc[0]}",
    }


def _source(rows: pd.DataFrame) -> str:
    """Where the paper's values in the table come from; empty if there are none."""
    for row in rows.head(1).itertuples():
        shots = "" if pd.isna(row.shots) else f"{row.shots:.0f}-shot, "
        return f"{row.place}, {shots}{row.model}, prompt-based fine-tuning, graft of {row.size}"
    return ""


def _facts(run: pd.Series, frames: dict[str, pd.DataFrame], scores: pd.DataFrame) -> dict[str, str]:
    """Values that notes and claims name; empty where there is nothing to say."""
    masks, tasks = frames["masks"], frames["tasks"]
    rows = scores.groupby("task", sort=False).n.min()
    marked = [f"{mark} {MARKED[metric]}" for metric, mark in MARKS.items() if metric in {*tasks.metric}]
    macro, tuned = tasks.task[tasks.macro], scores[scores.variant == FINETUNED]
    several = ", ".join(f"{task} {n:,}" for task, n in rows.items())
    heads = [*masks.head_parameters[masks.head_parameters > 0]][:1]
    return {
        "cells": counts(task=len(tasks), seed=scores.seed.nunique()),
        "examples": f"{run.shots} example{'' if run.k == 1 else 's'} per class",
        "test_rows": f"{rows.iloc[0]:,} a task" if rows.nunique() == 1 else several,
        "marks": ", ".join(marked) + "; accuracy for all others" if marked else "",
        "macro": ", ".join(macro),
        "learned_nothing": ", ".join(f"{row.task}-{row.seed}" for row in tuned[tuned.gained <= 0].itertuples()),
        "left_out": left_out(scores[scores.variant == GRAFTED].gain, run.least_gain),
        "asked_elsewhere": STUDY if masks.localizer.iloc[0] == "learned" else "",
        "floor_known": _floor_known(scores),
        **{f"beside_{other}": _beside(scores, *pair) for other, pair in BESIDE.items()},
        "movement_ahead": _movement_ahead(scores),
        "localizer": masks.localizer.iloc[0],
        "searched": _searched(masks),
        "search": search_in_words(masks, _higher(masks)),
        **_wise(frames["frontier"], run),
        **_cut(tasks, run),
        **_words(scores, run),
        "with_head": " with a trained head of {:,.0f} parameters".format(*heads) if heads else "",
        "same_head": " with the same head" if heads else "",
        "dropped": {"drop": "dropped", "keep": "kept"}[run.leaks],
    }


def _floor_known(scores: pd.DataFrame) -> str:
    """What of the graft's calibration error is the floor; empty where its confidences aren't known."""
    floor = scores[scores.variant == GRAFTED].groupby("task")[FLOOR].mean().mean()
    return (
        ""
        if pd.isna(floor)
        else f", where a perfectly calibrated model would measure {percent(floor)} % on as many rows"
    )


def _beside(scores: pd.DataFrame, a: str, b: str) -> str:
    """What stands beside the calibration errors of two models: their floors and their log losses; empty where these aren't known."""
    means = scores.groupby(["variant", "task"])[[FLOOR, LOSS]].mean().groupby("variant").mean().reindex([a, b])
    if means.isna().any(axis=None):
        return ""
    floors, losses = " and ".join(map(percent, means[FLOOR])), " and ".join(f"{loss:.3f}" for loss in means[LOSS])
    return f"; perfectly calibrated models would measure {floors} %; log loss {losses}"


def _movement_ahead(scores: pd.DataFrame) -> str:
    """For how many tasks, and which, the movement graft keeps more of the fine-tuned score than the graft; empty for none."""
    means = scores.groupby(["task", "variant"], sort=False).retained.mean().unstack()
    ahead = means.index[means[MOVEMENT_GRAFTED] > means[GRAFTED]]
    return f"{len(ahead)} of {counts(task=len(means))} ({', '.join(ahead)})" if len(ahead) else ""


def _searched(masks: pd.DataFrame) -> str:
    """Where the loss on all training rows began and ended while masks were learned, and where it ended higher; empty if none were."""
    masks = masks.dropna(subset=SEARCH)
    if not len(masks):
        return ""
    start, end = masks.loss_start.mean(), masks.loss_end.mean()
    higher = ", ".join(f"{row.task}-{row.seed}" for row in masks[masks.loss_end > masks.loss_start].itertuples())
    where = f"above its start in {higher}" if higher else "no higher than it began in any of them"
    return f"from {start:.3g} to {end:.3g}, mean over {counts(run=len(masks))}; it ended {where}"


def _higher(masks: pd.DataFrame) -> str:
    """In how many runs the search ended at a higher loss than it began with; empty where no mask was learned."""
    known = masks.dropna(subset=SEARCH)
    higher, kept = (known.loss_end > known.loss_start).sum(), " whose losses were kept" * (len(known) < len(masks))
    return f"; its loss ended above its start in {higher} of {len(known)} runs{kept}" if len(known) else ""


def _wise(frontier: pd.DataFrame, run: pd.Series) -> dict[str, str]:
    """Where WiSE-FT lies between both models: chosen on dev, but not of a single weight."""
    if run.get("wise_alphas") == 1:
        known = frontier.alpha[frontier.method == WISE_FT]  # older runs haven't kept it
        weight = f"at the weight {known.iloc[0]:g}" if len(known) else "at one weight"
        return {"wise_weight": weight, "wise_how": weight}
    return {"wise_weight": "with the weight chosen on dev", "wise_how": "as far as scores best on dev"}


def _cut(tasks: pd.DataFrame, run: pd.Series) -> dict[str, str]:
    """How many texts are cut, in all and by task; empty for the frames of older runs."""
    if "cut" not in tasks:
        return {"texts": "", "cut": ""}
    most = tasks[tasks.cut > 0].sort_values("cut", ascending=False, kind="stable")
    return {
        "texts": f"texts of at most {run.max_length} tokens ({percent(tasks.cut.mean(), 0)} % of those tested are cut), ",
        "cut": ", ".join(f"{row.task} {percent(row.cut)}" for row in most.itertuples()) or "none",
    }


def _words(scores: pd.DataFrame, run: pd.Series) -> dict[str, str]:
    """What the pretrained model with calibrated label words is, and what it keeps; empty where no label words were fitted."""
    rows = scores[scores.variant == LABEL_WORDS]
    if rows.empty:
        return dict.fromkeys(("calibrated", "calibrated_is", "pre_b", "words_retained", "left_out_beyond"), "")
    fitted = "the pretrained model with one scale and a bias for each label word, fitted on the training rows"
    grafts = scores[scores.variant == GRAFTED]
    return {
        "calibrated": f"calibrated: {fitted}; a control, since a prior of words is no skill",
        "calibrated_is": f". Calibrated: {fitted}",
        "pre_b": f"pre/B: {fitted}",
        "words_retained": f", with calibrated label words {percent(rows.groupby('task').retained.mean().mean())} %",
        "left_out_beyond": left_out(grafts.beyond, run.least_gain),
    }


@stage
def main(params: Settings) -> None:
    """Write the report from the records of all cells that params.yaml names."""
    publish("summary", collect(params))
