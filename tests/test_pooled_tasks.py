"""The report over the tasks of several runs: that of one run in parts is that of the run."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from stages.commands.named_runs import named_runs
from stages.commands.pooled_tasks import FORM, TABLES, differing_settings, main, pool, pooled_report
from stages.figures import FIGURES
from stages.lib.errors import DataError, ParamsError
from stages.lib.yaml12 import load_yaml

ROOT = Path(__file__).parents[1]
NAMES = ("2026-11-23_base", "2026-11-24_base_sets")
REPORTS = [(ROOT / f"metrics/reports/{name}", ROOT / f"plots/reports/{name}/main") for name in NAMES]


def read(words: list[str]) -> tuple:
    folders = named_runs(words, FORM)
    settings = {name: load_yaml(Path(name) / "params.yaml", ParamsError) for name in folders}
    return pool(folders, settings), settings


@pytest.fixture
def halves(tmp_path) -> list[str]:
    """A run, cut into one of two tasks and one of the others."""
    folder, plots = REPORTS[1]
    parts = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        shutil.copyfile(folder / "params.yaml", tmp_path / name / "params.yaml")
        for table in TABLES:
            rows = pd.read_csv(plots / f"{table}.csv")
            part = rows[rows.task.isin(["sst2", "cr"]) == (name == "first")]
            part.to_csv(tmp_path / name / f"{table}.csv", index=False)
        parts.append(f"{tmp_path / name}={tmp_path / name}")
    return parts


def judged(words: list[str]) -> list[tuple]:
    return [(claim.text, claim.verdict, claim.figure) for claim in pooled_report(*read(words)).claims]


def test_a_run_in_parts_is_judged_as_the_whole(halves):
    whole = judged([f"{REPORTS[1][0]}={REPORTS[1][1]}"])
    assert judged(halves) == judged(halves[::-1]) == whole
    assert judged(halves[:1]) != whole, "control: half of it is"
    # what the run itself said, from numbers with more digits
    said = (REPORTS[1][0] / "summary.md").read_text(encoding="utf-8").replace("lower by", "a reduction of")  # of before
    assert len(whole) > 5 and all(figure.split(" (95")[0].partition(";")[0] in said for _, _, figure in whole)


def test_every_figure_of_pooled_tasks_is_drawn_but_that_of_other_test_sets(halves, tmp_path, monkeypatch, capsys):
    options = ["--figures", f"{tmp_path}/drawn", "--markdown", f"{tmp_path}/said.md"]
    monkeypatch.setattr("sys.argv", ["pooled_tasks", *halves, *options])
    main()
    assert {path.stem for path in (tmp_path / "drawn").iterdir()} == {*FIGURES} - {"ood"}
    assert (tmp_path / "said.md").read_text(encoding="utf-8").startswith("# Grafted models against fine-tuned models")
    told = capsys.readouterr().out
    assert "2 runs, 5 tasks, 2 seeds" in told and "The runs differ" not in told and "Fewer seeds" not in told


def test_what_runs_differ_in_is_said_and_so_are_tasks_of_fewer_seeds():
    found, settings = read([f"{folder}={plots}" for folder, plots in REPORTS])
    told = pooled_report(found, settings).facts
    assert "The runs differ in data.source: packaged, local" in told
    assert told[-1] == "Fewer seeds than 2: movies 1, products 1, tweets 1, domain 1, bbc 1"
    drawn = FIGURES["accuracy"](found)
    assert any("10 tasks, 1 to 2 seeds" in text.get_text() for text in drawn.texts)
    first = next(iter(settings.values()))
    other = {**first, "graft": {**first["graft"], "sparsity": 0.5}, "tasks": ["a"], "study": None}
    assert differing_settings({"a": first, "b": other}) == ["graft.sparsity: 0.0001, 0.5"]
    graft = {name: value for name, value in first["graft"].items() if name != "sparsity"}
    older = {**first, "graft": graft}  # made before there was that setting
    assert differing_settings({"a": first, "b": older}) == []
    assert differing_settings({"a": first, "b": older, "c": other}) == ["graft.sparsity: 0.0001, not there, 0.5"]


def test_seeds_of_one_task_in_several_runs_are_one_diagram_and_one_histogram(tmp_path):
    folder, plots = REPORTS[1]
    shutil.copytree(plots, tmp_path / "again")
    shutil.copyfile(folder / "params.yaml", tmp_path / "again/params.yaml")
    for table in ("scores", "frontier"):
        rows = pd.read_csv(plots / f"{table}.csv")
        rows.assign(seed=rows.seed + 100).to_csv(tmp_path / f"again/{table}.csv", index=False)
    bins = pd.read_csv(plots / "reliability.csv")
    odd = bins.assign(accuracy=bins.accuracy / 2)[bins.bin % 2 == 1]
    odd.to_csv(tmp_path / "again/reliability.csv", index=False)
    (whole, _), (twice, _) = (
        read([f"{folder}={plots}", *more]) for more in ([], [f"{tmp_path}/again={tmp_path}/again"])
    )
    key = ["task", "variant", "bin"]
    assert not twice.reliability.duplicated(key).any()
    assert twice.reliability.groupby(key[:2]).bin.is_monotonic_increasing.all()
    one, both = (found.reliability.set_index(key).sort_index() for found in (whole, twice))
    is_odd = one.index.get_level_values("bin") % 2 == 1
    assert (both["count"] == one["count"] * (1 + is_odd)).all()
    assert both.accuracy.to_numpy() == pytest.approx((one.accuracy * (1 - is_odd / 4)).to_numpy())
    assert both.confidence.to_numpy() == pytest.approx(one.confidence.to_numpy())
    assert twice.confidence.share.tolist() == pytest.approx(whole.confidence.share.tolist())
    assert twice.confidence["count"].sum() == 2 * whole.confidence["count"].sum(), "the control"


def test_bars_of_every_row_fit_into_the_axis_that_the_rows_share():
    found, _ = read([f"{folder}={plots}" for folder, plots in REPORTS[::-1]])
    rows = FIGURES["calibration"](found).axes
    highest = [max(bar.get_height() for bar in row.patches) for row in rows]
    assert len(rows) == 2 and highest[0] < highest[1], "the control: the first row alone needs less"
    assert all(row.get_ylim()[1] > max(highest) for row in rows)


def test_runs_that_cannot_be_pooled_are_refused_in_one_line(halves, tmp_path):
    refused = {
        "two of these have sst2 with seed 13": [halves[0], f"{REPORTS[1][0]}={REPORTS[1][1]}"],
        r"scores\.csv: not of a run of the main pipeline": [f"{REPORTS[0][0]}={tmp_path}"],
        r"nowhere/params\.yaml": [f"nowhere={REPORTS[0][1]}"],
        "FOLDER=PLOTS is wanted": ["just/a/folder"],
    }
    for told, words in refused.items():
        with pytest.raises((DataError, ParamsError), match=told):
            read(words)
    scores = tmp_path / "first" / "scores.csv"
    scores.write_text(scores.read_text().replace("sst2", "sst3"))
    with pytest.raises(DataError, match=r"unknown task 'sst3' \(did you mean 'sst2'\?\)"):
        read(halves)
