"""The figures of `dvc plots show`: every plot that a dvc.yaml declares has its columns, a template and numbers."""

import csv
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.test_dvc_yaml import FILES, REPORTS, ROOT, drawn, lies_in, pipeline

TEMPLATES = {path.stem for path in (ROOT / ".dvc/plots").glob("*.json")}
# name -> (the dvc.yaml's folder, what is declared)
PLOTS = {
    name: ((ROOT / file).parent, plot)
    for file in FILES.values()
    for entry in pipeline(file).get("plots", [])
    if isinstance(entry, dict)
    for name, plot in entry.items()
}
IMAGES = [ROOT / entry for entry in pipeline("dvc.yaml")["plots"] if isinstance(entry, str)]


def columns(folder: Path, plot: dict[str, Any]) -> dict[str, list[str]]:
    """The values that x and y name."""
    found = {}
    for axis in ("x", "y"):
        [(file, column)] = plot[axis].items()
        with (folder / file).open(encoding="utf-8", newline="") as lines:
            found[axis] = [row[column] for row in csv.DictReader(lines)]
    return found


@pytest.fixture(autouse=True)
def in_the_top_folder(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_has_columns_a_template_and_a_title(name):
    folder, plot = PLOTS[name]
    assert {*plot} - {"x_label", "y_label"} == {"x", "y", "template", "title"} and plot["template"] in TEMPLATES
    values = columns(folder, plot)
    assert any(values["x"]) and any(values["y"])
    for axis in "x" if plot["template"] == "bars" else "xy":
        assert [float(value) for value in values[axis] if value]
    [file] = {*plot["x"], *plot["y"]}
    place = str((folder / file).resolve().relative_to(ROOT))
    assert any(lies_in(place, out) for report in REPORTS for out in drawn(report))


def test_every_pipeline_has_plots_and_their_names_are_its_own():
    folders = [folder.name for folder, _ in PLOTS.values()]
    assert {*folders} == {(ROOT / file).parent.name for file in FILES.values()}
    of_others = [name for name, (folder, _) in PLOTS.items() if folder != ROOT]
    assert all(name.startswith(f"{PLOTS[name][0].name}: ") for name in of_others)
    assert IMAGES and all(path.is_file() for path in IMAGES)


def test_dvc_draws_them_all():
    """In a comparison, which draws what `dvc plots show` does."""
    command = ["dvc", "plots", "diff", "HEAD", "--json"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    shown = json.loads(result.stdout)
    assert [error for error in shown.get("errors", []) if error["rev"] == "workspace"] == []
    assert {*PLOTS, *(str(path.relative_to(ROOT)) for path in IMAGES)} <= {*shown["data"]}
    for name, (_, plot) in PLOTS.items():
        [drawn_as, *_] = shown["data"][name]
        spec = drawn_as["content"]
        assert spec["title"] == plot["title"] and "<DVC" not in json.dumps(spec)
        assert len(spec["data"]["values"]) >= len([value for value in columns(*PLOTS[name])["x"] if value])
