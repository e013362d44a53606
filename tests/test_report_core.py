"""The parts that all reports share: what is read, what a table says and stores, and how claims are judged."""

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy.stats import t, ttest_1samp

from stages.lib.errors import DataError
from stages.lib.io import read_json, write_json
from stages.lib.report import publish
from stages.lib.report.claims import Finding, Statement, above_baselines, judge, read_statements, short_of
from stages.lib.report.differences import other_settings, plain, told
from stages.lib.report.document import HOW_JUDGED, Claim, Report, Row, Verdict, read_report, write_report
from stages.lib.report.document import Table as Printed
from stages.lib.report.format import percent, points, words
from stages.lib.report.line_styles import line_styles
from stages.lib.report.load import Records, frame_of, grid, in_order, published, require_files
from stages.lib.report.publish import to_markdown, to_terminal
from stages.lib.report.stats import Estimate, clean, estimate, holm, known, mean_of, paired, ranked
from stages.lib.report.table import Column, Line, Table, by, count, number, share, shown, stored, values_in
from stages.lib.settings import Params
from tests.pico import graft_settings, model_settings

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


def rows_of(made: Records) -> list[dict]:
    return made.rows(lambda cell, record: ({**cell, **row} for row in record["rows"]))


def test_rows_stand_in_the_order_of_the_cells_and_not_of_the_folders():
    frame = frame_of(rows_of(records(("graft", "full"))), ["method", "task", "accuracy"])
    assert [*frame.method] == ["graft", "graft", "full", "full"] and [*frame.accuracy] == [0.0, 0.1, 0.2, 0.3]
    assert rows_of(records(())) == [], "a stage that is off has no rows"
    assert [*frame_of([], ["method"]).columns] == ["method"]
    assert [*frame_of([{"a": 1, "b": 2}], ["b"], more=True).columns] == ["b", "a"]


@pytest.mark.parametrize("content", [[], {}, {"stage": "other", "rows": []}, {"stage": "edit"}])
def test_a_file_that_is_no_record_is_named_with_what_makes_it(content):
    made = records()
    write_json(made.file(made.cells[0]), content)
    with pytest.raises(DataError, match=rf"metrics/edit/full/13/a.json: not a record of edit.*; {MADE_BY}"):
        rows_of(made)


def test_missing_files_are_named_together_and_not_more_than_ten():
    made = records(tasks=tuple("abcdef"))
    require_files("make toy", made)
    made.file(made.cells[0]).unlink()
    with pytest.raises(DataError) as one:
        require_files("make toy", made)
    assert str(one.value) == f"metrics/edit/full/13/a.json: not there; {MADE_BY}"
    for cell in made.cells[1:]:
        made.file(cell).unlink()
    with pytest.raises(DataError) as many:
        require_files("make toy", made)
    assert str(many.value).count("not there") == 10
    assert str(many.value).endswith("and 2 more files; `make toy` makes them all")
    main = Records("", "mask", "masks/{task}/{seed}.safetensors", [{"task": "a", "seed": 1}], item="{task}-{seed}")
    assert main.made_by(main.cells[0]) == "`dvc repro mask@a-1` makes it"


def test_published_values_are_fractions_and_names_stand_in_one_order():
    Path("paper.yaml").write_text("table: {full: {accuracy: [90.5, 0.4], ece: 5}}\n")
    assert published(Path("paper.yaml")) == {"table": {"full": {"accuracy": (0.905, 0.004), "ece": 0.05}}}
    assert in_order(["x", "b", "a", "b"], ["a", "b", "c"]) == ["a", "b", "x"]


# --- Statistics ------------------------------------------------------------------------------------------------


def cells(values: dict, seeds: int = 2, apart: float = 0.1, names: tuple[str, ...] = ("task",)) -> pd.Series:
    """Values of tasks, or of pairs of tasks, in cells of so many seeds, which lie around it."""
    around = np.linspace(-apart, apart, seeds) if seeds > 1 else [0.0]
    units = {unit if isinstance(unit, tuple) else (unit,): value for unit, value in values.items()}
    rows = {(*unit, seed): value + shift for unit, value in units.items() for seed, shift in enumerate(around)}
    return pd.Series([*rows.values()], pd.MultiIndex.from_tuples(rows, names=[*names, "seed"]), dtype=float)


BY_TASK = {"a": 0.1, "b": 0.3, "c": 0.2, "d": 0.6}
BY_PAIR = {("a", "b"): 0.1, ("a", "c"): 0.2, ("b", "c"): 0.6}
PAIR = ("first", "second")


def test_an_estimate_is_the_t_interval_over_tasks_and_seeds_of_a_task_add_nothing():
    value, known = estimate(cells(BY_TASK)), ttest_1samp([*BY_TASK.values()], 0.05)
    assert (value.n, value.tasks, value.seeds, value.positive) == (8, 4, 2, 4)
    assert (value.low, value.high) == pytest.approx((*known.confidence_interval(0.95),))
    assert value.p_value(0.05) == pytest.approx(known.pvalue) and value.mean == pytest.approx(0.3)
    assert value.sd == pytest.approx(np.std([*BY_TASK.values()], ddof=1))
    assert estimate(cells({**BY_TASK, "rounded": 1e-12})).positive == 4
    alike = estimate(cells(dict.fromkeys("abc", 0.1)))
    assert (alike.p_value(0.1), alike.p_value()) == (1, 0), "without a spread"
    twice = pd.concat([cells(BY_TASK), cells(BY_TASK).rename(lambda seed: seed + 2, level="seed")])
    assert (estimate(twice).low, estimate(twice).high) == pytest.approx((value.low, value.high))
    alone = ttest_1samp(twice, 0).confidence_interval(0.95)
    assert alone.high - alone.low < 0.7 * (value.high - value.low), "the control: cells as the sample tell too much"


def test_pairs_of_tasks_are_jackknifed_by_task():
    value = estimate(cells(BY_PAIR, names=PAIR), PAIR)
    # 3 * 0.3 - 2 * (the other pair): -0.3, 0.5 and 0.7
    assert value.error == pytest.approx(np.std([-0.3, 0.5, 0.7], ddof=1) / 3**0.5)
    assert (value.tasks, value.units) == (3, 3)
    more = estimate(cells({**BY_PAIR, ("a", "d"): 0.4, ("b", "d"): 0.3, ("c", "d"): 0.5}, names=PAIR), PAIR)
    for end in (more.mean - more.low, more.high - more.mean):
        assert end == pytest.approx(t.ppf(0.975, 3) * more.error), "of four tasks, not of six pairs"
    assert more.p_value(more.high) == pytest.approx(0.05)
    assert estimate(cells({("a", "b"): 0.1}, names=PAIR), PAIR).low is None, "one pair has no interval"
    assert value.error > 1.9 * value.sd / 3**0.5, "the control: pairs are not independent"
    apart = {("a", "b"): 0.1, ("c", "d"): 0.2, ("e", "f"): 0.6}
    pairs, known = estimate(cells(apart, names=PAIR), PAIR), ttest_1samp([*apart.values()], 0.05)
    assert (pairs.low, pairs.high) == pytest.approx((*known.confidence_interval(0.95),)), (
        "which share no task, are the sample"
    )
    assert pairs.p_value(0.05) == pytest.approx(known.pvalue) and pairs.sample() == "3 pairs of 6 tasks, 2 seeds"
    both = pd.DataFrame({"one": cells(BY_TASK), "twice": 2 * cells(BY_TASK)})
    ratio = estimate(both, statistic=lambda units: units.one.mean() / units.twice.mean())
    assert (ratio.mean, ratio.error, ratio.positive, ratio.sd) == (pytest.approx(0.5), pytest.approx(0), None, None)
    assert estimate(both, statistic=lambda units: 0.5 if len(units) == 4 else np.nan).error is None, (
        "not of parts of it"
    )


@pytest.mark.parametrize(
    "values, words",
    [
        (cells({"a": 0.1}), "+10.0 points (no interval; 1 task, 2 seeds; above 0 in 1 of 1)"),
        (cells(BY_TASK, seeds=1), "+30.0 points (no interval; 4 tasks, 1 seed; above 0 in 4 of 4)"),
        (cells({"a": 0.1, "b": 0.1 + 1e-12}), "+10.0 points (no interval; 2 tasks, 2 seeds; above 0 in 2 of 2)"),
        (cells({}), "no common cells"),
        (cells({"a": 0.1, "b": 0.2}), "+15.0 points (95 % interval -48.5 to +78.5; 2 tasks, 2 seeds; above 0 in 2 of 2)"),
    ],
)  # fmt: skip
def test_one_task_or_seed_and_two_equal_tasks_have_no_interval(values, words):
    value = estimate(values)
    assert value.words() == words and (value.p_value() is None) == (value.low is None)


def test_tasks_with_fewer_seeds_than_others_are_told_in_words_and_numbers():
    value = estimate(pd.concat([cells(BY_TASK, seeds=3), cells({"e": 0.2})]))
    assert value.sample() == "5 tasks, 2 to 3 seeds" and "; 5 tasks, 2 to 3 seeds; above" in value.words()
    assert (value.numbers()["seeds"], value.numbers()["fewest_seeds"]) == (3, 2)
    alike = estimate(cells(BY_TASK, seeds=3))
    assert alike.sample() == "4 tasks, 3 seeds" and "fewest_seeds" not in alike.numbers(), "the control"
    pairs = pd.concat([cells(BY_PAIR, seeds=2, names=PAIR), cells({("b", "a"): 0.3}, seeds=1, names=PAIR)])
    assert estimate(pairs, PAIR).sample() == "3 tasks, 1 to 2 seeds"


def test_differences_are_paired_by_cell():
    first = cells({"a": 0.5, "b": 0.7, "c": 0.9}, seeds=1)
    second = cells({"b": 0.6, "a": 0.2}, seeds=1)
    value = paired(first, second)
    assert (value.n, value.positive) == (2, 2) and value.mean == pytest.approx(0.2)
    assert paired(second, first).mean == pytest.approx(-0.2)
    assert paired(first, second[:0]).words() == "no common cells"
    assert [*ranked({"none": first[:0], "low": second, "high": first})] == ["high", "low", "none"]


@pytest.mark.parametrize(
    "p_values, corrected",
    [([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]), ([0.04], [0.04]), ([0.6, 0.7], [1, 1]), ([], [])],
)
def test_holms_correction_is_that_of_hand(p_values, corrected):
    assert holm(p_values) == pytest.approx(corrected)


def test_a_share_that_is_rounded_to_zero_has_no_sign_and_a_difference_keeps_it():
    assert [percent(share) for share in (-0.0004, 0.0004, -0.004)] == ["0.0", "0.0", "-0.4"]
    assert (points(-0.0004), points(-1e-17)) == ("-0.0", "+0.0"), "on this side of zero, and at it"


@pytest.mark.parametrize("name, told", [("finetuned", "fine-tuned"), ("movement_grafted", "movement grafted"), ("ewc", "EWC"),
    ("adamw_l1", "AdamW with l1"), ("wise_ft", "WiSE-FT"), ("pfeiffer_16", "Pfeiffer et al. 16")])  # fmt: skip
def test_names_are_written_as_people_know_them(name, told):
    assert words(name) == told


def test_a_localizer_looks_the_same_whichever_others_are_drawn():
    few, many = line_styles(["movement", "random"]), line_styles(["learned", "a", "movement", *"bcdefgh"])
    assert few["movement"] == many["movement"] and many["a"] not in (many["learned"], many["movement"])


def test_numbers_are_rounded_and_undefined_ones_left_out():
    values = {"a": 0.12345678, "b": float("nan"), "c": -0.0, "d": {"n": np.int64(3)}}
    assert clean(values) == {"a": 0.123457, "c": 0.0, "d": {"n": 3}}
    assert str(clean(-1e-9)) == "0.0"
    none, one = mean_of(np.array([np.nan])), mean_of(np.array([0.5]))
    assert known({"x": {"none": none}, "y": {"none": none, "one": one}}) == {"y": {"one": {"n": 1, "mean": 0.5}}}


# --- Tables ----------------------------------------------------------------------------------------------------


FRAME = pd.DataFrame(
    {"method": [*"bbaaa"], "task": [*"xyxyz"], "alpha": [1, 0.5, 1, 1, 1], "score": [0.5, 0.7, 0.2, 0.4, None]}
).assign(bytes=lambda frame: frame.method.map({"a": 1024, "b": 2048}))


def table(**changes) -> Table:
    columns = [count("task"), Column("alpha", "alpha", values_in("g")), share("score", "score"), share("not there", "other"),
               number("KiB", "bytes", ".1f", 1024), share("", lambda rows: rows.score * 2, "twice")]  # fmt: skip
    paper = {"a": {"score": (0.25, 0.01)}}
    own = {"lines": [Line("all"), *by(FRAME, "method", str.upper, sorted, paper)], "name": "toy", "stored": ("twice", "score")}  # fmt: skip
    return Table("Toy", ["method"], columns, **(own | changes))


def test_text_and_numbers_are_two_views_of_the_same_means():
    text, numbers = table().text(), table().numbers()
    # a column without a title is only stored
    assert text.header == ["method", "n", "alpha", "score", "not there", "KiB"]
    assert [(row.kind, row.cells) for row in text.rows] == [
        ("group", ["all"]),
        ("ours", ["A", "3", "1", "30.0 (14.1)", "", "1.0"]),
        ("paper", ["  paper", "", "", "25.0 (1.0)", "", ""]),
        ("ours", ["B", "2", "0.5, 1", "60.0 (14.1)", "", "2.0"]),
    ]
    assert [*numbers] == ["b", "a"], "as they occur, and not as they are shown"
    assert [*numbers["a"]] == ["twice", "score"] and numbers["a"]["score"]["n"] == 2
    assert numbers["b"]["twice"]["mean"] == pytest.approx(2 * numbers["b"]["score"]["mean"]) == pytest.approx(1.2)


def test_lines_without_a_key_are_only_shown_and_nested_keys_are_folders():
    lines = [Line("mean", FRAME, kind="average"), Line("b", FRAME[:2], ("deep", "b")), Line("none", FRAME[:0], "none")]
    assert [row.kind for row in table(lines=lines).text().rows] == ["average", "ours", "ours"]
    assert [*table(lines=lines).numbers()] == ["deep"] and [*table(lines=lines).numbers()["deep"]] == ["b"]


def test_tables_are_shown_with_a_title_and_stored_with_a_name():
    two = [table(name=""), table(lines=[])]
    assert [made.title for made in shown(two)] == ["Toy"] and [*stored(two)] == ["toy"]


# --- Claims ----------------------------------------------------------------------------------------------------


def over(*values: float) -> Estimate:
    """One value a task, of two seeds."""
    return estimate(cells(dict(zip("abcdefgh", values, strict=False))))


SHOWN, WEAK = over(0.1, 0.11, 0.12), over(0.1, 0.2, -0.1)
# p = 0.03 by itself
CLOSE = over(0.1, 0.05, 0.025, 0.0825)


def measures(**findings: Finding) -> dict:
    """Measures that give these whatever the data."""
    return {name: lambda data, found=found: found for name, found in findings.items()}


def judged(value, rule: str = "above", limit: float | str = 0.0, settings=None, **controls: Finding) -> Claim:
    """The verdict on one value, given these controls."""
    row = Statement("it is so", "measure", rule=rule, limit=limit, figure="seen", given=[*controls])
    [claim] = judge([row], measures(measure=Finding(value), **controls), None, "toy", settings)
    return claim


@pytest.mark.parametrize(
    "value, rule, limit, verdict",
    [
        (SHOWN, "above", 0, Verdict.HOLDS),
        (SHOWN, "above", 0.1, Verdict.UNCLEAR),
        (SHOWN, "above", 0.2, Verdict.FAILS),
        (SHOWN, "below", 0.2, Verdict.HOLDS),
        (SHOWN, "below", 0, Verdict.FAILS),
        (WEAK, "above", 0, Verdict.UNCLEAR),
        (over(0.1), "above", 0, Verdict.OPEN),
        (estimate(cells(BY_TASK, seeds=1)), "above", 0, Verdict.OPEN),
        (estimate(cells({})), "above", 0, Verdict.OPEN),
        (0.96, "above", 0.95, Verdict.HOLDS),
        (0.96, "below", 0.95, Verdict.FAILS),
        (0.95, "above", 0.95, Verdict.FAILS),
        (True, "above", 0, Verdict.HOLDS),
        (False, "above", 0, Verdict.FAILS),
        (None, "above", 0, Verdict.OPEN),
    ],
)
def test_a_claim_is_judged_by_its_whole_interval_or_by_its_exact_number(value, rule, limit, verdict):
    assert judged(value, rule, limit).verdict is verdict


def test_a_claim_says_with_what_it_was_measured_and_limits_are_numbers_or_names_of_settings():
    for least, verdict in ((0.08, Verdict.HOLDS), (0.2, Verdict.FAILS)):
        settings = Params(toy=Params(least=least))
        assert judged(SHOWN, limit="toy.least", settings=settings).verdict is verdict
    assert judged(SHOWN).here == "toy; 3 tasks, 2 seeds" and judged(True).here == "toy"
    assert judged(estimate(cells({}))).here == "toy", "no cell, so no number of tasks"
    rows = [Statement("it is so", "measure", limit=limit, figure="{difference}") for limit in (0.0, -0.03)]
    told = ["above 0 in" in claim.figure for claim in judge(rows, measures(measure=Finding(SHOWN)), None)]
    assert told == [True, False], "a count of tasks above 0 is one by the limit 0 alone"


@pytest.mark.parametrize(
    "control, measurable", [(SHOWN, True), (WEAK, False), (over(-0.1, -0.11, -0.12), False), (over(0.1), False), (estimate(cells({})), False)]
)  # fmt: skip
def test_a_claim_is_not_measurable_where_one_of_its_controls_is_not_shown_above_0(control, measurable):
    held = Finding(SHOWN), Finding(control, lacks="not measurable without a gain")
    claim = judged(SHOWN, first=held[0], second=held[1])
    assert (claim.verdict is Verdict.HOLDS, "without a gain" in claim.figure) == (measurable, not measurable)
    exact = judged(True, first=held[0], second=held[1]).verdict
    assert exact is (Verdict.HOLDS if measurable else Verdict.OPEN)


def test_a_control_is_above_the_better_baseline_of_each_cell_that_the_pretrained_model_has():
    trained, pretrained = cells(dict.fromkeys("abc", 0.9)), cells({"a": 0.5, "b": 0.6})
    value = above_baselines(trained, pretrained, cells({"a": 0.7, "c": 0.8}), "training").value
    assert (value.n, value.mean) == (4, pytest.approx((0.2 + 0.3) / 2))
    assert above_baselines(trained, pretrained, None, "training").value.mean == pytest.approx((0.4 + 0.3) / 2)


def test_a_task_whose_mean_is_just_the_limit_is_an_exception():
    assert short_of(cells({"a": 0.5, "b": 0.75}, apart=0.25))(0.5) == ["a 50.0 %"]


def test_claims_of_one_family_are_corrected_together_and_those_of_others_are_not():
    found = measures(close=CLOSE, weak=WEAK, void=Finding(CLOSE, void="; but nothing"))

    def first(*families: str) -> Claim:
        rows = [Statement("it is so", name, family=family) for name, family in zip(found, families, strict=False)]
        return judge(rows, found, None)[0]

    assert 0.025 < CLOSE.p_value() < 0.05 and first("one", "other").verdict is Verdict.HOLDS
    assert first("", "").verdict is Verdict.HOLDS, "of no family"
    assert first("one", "one").verdict is Verdict.UNCLEAR
    assert first("one", "one").figure.endswith("excludes the limit, but not after Holm's correction for 2 claims")
    assert first("one", "other", "one").verdict is Verdict.HOLDS, "what is void is no claim to correct for"
    claims = judge([Statement("it is so", "several")], measures(several=[Finding(CLOSE), Finding(WEAK)]), None)
    assert [claim.verdict for claim in claims] == [Verdict.UNCLEAR] * 2, "a row that makes several is a family"


def test_words_have_the_figures_of_the_finding_and_the_limit_stands_once():
    Path("claims.yaml").write_text(
        "- {words: '{name} keeps {limit:share} %', measure: kept, of: [x], limit: 0.08, paper: {says: more}, "
        "figure: '{mean:percent2} %, {percent} of {n} at {size:size}'}\n"
    )

    def kept(data, name):
        fields = {"name": name, "size": 0.0001}
        yield Finding(data, fields, lambda limit: [f"{share}" for share in (0.07, 0.1) if share < limit], size="0.01 %")
        yield Finding(data, fields, void="; but nothing")

    first, second = judge(read_statements(Path("claims.yaml")), {"kept": kept}, SHOWN)
    assert (first.text, first.verdict, first.exceptions) == ("x keeps 8 %", Verdict.HOLDS, ["0.07"])
    assert first.figure == f"11.00 %, {SHOWN.words('%')} of 6 at 0.010 %" and str(first.paper) == "more"
    assert first.here == "0.01 %; 3 tasks, 2 seeds"
    assert second.verdict is Verdict.OPEN and second.figure.endswith("at 0.010 %; but nothing")
    assert judge(read_statements(Path("claims.yaml")), {"kept": lambda data, name: []}, None) == []


@pytest.mark.parametrize(
    "row, problem",
    [("{words: a}", "0.measure"), ("{words: a, measure: b, rules: above}", "0.rules"), ("{words: a, measure: b, rule: at_least}", "0.rule")],
)  # fmt: skip
def test_a_row_that_is_no_claim_is_named(row, problem):
    Path("claims.yaml").write_text(f"- {row}\n")
    with pytest.raises(DataError, match=rf"claims.yaml: {problem}"):
        read_statements(Path("claims.yaml"))


# --- Settings that it was made under ----------------------------------------------------------------------------


def test_other_settings_than_those_of_a_report_are_named_and_no_others_matter():
    values = {"seeds": [13], "graft": graft_settings(), "model": model_settings("prompt"), "ood": {"sets": {"a": ["b"]}}}  # fmt: skip
    made = plain(Params(seeds=[13], graft=Params(region=["layers"]), model=values["model"], ood=values["ood"]))
    made = json.loads(json.dumps(made))
    assert other_settings(made, values) == []
    assert other_settings(made, values | {"graft": graft_settings(sparsity=0.5), "more": 1}) == []
    mine = values | {"model": values["model"].model_copy(update={"name": "mine"}), "seeds": [13, 21]}
    assert told(other_settings(made, mine)) == "seeds [13], now [13, 21]; model.name pico, now mine"
    assert told(other_settings(made, values | {"ood": {"sets": {}}})) == "ood.sets.a [b], now none"
    assert other_settings({}, values) and other_settings({"gone": 1}, values)


# --- The report ------------------------------------------------------------------------------------------------

REPORT = Report(
    "Toy", "1 task", [Printed("T", ["task_name", "n"], [Row("ours", ["a_b", "1"]), Row("paper", ["  paper"])], ["a -> b"])],
    ["a fact"], [Claim("it is so", Verdict.UNCLEAR, "+0.1", ["a_b"])],
)  # fmt: skip


def test_a_report_is_read_as_it_was_written_and_a_damaged_one_is_named():
    write_report(Path("toy.report.json"), REPORT)
    assert read_report(Path("toy.report.json")) == REPORT
    write_json(Path("toy.report.json"), {"title": "Toy"})
    with pytest.raises(DataError, match=r"toy\.report\.json: not a stored report"):
        read_report(Path("toy.report.json"))


def test_markdown_and_terminal_say_the_same():
    console = Console(file=io.StringIO(), width=30)
    console.print(to_terminal(REPORT))
    shown, text = console.file.getvalue(), to_markdown(REPORT)
    # what markdown takes for a mark is escaped
    assert "| a\\_b | 1 |" in text and "| *paper* |  |" in text and "- a → b" in text
    assert "- **not shown**: it is so: +0.1\n  - not so in: a\\_b\n" in text and HOW_JUDGED in text
    assert max(map(len, shown.splitlines())) <= 30 and "not so in: a_b" in shown


def test_publishing_writes_all_files_and_rounds_what_is_not_exact(capsys):
    some = {"score": [0.12345678], "small": [1.23456e-7], "sparsity": [1.2345678e-5], "task": ["a"]}
    frames = {"some": pd.DataFrame(some), "none": pd.DataFrame()}
    settings = Params(seeds=(13,), graft=Params(region=["layers"]), model=model_settings("prompt"))
    draw = publish.plot_data(frames), publish.figures({}, None)
    numbers = {"a": {"mean": 0.12345678}, "b": {}}
    publish.publish("toy", REPORT, numbers, numbers, *draw, settings=settings)
    stored = read_report(Path("metrics/toy.report.json"))
    assert [*stored.settings] == ["seeds", "graft.region", "model"] and stored.settings["model"]["mode"] == "prompt"
    written = {path.name for path in Path("metrics").iterdir()}
    assert written == {"toy.md", "toy.json", "toy.details.json", "toy.report.json"}
    assert read_json(Path("metrics/toy.json"))["a"] == {"mean": 0.1235}, "what is compared between runs"
    assert read_json(Path("metrics/toy.details.json")) == {"a": {"mean": 0.123457}}
    assert [path.name for path in Path("plots/toy").iterdir()] == ["some.csv"]
    assert Path("plots/toy/some.csv").read_text() == "score,small,sparsity,task\n0.1235,1.235e-07,1.2345678e-05,a\n"
    assert "it is so" in capsys.readouterr().out
