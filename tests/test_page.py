"""The report as one web page: what stands in it, that it needs nothing else, and how it looks in Chromium."""

import json
import os
import re
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest

from stages.commands.page import __main__ as report
from stages.commands.page import reproduction
from stages.commands.page.provenance import commit_of, durations, made_on
from stages.commands.page.render import write_page
from stages.commands.page.results import DATA, caption_of, data_files
from stages.lib import paths
from stages.lib.errors import StorageError
from stages.lib.io import write_json, write_rows, write_text
from stages.lib.report.differences import NOT_THERE, compare, plain, written
from stages.lib.report.document import Claim, Paper, Report, Row, Table, Verdict, write_report
from stages.lib.report.hover import read_values
from stages.lib.report.style import figure, save, styled
from stages.workflow.settings import load_params
from tests.browser import look_at, needs_chromium
from tests.dvc_project import ROOT, of_tests

LONG = "a_task_of_a_name_that_is_rather_long"
CLAIMS = [
    Claim("The graft keeps it", Verdict.HOLDS, "keeps 96.1 %", ["movies 92.9 %"]),
    Claim("The graft is calibrated <b>", Verdict.FAILS, "12 % higher, a_b", []),
    Claim("It stands alone", Verdict.OPEN, "1 of 1 cells", []),
    Claim("It helps elsewhere", Verdict.UNCLEAR, "+1.0 points, 95 % interval -0.5 to +2.5", []),
]
ROWS = [
    Row("ours", [LONG, *["12.3 (4.5)"] * 12]),
    Row("paper", ["  paper", *["90.0 (0.1)"] * 12]),
    Row("average", ["average", *["50.0"] * 12]),
]
TABLE = Table("Scores & more", ["task", *(f"column {number}" for number in range(12))], ROWS, ["paper: Table 2"])
REPORT = Report("Grafted models", "a model, 1 seed", [TABLE], ["Mask: 5 of 500"], CLAIMS)


def made_under(*keys: str, **changes: dict) -> Report:
    """The report with the present settings of these keys, but for changes."""
    return replace(REPORT, settings=plain(load_params(*keys)) | changes)


def git(*words: str) -> None:
    subprocess.run(["git", *words], env=os.environ | of_tests(Path.cwd()), check=True, capture_output=True)


@pytest.fixture
def ran(project) -> Path:
    """A project in which the main pipeline and the study have run, with a setting and numbers that changed since its commit."""
    params = (ROOT / paths.PARAMS).read_text()
    paths.PARAMS.write_text(params)
    for name in ("study", "other"):
        write_text(paths.PIPELINES / name / "dvc.yaml", "stages: {}\n")
    write_json(paths.report("summary"), {"average": {"grafted": {"retained": 0.5, "ece_reduction": 0.4}}})
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-qm", "before & after")
    write_json(paths.report("summary"), {"average": {"grafted": {"retained": 0.96, "ece_reduction": 0.4}}, "new": 1})
    changed = params.replace("sparsity: 0.01 ", "sparsity: 0.002 ").replace("test_max: 150 ", "test_max: 151 ")
    paths.PARAMS.write_text(changed)
    for name in ("summary", "study"):
        write_report(paths.report_document(name), made_under("tasks", "graft"))
    for name in ("scores.csv", "study/strange_thing.csv"):
        write_text(paths.PLOTS / name, "task,score\n")
    with styled():
        save(figure(3, "Nothing of it", "", ""), paths.PLOTS / "ood.png")
    write_text(paths.learned("movies", 13), "")
    write_text(paths.report("study"), "{}")
    for place in (paths.PLOTS / "accuracy.png", paths.report_plots("study") / "strange_thing.png"):
        with styled():
            drawn = figure(3, "A title", "details", "a caption")
            drawn.subplots().bar([0], [5], label="grafted")
            save(drawn, place)
    return project


def section(html: str, anchor: str) -> str:
    return re.search(rf'<section id="{anchor}">(.*?)</section>', html, re.DOTALL)[1]


# --- What stands in it -------------------------------------------------------------------------------------------


def test_the_page_has_every_pipeline_that_ran_with_its_tables_and_figures(ran):
    html = write_page("HEAD")
    sections = ["caveats", "paper", "summary", "study", "grafts", "changes", "settings"]
    assert re.findall(r'<section id="(\w+)">', html) == sections
    assert {*re.findall(r'href="#(\w+)"', html)} == {*re.findall(r'<section id="(\w+)">', html)}
    assert section(html, "summary").count("<tr") == 4 and 'class="paper"' in section(html, "summary")
    assert section(html, "summary").count('<th scope="col">') == 13 and '<th scope="row">average' in html
    assert all(words in section(html, "summary") for words in ("data:image/png;base64,", "Score of the pretrained"))
    assert "ood.png" not in html, "a figure without values"
    assert "96.1\u00a0%" in html and section(html, "study").count(LONG) == 1
    assert "Strange thing." in section(html, "study")  # a figure without a caption goes by its name


def test_what_does_not_hold_and_what_did_not_run_comes_first(ran):
    caveats = section(write_page("HEAD"), "caveats")
    failures = ("does not hold", "not shown", "not measurable")
    assert [caveats.count(f"<strong>{verdict}</strong>") for verdict in failures] == [2, 2, 2]
    assert caveats.count('class="unclear"') == 2
    assert "<b>" not in caveats and "&lt;b&gt;" in caveats
    assert "not so in movies 92.9" in caveats and "Not run, so not in this report: other." in caveats
    assert "over 2 seeds" in caveats and f"Not committed: {paths.report('summary')}, {paths.PARAMS}" in caveats


def test_changed_settings_and_numbers_are_told_with_their_former_values(ran):
    html = write_page("HEAD")
    settings, changes = section(html, "settings"), section(html, "changes")
    assert "1 setting differs" in settings, "the others are of surgery, which is not shown"
    assert "before &amp; after" in settings
    rows = re.findall(r'<tr class="changed">(.*?)</tr>', settings)
    assert rows == ['<th scope="row">graft.sparsity</th><td>0.002</td><td>0.01</td>']
    assert re.findall(r"<details open><summary>(.*?)</summary>", settings) == ["graft: 1 changed"]
    assert "summary: 2 of 3 numbers differ" in changes and "+0.46" in changes and "not there" in changes
    assert "study: the baseline has no numbers" in changes
    assert "<summary>wise</summary>" in settings and "<summary>surgery</summary>" not in settings, "it did not run"
    git("commit", "-qam", "now")
    html = write_page("HEAD")
    assert 'class="changed"' not in html and "summary: 0 of 3 numbers differ" in html
    assert "graft: 1 changed" in write_page("HEAD~1")


def test_an_unknown_commit_and_a_project_without_results_are_one_clear_line(ran, capsys):
    with pytest.raises(StorageError, match="git knows no commit 'nowhere'"):
        write_page("nowhere")
    for path in paths.METRICS.glob("*.report.json"):
        path.unlink()
    with pytest.raises(StorageError, match=r"run `dvc repro` first\s+there is no metrics/summary.report.json"):
        write_page("HEAD")


def test_results_of_other_settings_are_left_out_and_named_with_their_date(ran):
    model = plain(load_params("model"))["model"]
    write_report(paths.report_document("study"), made_under("tasks", model=model | {"name": "theirs"}))
    html = write_page("HEAD")
    assert 'id="summary"' in html and 'id="study"' not in html and "strange_thing" not in html
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    line = f"Left out: study: made on {today} under other settings (model.name theirs, now {model['name']})."
    assert line in section(html, "caveats") and "2 are not shown" not in html
    write_report(paths.report_document("study"), made_under("tasks", model=model))
    assert 'id="study"' in write_page("HEAD") and "Left out" not in write_page("HEAD"), "the control: the same settings"
    paths.PARAMS.write_text(paths.PARAMS.read_text().replace("sparsity: 0.002 ", "sparsity: 0.003 "))
    paths.report_document("study").unlink()
    with pytest.raises(StorageError, match=r"nothing to report.*\n.*graft.sparsity 0.002, now 0.003"):
        write_page("HEAD")


def test_the_head_says_when_by_what_and_in_how_long(ran):
    head = write_page("HEAD").split("<nav>")[0]
    for words in ("durations</dt><dd>not known", f"torch {version('torch')}", "2 files changed since"):
        assert words in head
    assert re.search(r"<dt>processor</dt><dd>\S", head) and f"{datetime.now(UTC):%Y-%m-%d}" in head
    lines = [{"stage": "mask@movies-13", "seconds": seconds} for seconds in (900, 90)]
    write_rows(paths.DURATIONS, lines)
    assert durations(["mask@movies-13", "mask@movies-21"]) == {"mask": 90}


def test_csv_picture_and_patch_command_are_linked_where_they_are(ran):
    html = write_page("HEAD")
    links = {*re.findall(r'href="(?!#|data)([^"]*)"', html)}
    assert {"../plots/accuracy.png", "../plots/scores.csv", "../plots/study/strange_thing.csv"} < links
    assert all((paths.PAGE.parent / link).resolve().is_file() for link in links)
    assert "graft export masks/learned/13/movies.safetensors --as patch" in section(html, "grafts")


def test_the_command_writes_it_where_git_ignores_it(ran, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["report", "--baseline", "main"])
    report.main()
    assert paths.PAGE.read_text().startswith("<!doctype html>") and "before &amp; after" in paths.PAGE.read_text()
    ignored = subprocess.run(["git", "check-ignore", "--no-index", paths.PAGE], cwd=ROOT, check=False).returncode == 0
    assert ignored and capsys.readouterr().out.startswith(f"{paths.PAGE}: ")


def test_an_annotated_tag_is_the_commit_that_it_stands_at(ran):
    git("tag", "-a", "-m", "release one", "v1")
    assert commit_of("v1") == commit_of("HEAD") and commit_of("v1")[1] == "before & after"
    with pytest.raises(StorageError, match="no commit 'v2'"):
        commit_of("v2")


def test_a_shallow_clone_says_that_the_history_is_not_there_and_no_repository_that_there_is_none(
    ran, tmp_path_factory, monkeypatch
):
    git("commit", "-qam", "now")
    git("clone", "-q", "--depth", "1", ran.as_uri(), "shallow")
    assert "(commit " in made_on(paths.PARAMS), "control"
    monkeypatch.chdir("shallow")
    assert made_on(paths.PARAMS) == "an unknown day (a shallow clone; `git fetch --unshallow`)"
    with pytest.raises(StorageError, match="git knows no commit 'HEAD~1'; this clone is shallow"):
        commit_of("HEAD~1")
    monkeypatch.chdir(tmp_path_factory.mktemp("unpacked"))
    with pytest.raises(StorageError, match="not in a git repository"):
        commit_of("HEAD")


def test_the_page_needs_nothing_else(ran):
    html = write_page("HEAD")
    assert {*re.findall(r"<(script src|iframe|object|embed|video|audio)\b", html)} == set()
    addresses = re.findall(r'(?:src|href|srcset|data|action)="([^"]*)"|url\(([^)]*)\)|@import ([^;]*)', html)
    places = {place.split(",")[0] for found in addresses for place in found if place}
    assert {place for place in places if not place.startswith(("#", "../"))} == {"data:", "data:image/png;base64"}


# --- How it looks ------------------------------------------------------------------------------------------------


@needs_chromium
@pytest.mark.parametrize("width", [1280, 400])
def test_in_chromium_nothing_overlaps_or_sticks_out_and_the_console_is_silent(ran, tmp_path, width):
    look = look_at(write_page("HEAD"), tmp_path, width)
    assert (look.width, look.sticks_out, look.overlaps, look.cramped, look.pictures) == (width, 0, [], [], 0)
    assert look.console == [] and look.parts > 100 and look.scrolls == []


@needs_chromium
def test_the_look_finds_what_is_wrong(tmp_path):
    broken = (
        "<html><body><p>first</p><p style='margin-top: -2rem'>second</p><p style='width: 3000px'>wide</p>"
        "<div style='width: 9rem'><table><tr><td style='min-width: 10rem'>wide</table></div>"
        "<p style='width: 2rem'>unbreakable</p><img alt='' width=5 height=5 src='https://example.org/a.png'><script>nothing.here</script>"
        "</body></html>"
    )
    look = look_at(broken, tmp_path, 1280)
    assert look.sticks_out > 1000 and look.overlaps == ["P first / P second"] and look.cramped == ["P unbreakable"]
    assert look.pictures == 1 and look.scrolls == ["TABLE wide"]
    assert len(look.console) == 1 and "nothing is not defined" in look.console[0]


@needs_chromium
def test_in_chromium_a_click_sorts_rows_with_those_that_belong_to_them_and_the_pointer_shows_values(ran, tmp_path):
    rows = [Row("ours", ["b", "2.0"]), Row("paper", ["  paper", "9"]), Row("ours", ["c", "10.0"]), Row("ours", ["a", "n/a"])]  # fmt: skip
    table = Table("T", ["task", "score"], [*rows, Row("average", ["average", "1"])], [])
    write_report(paths.report_document("summary"), replace(made_under("graft"), tables=[table]))
    acts = """<script>addEventListener("load", () => {
      const button = place => document.querySelectorAll("#summary th button")[place].click();
      const rows = () => [...document.querySelectorAll("#summary tbody tr")].map(row => row.cells[0].textContent).join(" ");
      const told = [rows()];
      for (const place of [0, 1, 1]) { button(place); told.push(rows()); }
      const drawn = document.querySelector(".drawn"), box = drawn.getBoundingClientRect();
      const [x, y] = JSON.parse(drawn.querySelector("script").textContent)[0];
      drawn.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + x * box.width, clientY: box.top + y * box.height}));
      told.push(drawn.querySelector("output").textContent);
      console.log(JSON.stringify(told));
    });</script></body>"""
    [line] = look_at(write_page("HEAD").replace("</body>", acts), tmp_path, 400).console
    told = json.loads(re.search(r'"(\[.*\])"', line)[1].replace('\\"', '"'))
    assert told[:2] == ["b paper c a average", "a b paper c average"]
    assert told[2:4] == ["b paper c a average", "a c b paper average"] and told[4].startswith("grafted")


# --- Its parts ---------------------------------------------------------------------------------------------------


def test_differences_tell_missing_from_null():
    before, after = {"a": {"x": 1}, "b": None, "gone": 2}, {"a": {"x": 1}, "b": 0.5, "new": None, "c": {}}
    found = compare(before, after)
    differ = [(entry.name, entry.after) for entry in found if entry.differs]
    assert differ == [("b", 0.5), ("new", None), ("c", {}), ("gone", NOT_THERE)]
    assert [entry.name for entry in found if not entry.differs] == ["a.x"]
    assert not any(entry.differs for entry in compare(after, after))
    [emptied] = compare({"sets": {"a": [1]}}, {"sets": {}})
    assert (emptied.name, emptied.after) == ("sets.a", NOT_THERE), "a table that was emptied is there"
    pairs = ((1, 1.5), (True, 2), ("a", "b"))
    assert [compare({"a": old}, {"a": new})[0].change for old, new in pairs] == ["+0.5", "", ""]
    values = {None: "null", True: "true", 1e-7: "1e-07", 0.123456789: "0.123457"}
    assert [written(value) for value in values] == [*values.values()] and written([1, "a"]) == "[1, a]"


def test_a_picture_knows_what_is_drawn_where(tmp_path):
    with styled():
        drawn = figure(3, "A title", "details", "a caption")
        left, middle, right = drawn.subplots(1, 3)
        left.bar([0, 1], [3, 4], label="grafted")
        left.set_xticks([0, 1], ["one", "two"])
        left.set_ylabel("score (%)")
        middle.errorbar([1, 2], [5, 6], yerr=1, label="mean")
        middle.scatter([2], [5.5])
        middle.axhline(5)
        right.imshow([[1, 2], [3, 4]])
        for name in ("first.png", "again.png"):
            save(drawn, tmp_path / name)
    values = read_values(tmp_path / "first.png")
    texts = [text for _, _, text in values]
    assert texts[:2] == ["grafted, one, score (%) 3", "grafted, two, score (%) 4"]
    assert texts[2:5] == ["mean, 1, 5", "mean, 2, 6", "2, 5.5"] and len(values) == 9
    assert values[0][1] > values[1][1] and values[0][0] < values[1][0] < values[2][0], "y goes down"
    assert (tmp_path / "first.png").read_bytes() == (tmp_path / "again.png").read_bytes()


def test_every_committed_figure_has_a_caption_and_says_which_it_is():
    plots, known = ROOT / paths.PLOTS, data_files("captions.yaml")
    drawn = [path.relative_to(plots) for path in plots.rglob("*.png") if path.relative_to(plots).parts[0] != "reports"]
    assert drawn
    for path in drawn:
        captions = known["" if path.parent == Path() else path.parent.name]
        texts = [caption for name, caption in captions.items() if name != DATA]
        assert caption_of(path.stem, captions).startswith((*texts,)), path
        names = [name for files in captions[DATA].values() for name in files]
        assert all((plots / path.parent / f"{name}.csv").is_file() for name in names), path
    assert caption_of("gain_sgd_learned_0.01", known["multitask"]).endswith("Here: sgd learned 0.01.")
    assert caption_of("gains", known["multitask"]) == "Gains."


# --- What reproduces ---------------------------------------------------------------------------------------------


def test_the_page_of_what_reproduces_is_made_of_the_committed_reports(monkeypatch):
    words = ["git", "status", "--porcelain", "--", "metrics/*.report.json"]
    edited = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if edited or not [*ROOT.glob("metrics/*.report.json")]:
        pytest.skip("the reports here are not the committed ones")
    monkeypatch.chdir(ROOT)
    assert reproduction.PAGE.read_text(encoding="utf-8") == reproduction.markdown()


def test_the_page_of_what_reproduces_has_the_claims_of_publications_alone(project):
    paths.METRICS.mkdir()
    paths.PARAMS.write_text((ROOT / paths.PARAMS).read_text())
    paper = Paper("> 95 %", "Table 2", "0.01 %")
    theirs = Claim("It holds.", Verdict.HOLDS, "96 %", [], "tiny, 4 tasks", paper, "a.png")
    report = Report("", "", [], [], [theirs, Claim("Ours.", Verdict.FAILS, "1 %", [])], plain(load_params("model")))
    write_report(paths.report_document("study"), report)
    page = reproduction.markdown()
    assert "| It holds. | > 95 % (Table 2; 0.01 %) | 96 % | tiny, 4 tasks | **holds** |" in page and "Ours." not in page
    report.settings["model"]["name"] = "another"
    write_report(paths.report_document("study"), report)
    page = reproduction.markdown()
    assert "It holds." not in page and "- study: left out, made under other settings (model.name another, now" in page
