"""The report as one web page: what stands in it, that it needs nothing else, and how it looks in Chromium."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from stages.commands.page import __main__ as report
from stages.commands.page import reproduction
from stages.commands.page.render import write_page
from stages.commands.page.results import caption_of
from stages.lib import paths
from stages.lib.errors import StorageError
from stages.lib.params import data_files
from stages.lib.report.differences import compare, written
from stages.lib.report.document import Claim, Paper, Report, Row, Table, Verdict, write_report
from stages.lib.report.style import figure, save, styled
from tests.browser import look_at, needs_chromium

ROOT = Path(__file__).parents[1]
LONG = "a_task_of_a_name_that_is_rather_long"
CLAIMS = [
    Claim("The graft keeps it", Verdict.HOLDS, "keeps 96.1 %", ["movies 92.9 %"]),
    Claim("The graft is calibrated <b>", Verdict.FAILS, "12 % higher, a_b", []),
    Claim("It stands alone", Verdict.OPEN, "1 of 1 cells", []),
    Claim("It helps elsewhere", Verdict.UNCLEAR, "+1.0 points, 95 % interval -0.5 to +2.5", []),
]
TABLE = Table(
    "Scores & more",
    ["task", *(f"column {number}" for number in range(12))],
    [
        Row("ours", [LONG, *["12.3 (4.5)"] * 12]),
        Row("paper", ["  paper", *["90.0 (0.1)"] * 12]),
        Row("average", ["average", *["50.0"] * 12]),
    ],
    ["paper: Table 2"],
)
REPORT = Report("Grafted models", "a model, 1 seed", [TABLE], ["Mask: 5 of 500"], CLAIMS)


def git(*words: str) -> None:
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", *who, *words], check=True, capture_output=True)


@pytest.fixture
def ran(project) -> Path:
    """A project in which the main pipeline and the study have run, with a setting and numbers that changed since its commit."""
    params = (ROOT / paths.PARAMS).read_text()
    paths.PARAMS.write_text(params)
    for name in ("study", "other"):
        (paths.PIPELINES / name).mkdir(parents=True)
        (paths.PIPELINES / name / "dvc.yaml").write_text("stages: {}\n")
    paths.METRICS.mkdir()
    paths.SUMMARY.write_text(json.dumps({"average": {"grafted": {"retained": 0.5, "ece_reduction": 0.4}}}))
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-qm", "before & after")
    paths.SUMMARY.write_text(json.dumps({"average": {"grafted": {"retained": 0.96, "ece_reduction": 0.4}}, "new": 1}))
    paths.PARAMS.write_text(params.replace("sparsity: 0.01 ", "sparsity: 0.002 "))
    for name in ("summary", "study"):
        write_report(paths.report_document(name), REPORT)
    paths.report("study").write_text("{}")
    for place in (paths.PLOTS / "accuracy.png", paths.report_plots("study") / "strange_thing.png"):
        place.parent.mkdir(parents=True, exist_ok=True)
        with styled():
            save(figure(3, "A title", "details", "a caption"), place)
    return project


def section(html: str, anchor: str) -> str:
    return re.search(rf'<section id="{anchor}">(.*?)</section>', html, re.DOTALL)[1]


# --- What stands in it -------------------------------------------------------------------------------------------


def test_the_page_has_every_pipeline_that_ran_with_its_tables_and_figures(ran):
    html = write_page("HEAD")
    assert re.findall(r'<section id="(\w+)">', html) == ["caveats", "paper", "summary", "study", "changes", "settings"]
    assert {*re.findall(r'href="#(\w+)"', html)} == {*re.findall(r'<section id="(\w+)">', html)}
    assert section(html, "summary").count("<tr") == 4 and 'class="paper"' in section(html, "summary")
    assert "data:image/png;base64," in section(html, "summary") and "Score of the pretrained" in section(
        html, "summary"
    )
    assert "96.1\u00a0%" in html and section(html, "study").count(LONG) == 1
    assert "Strange thing." in section(html, "study")  # a figure without a caption goes by its name


def test_what_does_not_hold_and_what_did_not_run_comes_first(ran):
    caveats = section(write_page("HEAD"), "caveats")
    counts = [
        caveats.count(f"<strong>{verdict}</strong>") for verdict in ("does not hold", "not shown", "not measurable")
    ]
    assert counts == [2, 2, 2] and caveats.count('class="unclear"') == 2
    assert "<b>" not in caveats and "&lt;b&gt;" in caveats and "a_b" in caveats
    assert "not so in movies 92.9" in caveats and "Not run, so not in this report: other." in caveats
    assert "over 2 seeds" in caveats and f"Not committed: {paths.SUMMARY}, {paths.PARAMS}" in caveats


def test_changed_settings_and_numbers_are_told_with_their_former_values(ran):
    html = write_page("HEAD")
    settings, changes = section(html, "settings"), section(html, "changes")
    assert (
        settings.count('class="changed"') == 1 and "1 setting differs" in settings and "before &amp; after" in settings
    )
    row = re.search(r'<tr class="changed">(.*?)</tr>', settings)[1]
    assert row == "<td>graft.sparsity</td><td>0.002</td><td>0.01</td>"
    assert re.findall(r"<details open><summary>(.*?)</summary>", settings) == ["graft: 1 changed"]
    assert "summary: 2 of 3 numbers differ" in changes and "+0.46" in changes and "not there" in changes
    assert "study: the baseline has no numbers" in changes
    git("commit", "-qam", "now")
    html = write_page("HEAD")
    assert 'class="changed"' not in html and "summary: 0 of 3 numbers differ" in html
    assert "graft: 1 changed" in write_page("HEAD~1")


def test_an_unknown_commit_and_a_project_without_results_are_one_clear_line(ran, capsys):
    with pytest.raises(StorageError, match="git knows no commit 'nowhere'"):
        write_page("nowhere")
    for path in paths.METRICS.glob("*.report.json"):
        path.unlink()
    with pytest.raises(StorageError, match=r"there is no metrics/summary.report.json; run `dvc repro` first"):
        write_page("HEAD")


def test_the_command_writes_it_where_git_ignores_it(ran, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["report", "--baseline", "main"])
    report.main()
    assert paths.PAGE.read_text() == write_page("main")
    ignored = subprocess.run(["git", "check-ignore", "--no-index", paths.PAGE], cwd=ROOT, check=False).returncode == 0
    assert ignored and capsys.readouterr().out.startswith(f"{paths.PAGE}: ")


def test_the_page_needs_nothing_else(ran):
    html = write_page("HEAD")
    assert {*re.findall(r"<(script|iframe|object|embed|video|audio)\b", html)} == set()
    addresses = re.findall(r'(?:src|href|srcset|data|action)="([^"]*)"|url\(([^)]*)\)|@import ([^;]*)', html)
    places = {place.split(",")[0] for found in addresses for place in found if place}
    assert {place for place in places if not place.startswith("#")} == {"data:", "data:image/png;base64"}


# --- How it looks ------------------------------------------------------------------------------------------------


@needs_chromium
@pytest.mark.parametrize("width", [1280, 400])
def test_in_chromium_nothing_overlaps_or_sticks_out_and_the_console_is_silent(ran, tmp_path, width):
    look = look_at(write_page("HEAD"), tmp_path, width)
    assert (look.width, look.sticks_out, look.overlaps, look.cramped, look.pictures) == (width, 0, [], [], 0)
    assert look.console == [] and look.parts > 100


@needs_chromium
def test_the_look_finds_what_is_wrong(tmp_path):
    broken = (
        "<html><body><p>first</p><p style='margin-top: -2rem'>second</p><p style='width: 3000px'>wide</p>"
        "<p style='width: 2rem'>unbreakable</p><img alt='' width=5 height=5 src='https://example.org/a.png'><script>nothing.here</script>"
        "</body></html>"
    )
    look = look_at(broken, tmp_path, 1280)
    assert look.sticks_out > 1000 and look.overlaps == ["P first / P second"] and look.cramped == ["P unbreakable"]
    assert look.pictures == 1 and len(look.console) == 1 and "nothing is not defined" in look.console[0]


# --- Its parts ---------------------------------------------------------------------------------------------------


def test_differences_tell_missing_from_null():
    before, after = {"a": {"x": 1}, "b": None, "gone": 2}, {"a": {"x": 1}, "b": 0.5, "new": None, "c": {}}
    found = compare(before, after)
    assert [(entry.name, entry.after) for entry in found if entry.differs] == [
        ("b", 0.5), ("new", None), ("c", {}), ("gone", None),
    ]  # fmt: skip
    assert [entry.name for entry in found if not entry.differs] == ["a.x"]
    assert not any(entry.differs for entry in compare(after, after))
    assert [compare({"a": old}, {"a": new})[0].change for old, new in ((1, 1.5), (True, 2), ("a", "b"))] == [
        "+0.5",
        "",
        "",
    ]
    values = {None: "null", True: "true", 1e-7: "1e-07", 0.123456789: "0.123457"}
    assert [written(value) for value in values] == [*values.values()] and written([1, "a"]) == "[1, a]"


def test_every_committed_figure_has_a_caption_and_says_which_it_is():
    plots, known = ROOT / paths.PLOTS, data_files("captions.yaml")
    drawn = [path.relative_to(plots) for path in plots.rglob("*.png") if path.relative_to(plots).parts[0] != "reports"]
    assert drawn
    for path in drawn:
        captions = known["" if path.parent == Path() else path.parent.name]
        assert caption_of(path.stem, captions).startswith((*captions.values(),)), path
    assert caption_of("gain_sgd_learned_0.01", known["multitask"]).endswith("Here: sgd learned 0.01.")
    assert caption_of("gains", known["multitask"]) == "Gains."


# --- What reproduces ---------------------------------------------------------------------------------------------


def committed(name: str) -> bool:
    """Whether a file is as git has it."""
    words = ["git", "status", "--porcelain", "--", name]
    return not subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_page_of_what_reproduces_is_made_of_the_committed_reports():
    if not committed("metrics/*.report.json") or not [*ROOT.glob("metrics/*.report.json")]:
        pytest.skip("the reports here are not the committed ones")
    assert (ROOT / reproduction.PAGE).read_text(encoding="utf-8") == reproduction.markdown(ROOT)


def test_the_page_of_what_reproduces_has_the_claims_of_publications_alone(tmp_path):
    (tmp_path / "metrics").mkdir()
    theirs = Claim(
        "It holds.", Verdict.HOLDS, "96 %", [], "tiny, 4 tasks", Paper("> 95 %", "Table 2", "0.01 %"), "a.png"
    )
    ours = Claim("Ours.", Verdict.FAILS, "1 %", [])
    write_report(tmp_path / paths.report_document("study"), Report("", "", [], [], [theirs, ours]))
    page = reproduction.markdown(tmp_path)
    assert "| It holds. | > 95 % (Table 2; 0.01 %) | 96 % | tiny, 4 tasks | **holds** |" in page and "Ours." not in page
