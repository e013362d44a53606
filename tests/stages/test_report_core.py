"""What all reports share: the records they read, statistics, and how a report.yaml becomes tables, claims and figures."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy.stats import nct, t, ttest_1samp

from skill_grafting.support.errors import DataError
from skill_grafting.support.formatting import percent
from skill_grafting.support.io import write_json
from stages.workflow.records import Records, frame_of, grid, require_files
from stages.workflow.report.claims import Verdict, families, judge, of_few_tasks
from stages.workflow.report.formats import Template, fall, points
from stages.workflow.report.plots import draw_all
from stages.workflow.report.publish import claims_text, headline, markdown
from stages.workflow.report.spec import NAMES, Cell, Spec, SpecError, load_frames, read_spec
from stages.workflow.report.stats import estimate, holm, source_of
from stages.workflow.report.tables import aggregate
from stages.workflow.stage.settings import load_all

ROOT = Path(__file__).parents[2]
MADE_BY = "`dvc repro stages/toy/dvc.yaml:edit@full-13` makes it"


pytestmark = pytest.mark.usefixtures("project")

# --- Records ---------------------------------------------------------------------------------------------------


def records(methods: tuple[str, ...] = ("full", "graft"), tasks: tuple[str, ...] = ("a", "b")) -> Records:
    """Cells by seed, whose files lie by method; each is written with its accuracy."""
    cells = grid(seed=[13], method=methods, task=tasks)
    made = Records("toy", "edit", "metrics/edit/{method}/{seed}/{task}.json", cells)
    for place, cell in enumerate(made.cells):
        write_json(made.file(cell), {"stage": "edit", "rows": [{"accuracy": place / 10}]})
    return made


def table(made: Records) -> pd.DataFrame:
    return made.table(lambda _, record: record["rows"], ["method", "task", "accuracy"])


def test_rows_stand_in_the_order_of_the_cells_and_not_of_the_folders():
    frame = table(records(("graft", "full")))
    assert [*frame.method] == ["graft", "graft", "full", "full"] and [*frame.accuracy] == [0.0, 0.1, 0.2, 0.3]
    off = table(records(()))
    assert len(off) == 0 and [*off.columns] == ["method", "task", "accuracy"], "a stage that is off has no rows"
    assert [*frame_of([{"a": 1, "b": 2}], ["b"], more=True).columns] == ["b", "a"]


@pytest.mark.parametrize("content", [[], {}, {"stage": "other", "rows": []}, {"stage": "edit"}])
def test_a_file_that_is_no_record_is_named_with_what_makes_it(content):
    made = records()
    write_json(made.file(made.cells[0]), content)
    with pytest.raises(DataError, match=rf"metrics/edit/full/13/a.json: not a record of edit.*; {MADE_BY}"):
        table(made)


def test_missing_files_are_named_together_and_not_more_than_ten():
    made = records(tasks=tuple("abcdef"))
    require_files("make toy", made)
    made.file(made.cells[0]).unlink()
    with pytest.raises(DataError, match=f"^metrics/edit/full/13/a.json: not there; {MADE_BY}$"):
        require_files("make toy", made)
    for cell in made.cells[1:]:
        made.file(cell).unlink()
    with pytest.raises(DataError, match="(not there.*\n.*){9}not there.*\n.*and 2 more files; `make toy` makes them all$"):
        require_files("make toy", made)
    main = Records("", "mask", "masks/{task}/{seed}.safetensors", [{"task": "a", "seed": 1}], item="{task}-{seed}")
    assert main.made_by(main.cells[0]) == "`dvc repro mask@a-1` makes it"


STRANGE = ["2019", "007", "1e5", "null", "nan", "NA", "None", "true", "inf"]


def test_names_are_text_whatever_they_look_like_in_every_column_that_has_some(published):
    about = pd.DataFrame({**dict.fromkeys(NAMES, STRANGE), "score": [0.5, None, *range(7)]})
    run = pd.DataFrame({"model": ["007"], "shots": [64]})
    for name, frame in {"rows": about, "run": run}.items():
        Path(f"plots/{name}.csv").parent.mkdir(exist_ok=True)
        frame.to_csv(f"plots/{name}.csv", index=False)
    found = load_frames(Path("plots"))
    pd.testing.assert_frame_equal(found["rows"], about, check_dtype=False)
    pd.testing.assert_frame_equal(found["run"], run, check_dtype=False)
    assert not pd.read_csv("plots/rows.csv").equals(about), "the control: types guessed anew"
    values = load_all(ROOT)
    chosen = {*values["tasks"], *vars(values["localizer"]), *values["order"], *values["multitask"].groups}
    literal = {"kind", "part", "kept"}  # which mask was kept, and kinds of tensors
    for file in [*(published / "plots").glob("*.csv"), *(published / "plots").glob("[!r]*/*.csv")]:
        columns = pd.read_csv(file, dtype=str)
        assert {name for name in columns if chosen & {*columns[name]}} <= {*NAMES} | literal, file


# --- Statistics ------------------------------------------------------------------------------------------------


def cells(values: dict, seeds: int = 2, apart: float = 0.1, names: tuple[str, ...] = ("task",)) -> pd.Series:
    """Values of tasks, or of pairs of tasks, in cells of so many seeds, which lie around it."""
    around = np.linspace(-apart, apart, seeds) if seeds > 1 else [0.0]
    units = {unit if isinstance(unit, tuple) else (unit,): value for unit, value in values.items()}
    rows = {(*unit, seed): value + shift for unit, value in units.items() for seed, shift in enumerate(around)}
    return pd.Series([*rows.values()], pd.MultiIndex.from_tuples(rows, names=[*names, "seed"]), dtype=float)


BY_TASK = {"a": 0.1, "b": 0.3, "c": 0.2, "d": 0.6}
BY_PAIR = {("a", "b"): 0.1, ("a", "c"): 0.2, ("b", "c"): 0.6, ("a", "d"): 0.4, ("b", "d"): 0.3, ("c", "d"): 0.5}
PAIR = ("first", "second")


def test_an_estimate_is_the_t_interval_over_tasks_and_seeds_of_a_task_add_nothing():
    value, known = estimate(cells(BY_TASK)), ttest_1samp([*BY_TASK.values()], 0.05)
    assert (value.n, value.tasks, value.seeds, value.positive) == (8, 4, 2, 4)
    assert (value.low, value.high) == pytest.approx((*known.confidence_interval(0.95),))
    assert value.p_value(0.05) == pytest.approx(known.pvalue) and value.mean == pytest.approx(0.3)
    assert value.sd == pytest.approx(np.std([*BY_TASK.values()], ddof=1))
    assert estimate(cells({**BY_TASK, "rounded": 1e-12})).positive == 4
    alike = estimate(cells(dict.fromkeys("abcd", 0.1)))
    assert (alike.p_value(0.1), alike.p_value()) == (1, 0), "without a spread"
    twice = pd.concat([cells(BY_TASK), cells(BY_TASK).rename(lambda seed: seed + 2, level="seed")])
    assert (estimate(twice).low, estimate(twice).high) == pytest.approx((value.low, value.high))
    alone = ttest_1samp(twice, 0).confidence_interval(0.95)
    assert alone.high - alone.low < 0.7 * (value.high - value.low), "the control: cells as the sample tell too much"


def test_pairs_of_tasks_are_jackknifed_by_task():
    value = estimate(cells(BY_PAIR, names=PAIR), PAIR)
    # 4 * 0.35 - 3 * (the mean of the three pairs without a task)
    pseudo = [1.4 - 1.4, 1.4 - 1.1, 1.4 - 0.8, 1.4 - 0.9]
    assert value.error == pytest.approx(np.std(pseudo, ddof=1) / 4**0.5)
    assert (value.tasks, value.units) == (4, 6)
    for end in (value.mean - value.low, value.high - value.mean):
        assert end == pytest.approx(t.ppf(0.975, 3) * value.error), "of four tasks, not of six pairs"
    assert value.p_value(value.high) == pytest.approx(0.05)
    assert estimate(cells({("a", "b"): 0.1}, names=PAIR), PAIR).low is None, "one pair has no interval"
    assert value.error > 1.5 * value.sd / 6**0.5, "the control: pairs are not independent"
    apart = {("a", "b"): 0.1, ("c", "d"): 0.2, ("e", "f"): 0.6, ("g", "h"): 0.4}
    pairs, known = estimate(cells(apart, names=PAIR), PAIR), ttest_1samp([*apart.values()], 0.05)
    assert (pairs.low, pairs.high) == pytest.approx((*known.confidence_interval(0.95),)), "sharing none, they are the sample"
    assert pairs.p_value(0.05) == pytest.approx(known.pvalue) and pairs.sample() == "4 pairs of 8 tasks, 2 seeds"
    both = pd.DataFrame({"one": cells(BY_TASK), "twice": 2 * cells(BY_TASK)})
    ratio = estimate(both, statistic=lambda units: units.one.mean() / units.twice.mean())
    assert (ratio.mean, ratio.error, ratio.positive, ratio.sd) == (pytest.approx(0.5), pytest.approx(0), None, None)
    assert estimate(both, statistic=lambda units: 0.5 if len(units) == 4 else np.nan).error is None, "not of parts of it"


BY_SOURCE = {"movies": 0.3, "products": 0.3, "tweets": 0.4, "bbc": 0.1, "brands": 0.15, "language": 0.2}


def test_a_source_is_the_package_or_the_data_set_of_the_hub_and_a_users_task_is_its_own():
    assert source_of("movies") == source_of("products") == "vaderSentiment" != source_of("bbc")
    assert source_of("mrpc") != source_of("qnli") == "nyu-mll/glue/qnli", "two data sets of one collection"
    assert source_of("sst2") == source_of("mr") == source_of("sentiment"), "the same sentences"
    assert source_of("reviews") == "reviews"


def test_the_interval_by_source_adds_up_what_tasks_of_one_source_deviate_by():
    value, mean = estimate(cells(BY_SOURCE)), np.mean([*BY_SOURCE.values()])
    off = np.array([1.0 - 3 * mean, *(BY_SOURCE[task] - mean for task in ("bbc", "brands", "language"))])
    half = t.ppf(0.975, 3) * np.sqrt(4 / 3 * (off**2).sum()) / 6
    assert value.by_source == pytest.approx((mean - half, mean + half)) and (value.sources, value.drawn, value.fewest) == (4, 6, 4)
    assert value.p_value(value.by_source[0]) == pytest.approx(0.05), "the wider of both"
    assert value.number() == "6 tasks of 4 sources" and f"{value:interval}" == "+24.2 (+12.5 to +35.9; by source +4.2 to +44.1)"
    alone = estimate(cells(dict(zip("abcdef", BY_SOURCE.values(), strict=True))))
    assert alone.by_source == pytest.approx((alone.low, alone.high)) and "source" not in alone.words(), "the control"
    of_one = estimate(cells({"movies": 0.1, "tweets": 0.2, "polar": 0.3, "domain": 0.1}))
    assert of_one.by_source is None and of_one.p_value() is None and of_one.low is not None


def test_pairs_are_by_the_sources_of_their_tasks_and_those_that_share_one_are_one():
    apart = {("movies", "bbc"): 0.1, ("products", "brands"): 0.2, ("drugs", "illness"): 0.6, ("language", "a"): 0.3}
    assert (estimate(cells(apart, names=PAIR), PAIR).sources, estimate(cells(apart, names=PAIR), PAIR).drawn) == (3, 4)
    shared = {("movies", "products"): 0.1, ("movies", "bbc"): 0.2, ("products", "bbc"): 0.6, ("bbc", "brands"): 0.3}
    assert estimate(cells(shared, names=PAIR), PAIR).sources == 3


@pytest.mark.parametrize("level", [0.05, 0.05 / 7])
def test_the_smallest_difference_is_shown_four_times_in_five(level):
    value = estimate(cells(BY_TASK | {"e": 0.3, "f": 0.1}))
    shown = nct.sf(t.ppf(1 - level / 2, 5), 5, value.smallest(level) / value.error)
    assert shown == pytest.approx(0.8, abs=0.01)
    by_source = estimate(cells(BY_SOURCE))
    assert by_source.smallest(level) / by_source.source_error > value.smallest(level) / value.error, "the larger of both"


@pytest.mark.parametrize(
    "values, words",
    [
        (cells({"a": 0.1}), "+10.0 points (no interval; 1 task, 2 seeds; above 0 in 1 of 1)"),
        (cells(BY_TASK, seeds=1), "+30.0 points (95 % interval -4.4 to +64.4; 4 tasks, 1 seed; above 0 in 4 of 4)"),
        (cells({"a": 0.1, "b": 0.1 + 1e-12}), "+10.0 points (no interval; 2 tasks, 2 seeds; above 0 in 2 of 2)"),
        (cells({}), "no common cells"),
        (cells({"a": 0.1, "b": 0.2}), "+15.0 points (no interval; 2 tasks, 2 seeds; above 0 in 2 of 2)"),
        (cells({"a": 0.1, "b": 0.2, "c": 0.3}), "+20.0 points (no interval; 3 tasks, 2 seeds; above 0 in 3 of 3)"),
    ],
)  # fmt: skip
def test_fewer_than_four_tasks_have_no_interval_and_one_seed_has_one(values, words):
    value = estimate(values)
    assert value.words() == words and (value.p_value() is None) == (value.low is None)


def test_tasks_with_fewer_seeds_than_others_are_told():
    value = estimate(pd.concat([cells(BY_TASK, seeds=3), cells({"e": 0.2})]))
    assert value.sample() == "5 tasks, 2 to 3 seeds" and "; 5 tasks, 2 to 3 seeds; above" in value.words()
    assert estimate(cells(BY_TASK, seeds=3)).sample() == "4 tasks, 3 seeds", "the control"


@pytest.mark.parametrize(
    "p_values, corrected",
    [([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]), ([0.04], [0.04]), ([0.6, 0.7], [1, 1]), ([], [])],
)
def test_holms_correction_is_that_of_hand(p_values, corrected):
    assert holm(p_values) == pytest.approx(corrected)


def test_a_share_that_is_rounded_to_zero_has_no_sign_and_a_difference_keeps_it():
    assert [percent(share) for share in (-0.0004, 0.0004, -0.004)] == ["0.0", "0.0", "-0.4"]
    assert (points(-0.0004), points(-1e-17)) == ("-0.0", "+0.0"), "on this side of zero, and at it"


def test_a_template_counts_one_thing_as_one():
    assert Template().format("{seeds:n seed}, {tasks:n task}", seeds=np.int64(1), tasks=1200) == "1 seed, 1,200 tasks"


@pytest.mark.parametrize(("reduction", "told"), [
    (0.6062, "a reduction of 60.6 %"), (-0.42, "a rise of 42.0 %"), (-4.192, "5.2 times as much"),
])  # fmt: skip
def test_no_negative_reduction_is_told(reduction, told):
    assert fall(reduction) == told


VALUES = some.dictionaries(some.sampled_from("abcdefgh"), some.floats(-1, 1).map(lambda x: round(x, 3)), min_size=3)


@settings(max_examples=60, deadline=None)
@given(VALUES, some.floats(-0.5, 0.5))
def test_an_interval_excludes_just_the_limits_whose_p_value_is_below_5_percent(values, limit):
    value = estimate(cells(values, apart=0.0))
    if value.error and value.error > 1e-6 and min(abs(limit - value.low), abs(limit - value.high)) > 1e-6:
        assert (value.p_value(limit) < 0.05) == (not value.low <= limit <= value.high)


# --- A report.yaml and its frames ------------------------------------------------------------------------------


def frame(seeds: int = 2, **methods: tuple[float, ...]) -> pd.DataFrame:
    """Scores of methods, one value a task, in cells of so many seeds."""
    rows = [
        {"method": method, "task": task, "seed": seed, "score": value, "other": 0.0, "n": 10}
        for method, values in methods.items()
        for task, value in zip("abcdefgh", values, strict=False)
        for seed in range(seeds)
    ]
    return pd.DataFrame(rows, columns=["method", "task", "seed", "score", "other", "n"])


def spec(**parts: object) -> Spec:
    return Spec(title="Toy", sentence="A result", setting="a toy", **parts)


def claim(**parts: object) -> dict:
    return {"words": "it is so", "data": "rows", "value": "score", **parts}


def verdicts(rows: pd.DataFrame, *claims: dict, **parts: object) -> list[Verdict]:
    return [found.verdict for found in judge(spec(claims=[*claims], **parts), {"rows": rows})]


SHOWN, WEAK = (0.1, 0.11, 0.12, 0.11), (0.1, 0.2, -0.1, 0.05)
CLOSE = (0.1, 0.05, 0.025, 0.0825)  # p = 0.03 by itself


@pytest.mark.parametrize(
    ("values", "rule", "limit", "verdict"),
    [
        (SHOWN, "above", 0, "holds"),
        (SHOWN, "above", 0.11, "not shown"),
        (SHOWN, "above", 0.2, "does not hold"),
        (SHOWN, "below", 0.2, "holds"),
        (SHOWN, "below", 0, "does not hold"),
        (WEAK, "above", 0, "not shown"),
        (SHOWN[:3], "above", 0, "not measurable"),
        ((0.1,), "above", 0, "not measurable"),
        ((), "above", 0, "not measurable"),
    ],
)
def test_a_claim_is_judged_by_its_whole_interval(values, rule, limit, verdict):
    rows = frame(x=values)
    assert verdicts(rows, claim(rule=rule, limit=limit)) == ([verdict] if values else [])
    assert verdicts(frame(seeds=1, x=values), claim(rule=rule, limit=limit)) == ([verdict] if values else []), "one seed"


def test_a_claim_holds_if_it_does_by_task_and_by_source():
    ours = ["movies", "products", "tweets", "bbc", "brands", "language", "drugs"]
    rows = frame(x=(0.2, 0.2, 0.2, 0.05, 0.04, 0.0, 0.03))
    together, alone = rows.assign(task=rows.task.map(dict(zip("abcdefg", ours, strict=True)))), rows
    assert verdicts(alone, claim()) == ["holds"] and verdicts(together, claim()) == ["not shown"]
    few = together[together.task.isin(["movies", "products", "tweets", "bbc"])]
    [told] = judge(spec(claims=[claim()]), {"rows": few})
    assert told.verdict == "not measurable" and told.figure.endswith("; no verdict on 4 tasks of 2 sources, fewer than 4")


@settings(max_examples=30, deadline=None)
@given(VALUES, VALUES)
def test_a_difference_is_of_common_cells_and_changes_its_sign_with_the_sides(one, other):
    sides = {"x": cells(one), "y": cells(other)}
    rows = pd.concat([side.rename("score").reset_index().assign(method=name) for name, side in sides.items()])
    there, back = judge(spec(claims=[claim(a="x", b="y"), claim(a="y", b="x")]), {"rows": rows})
    common = one.keys() & other.keys()
    assert there.value.units == back.value.units == len(common)
    if common:
        assert there.value.mean == pytest.approx(np.mean([one[task] - other[task] for task in common]), abs=1e-9)
        assert there.value.mean == pytest.approx(-back.value.mean, abs=1e-9)


def test_groups_are_compared_cell_by_cell():
    rows = frame(x=SHOWN, y=(0.3, 0.32, 0.31, 0.31))
    assert verdicts(rows, claim(a="y", b="x"), claim(a="x", b="y")) == ["holds", "does not hold"]
    [told] = judge(spec(claims=[claim(a="y", b="x")]), {"rows": rows})
    assert told.figure.startswith("31.0 against 11.0 %, +20.0 points (95 % interval")
    assert verdicts(rows, claim(value=["score", "other"], where="method == 'x'")) == ["holds"]


@pytest.mark.parametrize(
    ("lower", "told"),
    [
        ((0.1, 0.2, 0.3, 0.4), "a reduction of 50.0 % (50.0 to 50.0) of the mean ECE and a reduction of 50.0 % (50.0 to 50.0) on average over tasks (at least 40 % by both: holds)"),
        ((0.16, 0.32, 0.48, 0.64), "a reduction of 20.0 % (20.0 to 20.0) of the mean ECE and a reduction of 20.0 % (20.0 to 20.0) on average over tasks (at least 40 % by both: does not hold)"),
        # the first task is calibrated already: of the mean it hardly counts
        ((0.4, 0.16, 0.24, 0.32), "a reduction of 44.0 % (-12.8 to 100.8) of the mean ECE and a reduction of 20.0 % (-107.3 to 147.3) on average over tasks (at least 40 % by both: not shown)"),
    ],
)  # fmt: skip
def test_beside_a_difference_of_errors_stand_both_reductions_and_the_published_one_holds_by_both_or_not(lower, told):
    rows, errors = frame(y=(0.2, 0.4, 0.6, 0.8), x=lower), claim(a="y", b="x", reduction={"of": "ECE", "least": 0.4})
    [found] = judge(spec(claims=[errors]), {"rows": rows.assign(n=1000)})
    assert found.short.endswith(f"; {told}") and f"; {told}" in found.figure and found.n == "4 tasks"
    for unsure in (rows.assign(n=np.where(rows.task == "b", 999, 1000)), rows.drop(columns="n")):
        [found] = judge(spec(claims=[errors]), {"rows": unsure})
        assert found.short.endswith("(at least 40 %: no verdict, which would take 1,000 test rows a task)")


@pytest.mark.parametrize(("higher", "shown"), [
    ((0.2, 0.4, 0.6, 0.8), True),
    ((0.001, 0.0, 0.9, 0.002), False),  # which as well may be nothing
    ((0.2, 0.4, 0.6), False),
    ((0.2, 0.4), False),
    ((0.2,), False),
])  # fmt: skip
def test_a_ratio_is_told_where_its_denominator_is_clearly_above_0_and_of_few_tasks_neither_interval_nor_verdict(higher, shown):
    rows = frame(y=higher, x=[value / 3 for value in higher]).assign(n=1000)
    found = judge(spec(claims=[claim(a="y", b="x", reduction={"of": "ECE", "least": 0.4}), claim(a="y", b="x")]), {"rows": rows})
    assert ("a reduction of 66.7 %" in found[0].figure) == shown == ("mean ECE" in found[0].short)
    few = len(higher) < 4
    assert of_few_tasks(found) == few and all(("interval" in one.figure.replace("no interval", "")) != few for one in found)
    text = claims_text(found)
    assert ("With fewer than 4 tasks there is no interval" in text) == few == ("**" not in text)



@pytest.mark.parametrize(
    ("gain", "measurable"), [(SHOWN, True), (WEAK, False), ((-0.1, -0.11, -0.12), False), ((0.1,), False)]
)
def test_a_claim_is_not_measurable_where_its_control_is_not_shown_above_0(gain, measurable):
    rows = frame(x=SHOWN, gain=gain)
    controls = {"gains": {"data": "rows", "where": "method == 'gain'", "value": "score", "lacks": "no gain"}}
    [told] = judge(spec(claims=[claim(where="method == 'x'", given=["gains"])], controls=controls), {"rows": rows})
    assert (told.verdict == "holds", "no gain" in told.figure) == (measurable, not measurable)


def test_a_unit_on_both_sides_of_a_contrast_counts_on_each_and_is_left_out_of_both():
    sides = {"in": {"a": 0.8, "b": 0.6}, "out": {"b": 0.2, "c": 0.4, "d": 0.6}}
    rows = [{"region": side, "target": target, "seed": seed, "gain": gain} for side, of in sides.items() for target, gain in of.items() for seed in (1, 2)]
    about = {"value": "gain", "statistic": "contrast", "by": "region", "a": "in", "b": "out", "units": ["target"], "figure": "{a:.4f} {b:.4f}"}
    [told] = judge(spec(claims=[claim(**about)]), {"rows": pd.DataFrame(rows)})
    assert told.figure.startswith("0.7000 0.4000") and told.value.mean == pytest.approx(0.3) and told.value.tasks == 4
    # without a, b, c and d: 0.6 - 0.4, 0.8 - 0.5, 0.7 - 0.4 and 0.7 - 0.3
    pseudo = [4 * 0.3 - 3 * left for left in (0.2, 0.3, 0.3, 0.4)]
    assert told.value.error == pytest.approx(pd.Series(pseudo).std() / 4**0.5)
    alone = [row for row in rows if (row["region"], row["target"]) != ("in", "b")]
    [told] = judge(spec(claims=[claim(**about)]), {"rows": pd.DataFrame(alone)})
    assert told.value.error is None and "one side rests on a single task" in told.figure


def test_claims_of_one_family_are_corrected_together_and_those_of_others_are_not():
    rows = frame(x=CLOSE, y=WEAK)
    close, weak = (claim(where=f"method == {name!r}") for name in "xy")
    assert verdicts(rows, close, weak)[0] == "holds", "of no family"
    both = [one | {"family": "one"} for one in (close, weak)]
    assert verdicts(rows, *both)[0] == "not shown"
    assert verdicts(rows, claim(each=["method"])) == ["not shown"] * 2, "a claim that makes several is a family"
    [told, other] = judge(spec(claims=both), {"rows": rows})
    assert told.figure.endswith("exclude the limit, but not after Holm's correction for 2 claims")
    least, most = (f"{100 * one.value.smallest(0.05 / 2):.1f}" for one in (told, other))
    assert families([told, other]) == {"one": (2, f"{least} to {most} points")}
    assert families(judge(spec(claims=[close, claim(where="method == 'z'")]), {"rows": rows})).keys() == {"it is so"}


FIGURES = {
    "dots": {"y": "task", "hue": "method", "mean": "mean"},
    "lines": {"x": "seed", "hue": "method", "panel": "task", "mean": "all tasks"},
    "paths": {"x": "other", "hue": "method"},
    "heatmap": {"x": "task", "y": "method"},
}
ABOUT = {"data": "rows", "title": "What is seen", "caption": "How to read", "value": "score", "label": "score (%)"}


@pytest.mark.parametrize("kind", FIGURES)
def test_every_kind_of_figure_is_drawn_twice_with_the_same_bytes(kind, tmp_path):
    rows = frame(x=(0.5, 0.7, 0.9), y=(0.4, 0.6, 0.8))
    for name in ("one", "two"):
        for _, drawn in draw_all(spec(figures={"f": ABOUT | FIGURES[kind] | {"kind": kind}}), {"rows": rows}):
            drawn.savefig(tmp_path / f"{name}.png", metadata={"Software": None})
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


def test_whiskers_of_shares_end_at_0_and_100_and_dots_in_one_place_stand_apart():
    rows = frame(x=(0.1, 1.0, 1.0), y=(0.1, 0.4, 0.9))
    [(_, drawn)] = draw_all(spec(figures={"f": ABOUT | FIGURES["lines"] | {"kind": "lines"}}), {"rows": rows})
    ends = [end for bars in drawn.axes[0].containers for line in bars.lines[2] for path in line.get_segments() for end in path[:, 1]]
    assert ends and max(ends) == pytest.approx(100), "and 136 % without"
    [(_, drawn)] = draw_all(spec(figures={"f": ABOUT | FIGURES["dots"] | {"kind": "dots"}}), {"rows": rows})
    dots = [tuple(map(float, (*bars.lines[0].get_xdata(), *bars.lines[0].get_ydata()))) for bars in drawn.axes[0].containers]
    together = [dot for dot in dots if dot[0] == pytest.approx(10)]
    assert len(together) == 2 and len({height for _, height in together}) == 2
    assert {height for score, height in dots if score == pytest.approx(40)} == {2.0}, "one alone stays in its row"
    assert all(not bars.has_xerr for bars in drawn.axes[0].containers), "no whiskers in a legend that no dot has"


@pytest.mark.parametrize("third", [0.5, 0.505, 0.7])
def test_no_dot_hides_another_of_its_row(third):
    rows = pd.DataFrame([
        {"task": task, "seed": 13, "method": method, "score": score + 0.01 * place}
        for place, task in enumerate("abcdefghijkl") for method, score in (("x", 0.2), ("y", 0.5), ("z", third), ("w", 0.9))
    ])  # fmt: skip
    [(_, drawn)] = draw_all(spec(figures={"f": ABOUT | FIGURES["dots"] | {"kind": "dots"}}), {"rows": rows})
    drawn.draw_without_rendering()
    panel = drawn.axes[0]
    dots = [(bars.lines[0].get_markersize() / 72 * drawn.dpi, panel.transData.transform(bars.lines[0].get_xydata())[0]) for bars in panel.containers]
    apart = [max(abs(here - there)) / size for size, here in dots for other, there in dots if size == other and (here != there).any()]
    assert len(dots) == 52 and min(apart) > 0.9


@pytest.mark.parametrize(("columns", "numbers"), [(3, 27), (12, 0)])
def test_of_many_large_heat_maps_the_colours_are_shown_and_each_name_once(columns, numbers):
    tasks = [f"task{place}" for place in range(columns)]
    rows = pd.DataFrame([{"task": a, "other": b, "seed": 13, "kind": kind, "score": 0.5} for kind in "xyz" for a in tasks for b in tasks])
    figure = ABOUT | {"kind": "heatmap", "x": "task", "y": "other", "panel": "kind"}
    [(_, drawn)] = draw_all(spec(figures={"f": figure}), {"rows": rows})
    panels = [axes for axes in drawn.axes if axes.images]
    assert len(panels) == 3 and sum(len(panel.texts) for panel in panels) == numbers
    assert [panel.yaxis.get_tick_params()["labelleft"] for panel in panels] == [True, False, False]


def test_a_heat_map_of_nothing_but_its_centre_is_drawn():
    figure = ABOUT | FIGURES["heatmap"] | {"kind": "heatmap", "centre": 1}
    [(_, drawn)] = draw_all(spec(figures={"f": figure}), {"rows": frame(x=(1.0, 1.0, 1.0), y=(1.0, 1.0, 1.0))})
    assert drawn.axes[-1].get_ylim() == (99, 101)


TEXT = """title: Toy
sentence: "{fact:percent ±} % reached"
setting: a toy
names: {x: method x}
facts: {fact: {data: rows, number: score, over: [task]}}
headline: {score: {data: rows, number: score}}
tables: {t: {title: Scores, data: rows, by: [method], columns: {score: {percent: score}}}}
controls: {gains: {data: rows, value: score, lacks: no gain}}
claims: [{words: it is so, data: rows, value: score, a: x, given: [gains]}]
figures: {f: {kind: dots, data: rows, title: Seen, caption: Read, y: task, value: score, label: score}}
"""


MISTAKES = [
    ("percent: score}}}}", "percnt: score}}}}", "tables.t.columns.score.percnt: unknown"), ("percent: score}}}}", "percent: scor}}}}", "tables.t: .*'score'"),
    ("value: score, a: x", "value: score, a: xx", "claims.0: .*'x'"), ("given: [gains]", "given: [gain]", "claims.0: .*'gains'"),
    ("data: rows, number", "data: row, number", "headline.score: .*'rows'"), ("{fact:percent ±}", "{facts:percent}", "sentence: '{facts:percent}"),
    ("kind: dots", "kind: dot", "figures.f.kind: 'dot' .*'dots'"), ("y: task", "y: tasks", "figures.f: .*'task'"),
    ("rows, value: score, lacks", "rows, where: task = 'a', value: score, lacks", "controls.gains: where"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "problem"), MISTAKES)
def test_a_name_that_is_not_there_is_one_line_with_file_key_and_the_nearest(old, new, problem):
    assert old in TEXT
    file = Path("report.yaml")
    file.write_text(TEXT.replace(old, new))
    with pytest.raises(SpecError) as raised:
        made = read_spec(file)
        frames = {"rows": frame(x=(0.5, 0.7), y=(0.1, 0.2))}
        markdown(made, frames), headline(made, frames), [*draw_all(made, frames)]
    assert re.match(f"report.yaml: {problem}", str(raised.value)) and "\n" not in str(raised.value)


def test_a_mean_over_tasks_is_one_of_tasks_however_many_seeds_each_has():
    rows = pd.DataFrame({"task": ["a", "a", "a", "b"], "seed": [1, 2, 3, 1], "score": [0.0, 0.0, 0.0, 1.0]})
    assert aggregate(Cell(percent="score", over=["task"]), rows).mean == 0.5
    assert aggregate(Cell(percent="score"), rows).mean == 0.25, "control"
