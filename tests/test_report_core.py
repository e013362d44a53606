"""The parts that all reports share: what is read, what a table says and stores, and how claims are judged."""

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from stages.lib.errors import DataError
from stages.lib.io import read_json, write_json
from stages.lib.report import publish
from stages.lib.report.claims import Finding, Statement, judge, read_statements
from stages.lib.report.differences import other_settings, plain, told
from stages.lib.report.document import Claim, Report, Row, Verdict, read_report, write_report
from stages.lib.report.document import Table as Printed
from stages.lib.report.load import Records, frame_of, grid, in_order, published, require_files
from stages.lib.report.markdown import to_markdown
from stages.lib.report.stats import Estimate, clean, compared, known, mean_of, paired, t_quantile
from stages.lib.report.table import Column, Line, Table, by, count, number, share, shown, stored, values_in
from stages.lib.report.terminal import to_terminal
from stages.lib.settings import Params
from tests.pico import graft_settings, model_settings

MADE_BY = "`dvc repro stages/toy/dvc.yaml:edit@full-13` makes it"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# --- Records ---------------------------------------------------------------------------------------------------


def records(methods: tuple[str, ...] = ("full", "graft"), tasks: tuple[str, ...] = ("a", "b")) -> Records:
    """Cells by seed, whose files lie by method; each is written with its accuracy."""
    made = Records(
        "toy", "edit", "metrics/edit/{method}/{seed}/{task}.json", grid(seed=[13], method=methods, task=tasks)
    )
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
    assert str(many.value).count("not there") == 10 and str(many.value).endswith(
        "and 2 more files; `make toy` makes them all"
    )
    main = Records("", "mask", "masks/{task}/{seed}.safetensors", [{"task": "a", "seed": 1}], item="{task}-{seed}")
    assert main.made_by(main.cells[0]) == "`dvc repro mask@a-1` makes it"


def test_published_values_are_fractions_and_names_stand_in_one_order():
    Path("paper.yaml").write_text("table: {full: {accuracy: [90.5, 0.4], ece: 5}}\n")
    assert published(Path("paper.yaml")) == {"table": {"full": {"accuracy": (0.905, 0.004), "ece": 0.05}}}
    assert in_order(["x", "b", "a", "b"], ["a", "b", "c"]) == ["a", "b", "x"]


# --- Statistics ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("freedom, value", [(1, 12.706), (2, 4.303), (5, 2.571), (10, 2.228), (1000, 1.962)])
def test_t_quantiles_are_those_of_the_tables(freedom, value):
    assert t_quantile(freedom) == pytest.approx(value, abs=5e-4)


def test_a_difference_is_paired_by_cell_and_has_an_interval_from_two_different_cells_on():
    frame = pd.DataFrame({"method": ["x"] * 3 + ["y"] * 2, "task": [*"abc", *"ba"], "score": [0.5, 0.7, 0.9, 0.6, 0.2]})
    value = compared(frame, "score", ("x", "y"), ["task"])
    assert (value.n, value.positive) == (2, 2) and value.mean == pytest.approx(0.2) and value.low < 0 < value.high
    assert compared(frame, "score", ("y", "x"), ["task"]).mean == pytest.approx(-0.2)
    same = paired(pd.Series([0.3, 0.4]), pd.Series([0.2, 0.3]))
    assert (same.n, same.low) == (2, None), "two that are the same tell too much"
    assert compared(frame, "score", ("x", "z"), ["task"]).words() == "no common cells"


def test_numbers_are_rounded_and_undefined_ones_left_out():
    assert clean({"a": 0.12345678, "b": float("nan"), "c": -0.0, "d": {"n": np.int64(3)}}) == {
        "a": 0.123457,
        "c": 0.0,
        "d": {"n": 3},
    }
    none, one = mean_of(np.array([np.nan])), mean_of(np.array([0.5]))
    assert known({"x": {"none": none}, "y": {"none": none, "one": one}}) == {"y": {"one": {"n": 1, "mean": 0.5}}}


# --- Tables ----------------------------------------------------------------------------------------------------


FRAME = pd.DataFrame(
    {
        "method": ["b", "b", "a", "a", "a"],
        "task": [*"xyxyz"],
        "alpha": [1, 0.5, 1, 1, 1],
        "score": [0.5, 0.7, 0.2, 0.4, None],
        "bytes": [2048, 2048, 1024, 1024, 1024],
    }
)


def table(**changes) -> Table:
    columns = [count("task"), Column("alpha", "alpha", values_in("g")), share("score", "score"), share("not there", "other"),
               number("KiB", "bytes", ".1f", 1024), share("", lambda rows: rows.score * 2, "twice")]  # fmt: skip
    paper = {"a": {"score": (0.25, 0.01)}}
    own = {
        "lines": [Line("all"), *by(FRAME, "method", str.upper, sorted, paper)],
        "name": "toy",
        "stored": ("twice", "score"),
    }
    return Table("Toy", ["method"], columns, **(own | changes))


def test_text_and_numbers_are_two_views_of_the_same_means():
    text, numbers = table().text(), table().numbers()
    assert text.header == ["method", "n", "alpha", "score", "not there", "KiB"], (
        "a column without a title is only stored"
    )
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


def difference(mean: float, low: float | None, high: float | None) -> Estimate:
    return Estimate(4, mean, 0.1, low, high, 3)


@pytest.mark.parametrize(
    "value, rule, limit, verdict",
    [
        (difference(0.1, 0.05, 0.15), "above", 0, Verdict.HOLDS),
        (difference(0.1, 0.05, 0.15), "above", 0.06, Verdict.UNCLEAR),
        (difference(0.1, 0.05, 0.15), "above", 0.2, Verdict.FAILS),
        (difference(0.1, 0.05, 0.15), "below", 0.2, Verdict.HOLDS),
        (difference(0.1, 0.05, 0.15), "below", 0, Verdict.FAILS),
        (difference(0.1, None, None), "above", 0, Verdict.OPEN),
        (difference(0.1, -0.05, 0.15), "at_least", 0.1, Verdict.HOLDS),
        (mean_of(np.array([0.9, 0.98])), "at_least", 0.95, Verdict.FAILS),
        (mean_of(np.array([])), "at_least", 0.95, Verdict.OPEN),
        (0.96, "at_least", 0.95, Verdict.HOLDS),
        (0.96, "below", 0.95, Verdict.FAILS),
        (True, "above", 0, Verdict.HOLDS),
        (False, "above", 0, Verdict.FAILS),
        (None, "above", 0, Verdict.OPEN),
    ],
)
def test_a_claim_is_judged_by_its_whole_interval_or_by_its_number(value, rule, limit, verdict):
    statement = Statement("it is so", "measure", rule=rule, limit=limit, figure="seen")
    [claim] = judge([statement], {"measure": lambda data: Finding(value)}, None)
    assert claim.verdict is verdict


def test_a_difference_without_cells_is_left_out_or_not_measurable():
    none = {"measure": lambda data: paired(pd.Series(dtype=float), pd.Series(dtype=float))}
    assert judge([Statement("it is so", "measure")], none, None) == []
    [claim] = judge([Statement("it is so", "measure")], none, None, empty=True)
    assert (claim.verdict, claim.figure) == (Verdict.OPEN, "no common cells")


def test_words_have_the_figures_of_the_finding_and_the_limit_stands_once():
    Path("claims.yaml").write_text(
        "- {words: '{name} keeps {limit:percent0} %', measure: kept, of: [x], rule: at_least, limit: toy.least, "
        "figure: '{mean:percent2} % of {n} at {size:size}'}\n"
    )

    class Settings:
        class toy:
            least = 0.9

    def kept(data, name):
        yield Finding(
            mean_of(data), {"name": name, "size": 0.0001}, lambda limit: [f"{share}" for share in data if share < limit]
        )
        yield Finding(mean_of(data), {"name": "void", "size": 1}, void="; but nothing")

    first, second = judge(read_statements(Path("claims.yaml")), {"kept": kept}, np.array([0.8, 1.0]), Settings)
    assert first == Claim("x keeps 90 %", Verdict.HOLDS, "90.00 % of 2 at 0.010 %", ["0.8"])
    assert (second.verdict, second.figure) == (Verdict.OPEN, "90.00 % of 2 at 100.00 %; but nothing")
    assert judge(read_statements(Path("claims.yaml")), {"kept": lambda data, name: []}, None, Settings) == []


@pytest.mark.parametrize(
    "row, problem", [("{words: a}", "0.measure"), ("{words: a, measure: b, rules: above}", "0.rules")]
)
def test_a_row_that_is_no_claim_is_named(row, problem):
    Path("claims.yaml").write_text(f"- {row}\n")
    with pytest.raises(DataError, match=rf"claims.yaml: {problem}"):
        read_statements(Path("claims.yaml"))


# --- Settings that it was made under ----------------------------------------------------------------------------


def test_other_settings_than_those_of_a_report_are_named_and_no_others_matter():
    values = {
        "seeds": [13],
        "graft": graft_settings(),
        "model": model_settings("prompt"),
        "ood": {"sets": {"a": ["b"]}},
    }
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
    assert "| a\\_b | 1 |" in text and "| *paper* |  |" in text and "- a → b" in text, (
        "what markdown takes for a mark is escaped"
    )
    assert "- **not shown**: it is so: +0.1\n  - not so in: a\\_b\n" in text and REPORT.how_judged in text
    assert max(map(len, shown.splitlines())) <= 30 and "not so in: a_b" in shown


def test_publishing_writes_all_files_and_rounds_what_is_not_exact(capsys):
    frames = {
        "some": pd.DataFrame({"score": [0.12345678], "small": [1.23456e-7], "sparsity": [1.2345678e-5], "task": ["a"]}),
        "none": pd.DataFrame(),
    }
    settings = Params(seeds=(13,), graft=Params(region=["layers"]), model=model_settings("prompt"))
    draw = publish.plot_data(frames), publish.figures({}, None)
    publish.publish("toy", REPORT, {"a": {"mean": 0.12345678}, "b": {}}, *draw, settings=settings)
    stored = read_report(Path("metrics/toy.report.json"))
    assert [*stored.settings] == ["seeds", "graft.region", "model"] and stored.settings["model"]["mode"] == "prompt"
    assert {path.name for path in Path("metrics").iterdir()} == {"toy.md", "toy.json", "toy.report.json"}
    assert read_json(Path("metrics/toy.json")) == {"a": {"mean": 0.123457}}
    assert [path.name for path in Path("plots/toy").iterdir()] == ["some.csv"]
    assert Path("plots/toy/some.csv").read_text() == "score,small,sparsity,task\n0.1235,1.235e-07,1.2345678e-05,a\n"
    assert "it is so" in capsys.readouterr().out
