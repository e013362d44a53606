"""The package that `pip install .` makes: its files, and what it does with torch, transformers and the little that comes with them alone."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from skill_grafting.patches.__main__ import COMMANDS
from tests.graft_project import MASK, ROOT, as_patch, make_project

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
README = re.search(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)[1]
LIVE = """
import skill_grafting as sg
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
# what needs an extra -> what is then said
OPTIONAL = {
    "sg.methods()": "needs the package pandas: pip install 'skill-grafting[tables]'",
    "sg.curve(base, tuned, {0.05: mask}, lambda model: 1.0)": "needs the package pandas: pip install 'skill-grafting[tables]'",
    "sg.merge(base, {'a': (tuned, mask)}, how='ties')": "needs the package peft: pip install 'skill-grafting[merge]'",
}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.lower())


def names(pins: list[str]) -> set[str]:
    return {canonical(Requirement(pin).name) for pin in pins}


def installed_with(pins: list[str]) -> set[str]:
    """The distributions that pip installs for these requirements."""
    found, due = set(), {*pins}
    while due:
        wanted = {canonical(one.name) for one in map(Requirement, due) if not one.marker or one.marker.evaluate({"extra": ""})}
        due = {pin for name in wanted - found for pin in distribution(name).requires or ()}
        found |= wanted
    return found


def others() -> list[str]:
    """The modules of this environment that pip doesn't install with the package."""
    known = installed_with(PROJECT["dependencies"]) | {"skill-grafting"}
    modules = packages_distributions().items()
    return [module for module, owners in modules if not {*map(canonical, owners)} & known]


def test_what_others_get_is_what_is_tested_and_little_more_than_torch_and_transformers():
    needed, usual = names(PROJECT["dependencies"]), installed_with(["torch", "transformers", "safetensors"])
    assert {"torch", "transformers", "safetensors"} <= needed <= names(EXTRAS["pipeline"])
    assert needed - usual <= {"pydantic", "xxhash"}
    assert all("==" in pin for pin in [*EXTRAS["pipeline"], *EXTRAS["test"]])
    assert {"peft", "pandas", "matplotlib", "scipy", "tabulate", "dvc"} <= {*others()}, "control"


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


def run(installed: Path, folder: Path, script: str, *arguments: str, also: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """A process that has the installed package and what pip installs with it, less what is `also` missing; exit code, output, errors."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    block = f"import sys\nsys.modules.update(dict.fromkeys({[*others(), *also]}))"
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


def test_readme_s_lines_need_no_transformers_and_what_needs_an_extra_says_which(installed, tmp_path):
    tried = "\n".join(f"try:\n    {line}\nexcept sg.GraftError as error:\n    print(error)" for line in OPTIONAL)
    code, said, error = run(installed, tmp_path, f"{README}\n{tried}", also=("transformers",))
    first, second, *lines = said.splitlines()
    assert code == 0 and first == "73 of 1474 parameters" and "grafted" in second, error
    assert lines == [*OPTIONAL.values()]


def test_every_subcommand_and_a_patch_on_live_models(installed, make_cell, tmp_path, monkeypatch):
    import torch
    from safetensors.torch import load_file

    from tests.pico import same

    cell, folder = make_cell("standard"), tmp_path / "elsewhere"
    monkeypatch.chdir(make_project(tmp_path / "project", cell).folder)
    folder.mkdir()
    as_patch(MASK, folder / "patch")
    for name, source in (("base", cell.pretrained_folder), ("tuned", cell.finetuned_folder)):
        shutil.copytree(source, folder / name)
    lines = "apply patch --base base --to applied", "localize --base base --finetuned tuned --to found --sparsity 0.01 0.1"
    lines += "export patch --leave-out --base base --to adapter", "inspect patch", "diff --base base --finetuned tuned --to exact"
    lines += ("merge recipe.yml --to merged",)
    (folder / "recipe.yml").write_text("{merge_method: task_arithmetic, base_model: base, models: [{model: tuned, parameters: {weight: 0.5}}]}")
    assert {line.split()[0] for line in lines} == {*COMMANDS}
    code, said, error = run(installed, folder, COMMAND + LIVE, *lines)
    assert code == 0 and "graftable" in said and (folder / "adapter/adapter_config.json").is_file(), error
    assert same(torch.load(folder / "loaded"), load_file(folder / "applied/model.safetensors"))
    assert {path.name for path in (folder / "found").iterdir()} == {"0.01", "0.1"}


def test_the_command_is_read_at_once(installed, tmp_path):
    code, told, error = run(installed, tmp_path, COMMAND, "--help", also=("torch", "transformers", "numpy"))
    assert code == 0 and all(f"\n    {name} " in told for name in COMMANDS), error
    assert re.fullmatch(r"graft \d+\.\d+\.\d+\n", run(installed, tmp_path, COMMAND, "--version")[1])
