"""The package that `pip install .` makes: its files, what it needs, and a patch put on where there is nothing else."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from skill_grafting.patches.__main__ import COMMANDS
from tests.graft_project import MASK, ROOT, graft, make_project

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
# what only the pipeline needs
PIPELINE = ("dvc", "datasets", "distributed", "networkx", "rich")
# and what a mask in Python doesn't
HEAVY = (*PIPELINE, "pandas", "peft", "scipy", "matplotlib", "tabulate", "jinja2")
API = """
import copy, torch
import skill_grafting as sg
base = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
tuned, inputs = copy.deepcopy(base), torch.randn(6, 4)
for weight in tuned.parameters():
    weight.data.add_(torch.randn_like(weight))
for name, options in {"movement": {}, "learned": {"loss": lambda model: model(inputs).square().mean()}}.items():
    mask = sg.localize(base, tuned, sparsity=0.2, method=name, parameters="all", **options)
    with sg.grafted(base, tuned, mask):
        inside = base(inputs)
    assert inside.equal(sg.graft(base, tuned, mask)(inputs)) and not inside.equal(base(inputs))
"""
LIVE = """
import importlib.util
import skill_grafting as sg
assert importlib.util.find_spec("stages") is None
import torch, transformers
patch = sg.Patch.from_pretrained("patch")
model = patch.apply("base")
torch.save(model.state_dict(), "loaded")
live = transformers.AutoModelForSequenceClassification.from_pretrained("base", num_labels=2)
with patch.on(live):
    assert all(torch.equal(a, b) for a, b in zip(live.state_dict().values(), model.state_dict().values()))
"""
COMMAND = """
import shlex
from importlib.metadata import entry_points
[command] = [entry for entry in entry_points(group="console_scripts") if entry.name == "graft"]
for line in sys.argv[1:]:
    command.load()(shlex.split(line))
"""


def names(pins: list[str]) -> set[str]:
    return {re.match(r"[\w.-]+", pin)[0].lower() for pin in pins}


def test_what_others_get_is_what_is_tested():
    needed = names(PROJECT["dependencies"])
    assert {"numpy", "torch", "transformers", "safetensors", "peft", "tabulate"} <= needed <= names(EXTRAS["pipeline"])
    assert not needed & {*PIPELINE} and all("==" in pin for pin in [*EXTRAS["pipeline"], *EXTRAS["test"]])


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with the package, as pip installs it, from a copy of what it is made of."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "stages", source / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    options = "--quiet --no-deps --no-build-isolation --no-index --no-compile --disable-pip-version-check".split()
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", target, source], check=True)
    return target


def run(
    installed: Path, folder: Path, script: str, *arguments: str, blocked: tuple[str, ...] = HEAVY
) -> tuple[int, str, str]:
    """A process that has the installed package and what pip installs with it, but nothing heavy; exit code, output, errors."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    block = f"import sys\nsys.modules.update(dict.fromkeys({blocked}))"
    (folder / "script.py").write_text(f"{block}\nsys.path.insert(0, {str(installed)!r})\n{script}", encoding="utf-8")
    command = [sys.executable, "-I", "script.py", *arguments]
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_the_package_has_every_file_of_the_library_and_no_other(installed):
    def files(folder: Path) -> set[str]:
        return {
            str(path.relative_to(folder)) for path in folder.rglob("*.*") if path.suffix != ".pyc" and path.is_file()
        }

    assert files(installed / "skill_grafting") == files(ROOT / "stages/skill_grafting")
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} == {"bin", "skill_grafting"}


def test_the_api_takes_what_pip_installs(installed, tmp_path):
    """No transformers is imported, nor DVC, pandas or matplotlib."""
    assert run(installed, tmp_path, API, blocked=(*HEAVY, "transformers")) == (0, "", "")


def test_every_subcommand_and_a_patch_on_live_models_with_what_pip_installs(installed, make_cell, tmp_path, monkeypatch):
    import torch
    from safetensors.torch import load_file

    from tests.pico import same

    cell = make_cell("standard")
    project = make_project(tmp_path / "project", cell)
    monkeypatch.chdir(project.folder)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    graft("export", MASK, "--to", folder / "patch")
    for name, source in (("base", cell.pretrained_folder), ("tuned", cell.finetuned_folder)):
        shutil.copytree(source, folder / name)

    lines = "apply patch --base base --to applied", "localize --base base --finetuned tuned --to found --sparsity 0.01 0.1"
    lines += "export patch --as peft --leave-out --base base --to adapter", "inspect patch", "predict patch 'a film' --base base"
    assert {line.split()[0] for line in lines} == {*COMMANDS}
    code, said, error = run(installed, folder, COMMAND + LIVE, *lines, blocked=PIPELINE)
    assert code == 0, error
    assert same(torch.load(folder / "loaded"), load_file(folder / "applied/model.safetensors"))
    assert {path.name for path in (folder / "found").iterdir()} == {"0.01", "0.1", "curve.png"}
    assert "graftable" in said and "positive" in said.splitlines()[-1] and (folder / "adapter").is_dir()


def test_the_command_is_read_at_once_and_a_missing_package_is_one_line(installed, tmp_path):
    code, told, error = run(installed, tmp_path, COMMAND, "--help", blocked=(*HEAVY, "torch", "transformers", "numpy"))
    assert code == 0 and all(f"\n    {name} " in told for name in COMMANDS), error
    assert re.fullmatch(r"graft \d+\.\d+\.\d+\n", run(installed, tmp_path, COMMAND, "--version")[1])
    line = "graft inspect: needs the package tabulate, which is not installed; pip install it\n"
    assert run(installed, tmp_path, COMMAND, "inspect mask.safetensors", blocked=("tabulate",)) == (2, "", line)
