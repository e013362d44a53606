"""The page and REPRODUCTION.md: what stands in them, and that they need nothing else."""

import csv
import json
import re
import subprocess
import sys
from contextlib import chdir
from dataclasses import replace
from html import escape as html_escape
from pathlib import Path

import pytest

from skill_grafting.support.errors import StorageError
from skill_grafting.support.io import read_json, write_text
from stages.workflow import page
from stages.workflow.page import (
    ELSEWHERE,
    NOT_RUN,
    OTHER,
    PAGE,
    REPRODUCTION,
    Section,
    build,
    is_of_main,
    read_sections,
)
from stages.workflow.report import plots, publish
from stages.workflow.report.spec import load_frames
from stages.workflow.report.tables import render
from stages.workflow.stage import paths
from tests import oracle

FIRST_PAGE = "2026-11-28_smollm2_twelve"  # whose report it is of


@pytest.fixture(scope="module", autouse=True)
def in_the_folder_of_the_published_results(published):
    with chdir(published):
        yield


@pytest.fixture(scope="module")
def made():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "_status", dict)  # as if all had run here
        sections = read_sections()
        return sections, dict(build(sections))


@pytest.fixture(scope="module")
def alone(made, tmp_path_factory) -> tuple[Section, str]:
    """The main report of one task, tested on no other data set, and its page in a folder where nothing else has run."""
    folder = tmp_path_factory.mktemp("alone")
    main = made[0][0]
    for file in main.plots.glob("*.csv"):
        keep_task(file, folder / file.name, "" if file.stem in ("ood", "leaks") else main.frames["tasks"].task[0])
    section = Section("summary", *publish.load_report(Path("stages"), folder), folder, "")
    publish.save_figures(section.spec, section.frames, folder)
    others = [replace(other, state=NOT_RUN) for other in made[0][1:]]
    return section, dict(build([section, *others]))[PAGE]


def keep_task(file: Path, to: Path, task: str) -> None:
    """The rows of a CSV file that are about this task; all where it names none."""
    with file.open(encoding="utf-8", newline="") as lines:
        header, *rows = csv.reader(lines)
    place = header.index("task") if "task" in header else None
    with to.open("w", encoding="utf-8", newline="") as made:
        csv.writer(made, lineterminator="\n").writerows([header, *(row for row in rows if place is None or row[place] == task)])


def test_what_has_not_run_in_this_folder_is_one_folded_line(made, alone):
    others = [section.name for section in made[0][1:]]
    assert alone[1].count("Not of this run: " + ", ".join(others)) == 1 and "Not of this run" not in made[1][PAGE]
    assert not any(section.sentence in alone[1] or f'id="{section.name}"' in alone[1] for section in made[0][1:])
    assert len(alone[1]) < len(made[1][PAGE]) / 5
    assert "http" not in re.sub(r"http://www.w3.org", "", made[1][PAGE]), "it asks no network"


def test_of_reports_that_are_of_other_results_no_number_is_told(made, alone):
    main, others = alone[0], made[0][1:]
    texts = dict(build([main, *(replace(other, state=ELSEWHERE) for other in others)]))
    numbers = {section.name: [claim.short for claim in section.claims if claim.short] for section in others}
    for text in texts.values():
        assert main.sentence in text and not any(section.sentence in text or section.setting in text for section in others)
    assert not [short for shorts in numbers.values() for short in shorts if short in texts[REPRODUCTION]]
    assert "stitched" not in texts[REPRODUCTION] and "in the study" not in texts[REPRODUCTION]
    assert all(f"[{section.spec.title}](../metrics/{section.name}.md) (`make {section.name}`" in texts[REPRODUCTION] for section in others)
    whole = made[1][REPRODUCTION]
    assert "Left out" not in whole and all(section.sentence in whole and numbers[section.name][0] in whole for section in others), "the control"


SETTINGS = {"tasks": ["movies", "bbc"], "seeds": [13]}


@pytest.mark.parametrize(("settings", "models", "of_main"), [
    (SETTINGS, ["a"], True),
    ({**SETTINGS, "edit.steps": 3}, ["a"], True),
    ({"tasks": ["movies", "bbc"]}, ["a", "b"], True),  # a cell that is no longer there had other models
    ({**SETTINGS, "tasks": ["mine", "bbc"]}, ["a"], False),
    (SETTINGS, ["b"], False),
])  # fmt: skip
def test_a_report_is_of_the_main_one_if_both_took_the_same(project, settings, models, of_main):
    def lock(file: str, name: str, settings: dict, models: list[str]) -> None:
        cells = {f"cell@{number}": {"deps": [{"path": "models/finetuned/13", "md5": md5}, {"path": "stages/text", "md5": name}]} for number, md5 in enumerate(models)}
        write_text(Path(file), json.dumps({"schema": "2.0", "stages": {**cells, name: {"params": {"params.yaml": settings}}}}))

    lock("dvc.lock", "summary", SETTINGS, ["a"])
    assert is_of_main("merge"), "it has recorded nothing"
    lock("stages/merge/dvc.lock", "merge", settings, models)
    assert is_of_main("merge") == of_main and is_of_main("summary")


def test_of_one_task_there_are_figures_in_place_of_verdicts_and_nothing_twice(made, alone):
    section, html = alone
    assert "<th>verdict" in made[1][PAGE] and "<th>verdict" not in html and 'class="verdict' not in html
    assert all(html_escape(claim.figure) in html for claim in section.claims)
    assert not any(line.kind == "average" for table in section.tables for line in table.lines)
    drawn = dict(plots.draw_all(section.spec, section.frames))
    assert all(len(drawing.axes) == 1 for name, drawing in drawn.items() if name in ("reliability", "confidence", "frontier"))
    assert [label.get_text() for label in drawn["accuracy"].axes[0].get_yticklabels()] == [*section.frames["tasks"].task]


def test_nothing_is_told_of_other_test_sets_where_there_are_none(made, alone):
    section, html = alone
    assert html.count("<img") == len(section.figures) == len(section.spec.figures) - 1
    assert (section.plots / "ood.png").is_file(), "DVC wants the file"
    assert len(made[0][0].figures) == len(section.spec.figures) - made[0][0].frames["ood"].empty, "the control"


def test_the_committed_reproduction_follows_from_the_committed_frames(made):
    assert made[1][REPRODUCTION] == REPRODUCTION.read_text(), "`make report` writes it anew; commit it with the results"


# pipeline -> a frame and a column of it that its page tells
TOLD = {
    "summary": ("scores", "score"), "continual": ("accuracy", "accuracy"), "merge": ("scores", "score"), "multitask": ("gain", "gain"),
    "study": ("sweep", "score"), "surgical": ("surgery", "score"), "talos": ("addition", "accuracy"),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_the_committed_page_and_its_numbers_follow_from_the_committed_frames_and_a_changed_row_changes_them(made, name, monkeypatch):
    section = next((one for one in made[0] if one.name == name), None) or pytest.skip("it has not run")
    monkeypatch.setattr(publish, "judge", lambda *_: section.claims)  # which were judged once
    record, spec, frames = paths.report(name), section.spec, section.frames
    wanted = record.with_suffix(".md").read_text(encoding="utf-8")
    assert publish.markdown(spec, frames) == wanted, "`dvc repro` of its report writes it anew"
    assert publish.headline(spec, frames) == read_json(record)
    assert publish.claims_record(spec, frames) == read_json(record.with_name(f"{name}_claims.json"))
    folder, (frame, column) = publish.report_folders()[name], TOLD[name]
    rows = load_frames(section.plots, folder / "paper.csv")
    rows[frame].loc[rows[frame].index[:1], column] += 0.25
    assert rows[frame].empty or render(spec, publish.derive_with(folder, rows)) != section.tables, "control"


def test_every_committed_figure_is_of_its_report(made):
    strange = lambda section, names: [name for name in names if not any(f"{name}_".startswith(f"{known}_") for known in section.spec.figures)]  # noqa: E731
    assert not [name for section in made[0] for name in strange(section, [file.stem for file in section.plots.glob("*.png")])]
    assert strange(made[0][1], ["of_a_figure_that_went"]), "the control"


@pytest.mark.parametrize(("pages", "figures", "claims", "change"), [
    (str(REPRODUCTION), "plots", 11, r"(?m)^(\| Temperature scaling.* \| )([a-z ]+)(?=( \(Holm\))? \|$)"),
    (f"metrics/reports/{FIRST_PAGE}/*.md", f"plots/reports/{FIRST_PAGE}", 23, r"(?m)^(- \*\*)([a-z ]+)(?=\*\*: The learned)"),
])  # fmt: skip
def test_another_computation_of_the_verdicts_agrees_but_with_one_that_was_changed(pages, figures, claims, change, tmp_path, capsys):
    text = "\n".join(page.read_text() for page in Path().glob(pages))
    other = re.sub(change, lambda found: found[1] + ("not shown" if found[2] == "holds" else "holds"), text, count=1)
    for changed in (False, True):
        write_text(tmp_path / "page.md", other if changed else text)
        assert oracle.main([tmp_path / "page.md"], oracle.Figures(Path(figures))) == changed
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) >= claims and sum(line.endswith("']") for line in lines) == changed


@pytest.mark.parametrize(
    ("changed", "written"), [([], True), (["params.yaml"], False), (["stages/skill_grafting/support/io.py"], True)]
)
def test_what_reproduces_is_written_of_the_committed_settings_alone(tmp_path, monkeypatch, capsys, changed, written):
    monkeypatch.chdir(tmp_path)
    texts = {"build": [(PAGE, "page"), (REPRODUCTION, "text")], "read_sections": [], "uncommitted": changed}
    for name, value in texts.items():
        monkeypatch.setattr(page, name, lambda *_, value=value: value)
    monkeypatch.setattr(sys, "argv", ["page"])
    page.main()
    assert PAGE.exists() and REPRODUCTION.exists() == written
    assert ("left as it is (params.yaml changed)" in capsys.readouterr().out) != written


def test_without_a_run_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stages").mkdir()
    with pytest.raises(StorageError, match="nothing to report: `make repro`"):
        read_sections()


@pytest.mark.parametrize(
    ("said", "states"),
    [
        ({}, {}),
        ({"calibration@13": [{"changed deps": {"params.yaml": {"calibration": "modified"}}}]}, {"summary": OTHER, "talos": OTHER}),
        ({"stages/talos/dvc.yaml:edit@full-13": [{"changed outs": {"metrics/edit/full/13": "not in cache"}}]}, {"talos": NOT_RUN}),
        ({"stages/talos/dvc.yaml:edit@full-13": ["changed command"]}, {"talos": OTHER}),
    ],
)  # fmt: skip
def test_a_report_is_out_of_date_with_any_stage_before_it(monkeypatch, said, states):
    """`said` is what `dvc status --json` prints; of a stage that changed it doesn't name those behind it."""
    answer = subprocess.CompletedProcess([], 0, stdout=json.dumps(said))
    monkeypatch.setattr(page.subprocess, "run", lambda *_, **__: answer)
    found = page._status()
    assert {name: found[name] for name in ("summary", "talos") if name in found} == states
