"""The verdicts of the committed reports follow from the committed rows, by the arithmetic of tests/naive.py."""

import math
from functools import partial

import pandas as pd
import pytest

from stages.workflow.report.claims import judge
from tests.naive import (
    CELL,
    PAIR,
    ROOT,
    Claim,
    Sample,
    above,
    cells,
    differences,
    gain,
    judged,
    larger,
    loaded,
    quantile,
    rows_of,
)
from tests.study_claims import study, surgical, talos

DATED = "reports/2026-11-2"
# the numbers that README.md begins with: two reports and their further seeds
EIGHT = ["4_base_sets/main", "4_base_pairs/main", "5_base_eight/sets", "5_base_eight/pairs"]


def summary(read, dated=False):
    """The claims; of a `dated` report those of its day, without the lower limit and with all cells."""
    rows = read("scores")
    score, ece, agree = (
        rows.pivot(index=CELL, columns="variant", values=name) for name in ("score", "ece", "agreement")
    )
    # of old runs the share of the most frequent label isn't known
    given = [above(score.finetuned, score.pretrained, *([cells(rows, "constant")] if "constant" in rows else []))]
    lower = Sample(ece, statistic=lambda units: 1 - units.grafted.mean() / units.finetuned.mean())
    for limit in (0.95, 0.9)[: 2 - dated]:
        yield Claim(
            f"Grafted, it keeps {100 * limit:.0f} % of the fine-tuned score",
            score.grafted / score.finetuned,
            limit,
            given,
        )
    kinds = {} if dated else {"two labels": "labels == 2", "more labels": "labels > 2"}
    for kind, where in kinds.items():
        kept = (score.grafted / score.finetuned)[score.index.isin(read("tasks").query(where).task, level="task")]
        yield Claim(f"On tasks of {kind} it keeps 95 %", kept, 0.95, given, family="kinds")
    yield Claim("the region brings 95 %", gain(score.grafted, score.pretrained, score.finetuned), 0.95, given)
    yield Claim("its ECE is 40 % lower", lower, 0.4, given)
    words, sign = ("The graft's ECE | at one temperature", -1) if dated else ("ECE is lower | One temperature", 1)
    yield Claim(words, sign * (ece.grafted - ece.finetuned_tempered), 0, given, family="calibration")
    yield Claim("ECE is lower | of WiSE-FT", ece.wise_ft - ece.grafted, 0, given, family="calibration")
    yield Claim("agree on 86 %", agree.grafted, 0.86, given)
    # not where the learned mask gave way to movement's
    own = score.index if dated else read("masks").query("kept != 'movement'").set_index(CELL).index
    for words, measure in (
        ("than the movement graft | scores higher", score),
        ("the movement graft | agrees more", agree),
    ):
        over = (measure.grafted - measure.movement_grafted).reindex(own)
        yield Claim(words, over, 0, given, family="localizer")


def continual(read):
    rows, memory, key = read("continual/accuracy"), read("continual/memory"), ["order", *CELL]
    new, end = (rows[rows.step == rows[at]].set_index(["method", *key]) for at in ("place", "length"))
    naive, grafting, learned = end.loc["naive"], end.loc["grafting"], new.accuracy
    before = rows[rows.variant == "pretrained"].groupby(key)[["accuracy", "majority"]].mean()
    given, followed = [above(learned["naive"], before)], naive.place < naive.length
    same = rows[(rows.method == "grafting") & (rows.step > rows.place)].unchanged.eq(True)
    yield Claim("bit for bit", float((~same).sum()), 1, below=True)
    yield Claim("fine-tuning forgets", (learned["naive"] - naive.accuracy)[followed], 0, given)
    yield Claim("Grafting forgets less", (grafting.accuracy - naive.accuracy)[followed], 0, given, family="end")
    yield Claim("on all tasks together", grafting.accuracy - naive.accuracy, 0, given, family="end")
    yield Claim("above -3 points", learned["grafting"] - learned["naive"], -0.03, given)
    yield Claim("is better calibrated", naive.ece - grafting.ece, 0, given)
    kept = memory[memory.method == "grafting"].set_index([*key, "place"]).sort_index(level="place")
    added = kept.skill.groupby(level=["order", "seed"]).diff().fillna(kept.skill)
    yield Claim("of a model for each task", float((added / kept.model).max()), 0.1, below=True)


def merge(read):
    rows = read("merge/scores")
    score = rows.pivot(index=CELL, columns="method", values="score")
    names = {
        "stitch_0.01": "stitched Localize-and-Stitch masks of 1.00 %",
        "movement_0.05": "stitched movement masks of 5.00 %",
    }
    names |= {name: f"{name} of whole models" for name in ("average", "arithmetic", "consensus")}
    names |= {name: f"{name.upper()} of whole models" for name in ("ties", "dare")}
    given = [above(score.grafted, score.pretrained, cells(rows, "constant"))]
    for method in {*score} - {"stitch_mean", "pretrained", "finetuned", "grafted"}:
        name = names.get(method, method.replace("_", " "))
        yield Claim(f"stitched mean scores higher | than {name}", score.stitch_mean - score[method], 0, given)
    yield Claim("of the tasks' own grafts", score.stitch_mean / score.grafted, 0.95, given)


def sides(rows, measure, first, second, tasks=PAIR):
    """Mean of a measure over one kind of rows less that over another; a unit may be of both."""
    rows = rows[first | second].set_index([*tasks, "seed"]).assign(value=rows[measure].to_numpy()[first | second])
    rows["side"] = first[first | second].to_numpy() * 1.0
    return Sample(rows[["value", "side"]], tasks, lambda units: units.groupby("side").value.mean() @ [-1, 1])


def multitask(read):
    level, seeded = read("multitask/level"), [*PAIR, "seed"]
    gains = read("multitask/gain").rename(columns={"source": "first", "target": "second"})
    gains = gains.merge(level, left_on=["second", "seed"], right_on=CELL)
    gains["gain"] = gain(gains.accuracy, gains.pretrained, gains.joint)
    overlaps = read("multitask/overlap").rename(columns={"first_seed": "seed"})
    yield Claim("as accurate as one for each", cells(level, "joint") - cells(level, "single"), -0.02)
    for name in ("learned", "attribution"):
        pairs, rows, of = (
            overlaps[overlaps.localizer == name],
            gains[gains.localizer == name],
            f"| SGD, {name}, regions",
        )
        single, union, pure = (rows[rows.kind == kind] for kind in ("single", "union", "purified"))
        own, same = single["first"] == single.second, pairs["first"] == pairs.second
        within = pairs.seed == pairs.second_seed
        other, near = single[~own], pairs[~same & within]
        both = other[other.second.isin(other.second[other.similar])]
        tasks, purified = (cells(part, "gain", ["second", "seed"], inside=True) for part in (union, pure))
        frame = pd.concat([near.set_index(seeded).overlap, other.set_index(seeded).gain], axis=1)
        rho = Sample(frame, PAIR, lambda units: math.atanh(units.overlap.rank().corr(units.gain.rank())))
        yield Claim(f"its own region than from others {of}", sides(single, "gain", own, ~own))
        yield Claim(f"similar tasks than from others {of}", sides(both, "gain", both.similar, ~both.similar))
        yield Claim(f"gain on them {of}", Sample(tasks, ["second"]), 0.7)
        yield Claim(f"for the excluded ones {of}", sides(union, "gain", union.inside, ~union.inside, ["second"]))
        yield Claim(f"to purify {of}", Sample(purified - tasks, ["second"]))
        over = near.assign(over=near.overlap - near.chance).set_index(seeded).over
        yield Claim(f"than by chance {of}", Sample(over, PAIR))
        if not within.all():
            yield Claim(f"tasks are disjoint {of}", sides(pairs, "overlap", ~same & within, same), below=True)
            yield Claim(f"Of two joint models {of}", sides(pairs, "overlap", same, ~same & ~within))
        yield Claim(f"overlap more than those of others {of}", sides(near, "overlap", near.similar, ~near.similar))
        yield Claim(f"Overlap is a proxy {of}", rho, told=math.tanh)


def smallest(read):
    sizes, scores, certificates = read("smallest/sizes"), read("smallest/scores"), read("smallest/certificates")
    sizes = sizes.dropna(subset="enough").assign(log=sizes.selected.map(math.log10))
    log = sizes.pivot(index=CELL, columns="localizer", values="log")
    for ratio, words in (
        (log.movement - log.doubling, "than doubling"),
        (log.movement - log.attribution, "than regions by attribution"),
        (log.random - log.movement, "random regions"),
    ):
        yield Claim(f"need more parameters | {words}", ratio, family="fewer", told=lambda value: 10**value)
    for name in ("movement", "attribution", "doubling", "random"):
        enough = cells(sizes, "log", localizer=name, enough=True).index
        graft = {"localizer": name, "where": "test", "variant": "grafted"}
        signs = cells(scores, **graft | {"variant": "signs"}) / cells(scores, **graft)
        one, errors = (cells(certificates, measure, localizer=name) for measure in ("baseline", "certified"))
        yield Claim(f"dev chose | : {name}", cells(scores, "gain", **graft).reindex(enough), 0.95)
        yield Claim(f"signs for values | : {name}", signs.reindex(enough), 0.95)
        yield Claim(f"length of its code | : {name}", one - errors)


# claims of each report, and a file and a column by which it has to change; of surgical without two about layers that two layers say nothing of
REPORTS = {
    summary: (11, "scores", "ece"), continual: (7, "continual/accuracy", "accuracy"), merge: (12, "merge/scores", "score"),
    multitask: (17, "multitask/overlap", "overlap"), smallest: (15, "smallest/sizes", "selected"), study: (66, "study/sweep", "score"),
    surgical: (3, "surgical/surgery", "score"), talos: (15, "talos/addition", "accuracy"),
}  # fmt: skip


@pytest.mark.parametrize("measure", REPORTS)
def test_verdicts_follow_from_the_committed_rows_and_other_numbers_from_others(measure):
    count, file, column = REPORTS[measure]
    assert differences(measure.__name__, measure) == ([], count)
    assert differences(measure.__name__, measure, alter=larger(file, column))[0]


def test_the_papers_own_table_is_judged_by_the_same_rule():
    """No task of the default run is among its 13, so it is all of them, at the run's 64 shots."""
    paper = pd.read_csv(ROOT / "stages/paper.csv").query("place == 'Table 2' and shots == 64").assign(seed=0)
    score, ece = (paper.pivot(index=CELL, columns="variant", values=name) for name in ("score", "ece"))
    lower = Sample(ece, statistic=lambda units: 1 - units.grafted.mean() / units.finetuned.mean())
    told = " ".join(str(claim.paper) for claim in judge(*loaded("summary")))
    for value in (Sample(score.grafted / score.finetuned), lower):
        ends = "{:.1f} % ({:.1f} to {:.1f})".format(*(100 * end for end in value.numbers[:3]))
        assert f"Table 2, 64-shot, by this rule: {ends}" in told


def test_verdicts_of_eight_data_sets_follow_from_the_rows_of_four_runs():
    folders = [f"plots/{DATED}{name}" for name in EIGHT]
    assert differences(f"{DATED}5_base_eight/eight.md", partial(summary, dated=True), folders) == ([], 8)


@pytest.mark.parametrize(
    ("edit", "verdict"),
    [
        (lambda rows: rows, "holds"),
        (lambda rows: rows.assign(ece=rows.ece.where(rows.variant != "grafted", 1.3 * rows.ece)), "not shown"),
        (lambda rows: rows.assign(ece=rows.ece.where(rows.variant != "grafted", 4 * rows.ece)), "does not hold"),
        (lambda rows: rows.assign(score=rows.score.where(rows.variant != "pretrained", 1.0)), "not measurable"),
        (lambda rows: rows[rows.seed == 13], "holds"),
        (lambda rows: rows[rows.task == "movies"], "not measurable"),
    ],
)
def test_a_verdict_changes_with_the_rows(edit, verdict):
    rows = edit(rows_of(ROOT / "plots/scores.csv"))
    [found] = [
        each
        for claim, each, _ in judged(
            summary(lambda name: {"scores": rows}.get(name, rows_of(ROOT / f"plots/{name}.csv")))
        )
        if claim.words == "its ECE is 40 % lower"
    ]
    assert found == verdict


def test_quantiles_are_those_of_the_tables():
    assert [round(quantile(freedom), 3) for freedom in (1, 2, 5, 30)] == [12.706, 4.303, 2.571, 2.042]
