"""Every dvc.yaml says of every stage what its script reads, asks for and writes: nothing is missing, nothing too much."""

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from stages.lib import paths
from stages.lib.data.tasks import registry
from stages.lib.localizers.names import NAMES
from stages.lib.localizers.registry import LOCALIZERS

ROOT = Path(__file__).parents[1]


def pipeline(file: str) -> dict[str, dict[str, Any]]:
    return YAML(typ="safe").load((ROOT / file).read_text(encoding="utf-8"))


STAGES: dict[str, dict[str, Any]] = pipeline("dvc.yaml")["stages"]
# name -> stages of each pipeline that builds on the main one
EXTENSIONS: dict[str, dict[str, dict[str, Any]]] = {
    path.parent.name: pipeline(str(path.relative_to(ROOT)))["stages"]
    for path in sorted((ROOT / "stages").glob("*/dvc.yaml"))
}
PIPELINE_OF = {stage: name for name, stages in EXTENSIONS.items() for stage in stages}
ALL = STAGES | {stage: entry for stages in EXTENSIONS.values() for stage, entry in stages.items()}
CELL = ("${item.task}", "${item.seed}")
AT = ("${item.localizer}", "${item.sparsity}")
EXAMPLES = {
    "task": "movies",
    "seed": "13",
    "localizer": "learned",
    "sparsity": "0.01",
    "readout": "reset",
    "method": "lora_8",
    "paradigm": "adamw",
    "order": "domain_last",
    "selection": "top_1",
}

# Code that no stage needs among its deps: what it reads is tracked as a param or a dep itself, and it computes nothing
# that is stored.
# The walk stops at these modules, so what only they import (tasks.py through params.py) needn't be listed either.
NOT_TRACKED = {
    *(f"stages/lib/{name}.py" for name in ("params", "paths", "entry", "errors", "yaml12", "progress", "artifacts")),
    *(f"stages/lib/data/{name}.py" for name in ("tasks", "task_cards")),
    "stages/lib/localizers/names.py",
}

# Rankings come to the sweep as data, so only what refines them is its code: a new localizer that only ranks makes no
# point of an old one anew.
NOT_FOLLOWED = {"sweep": "stages/lib/localizers/registry.py"}

# Settings and texts that a module reads from beside itself.  tasks.yaml is for fetch alone: other stages get their task
# from the card that fetch wrote.
DATA_FILES = {
    "stages/lib/data/packages.py": "stages/lib/data/packages.yaml",
    "stages/lib/data/fetching.py": "stages/lib/data/tasks.yaml",
    "stages/report/paper.py": "stages/report/paper.yaml",
    "stages/commands/page/reproduction.py": "stages/commands/page/reproduction.yaml",
    "stages/talos/report.py": "stages/talos/paper.yaml",
}

# Where a stage writes, but for the folder of metrics that every stage outside the main pipeline has.
OUTPUTS = {
    "fetch": [paths.TABLES],
    "model": [paths.PRETRAINED],
    "sample": [paths.sample_dir(*CELL)],
    "finetune": [paths.finetuned(*CELL)],
    "reference": [paths.scores_dir("reference", CELL[1])],
    "movement": [paths.movement(*CELL)],
    "mask": [paths.learned(*CELL)],
    "evaluate": [paths.predictions("evaluate", *CELL), paths.scores("evaluate", *CELL)],
    "calibration": [paths.scores_dir("calibration", CELL[1])],
    "ood": [paths.scores_dir("ood", CELL[1])],
    "summary": [paths.SUMMARY.with_suffix(".md")],
    "rank": [paths.rank(AT[0], *CELL).parents[1]],
    "sweep": [paths.sweep_mask(*AT, *CELL).parent],
    "edit": [paths.edited("${item.method}", *CELL).parent],
    "joint": [paths.joint("${item.paradigm}", CELL[1])],
    "skill": [paths.skill_mask("${item.paradigm}", *AT, *CELL).parents[1]],
} | {name: [paths.report(name).with_suffix(".md")] for name in EXTENSIONS}
REPORTS = {"summary": (paths.SUMMARY, paths.PLOTS)} | {
    name: (paths.report(name), paths.report_plots(name)) for name in EXTENSIONS
}
# These write no metrics, only masks or models.
WITHOUT_METRICS = {"rank", "joint", "skill"}
MEASURING = [name for name in PIPELINE_OF if name not in {*WITHOUT_METRICS, *REPORTS}]


def module(name: str) -> str:
    return f"stages.{PIPELINE_OF[name]}.{name}" if name in PIPELINE_OF else f"stages.{name}"


def script(name: str) -> str:
    return f"{module(name).replace('.', '/')}.py"


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


@cache
def imported(file: str) -> frozenset[str]:
    """Files of the project that a file imports itself, also inside functions."""
    return frozenset(
        found for node in ast.walk(tree(file)) for name in imported_names(node) if (found := module_file(name))
    )


def imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative imports are not followed here"
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def module_file(name: str) -> str | None:
    file = f"{name.replace('.', '/')}.py"
    return file if name.startswith("stages.") and (ROOT / file).is_file() else None


def code_of(name: str) -> set[str]:
    """Every file of the project that the result of a stage follows from."""
    found: set[str] = set()
    todo = [script(name), *(refining() if name in NOT_FOLLOWED else ())]
    while todo:
        file = todo.pop()
        if file not in found and file not in NOT_TRACKED and file != NOT_FOLLOWED.get(name):
            found.add(file)
            todo.extend(imported(file))
    return found | {DATA_FILES[file] for file in found if file in DATA_FILES}


def checking_settings() -> set[str]:
    """Every file that params.py needs; a stage opens them all, and what they say is tracked as params."""
    found, todo = set(), ["stages/lib/params.py"]
    while todo:
        file = todo.pop()
        if file not in found:
            found.add(file)
            todo.extend(imported(file))
    return found


def refining() -> set[str]:
    """Files of the localizers' refinements."""
    found = {inspect.getsourcefile(localizer.refine) for localizer in LOCALIZERS.values() if localizer.refine}
    return {str(Path(file).relative_to(ROOT)) for file in found}


def deps(name: str, code: bool) -> list[str]:
    return [dep for dep in ALL[name]["deps"] if dep.startswith("stages/") == code]


def axes(name: str) -> list[str]:
    """What tells the cells of a stage apart, as it stands in paths."""
    return [f"${{item.{axis}}}" for axis in ALL[name].get("matrix", {})]


def lies_in(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def output_paths(name: str, *kinds: str) -> list[str]:
    entries = [entry for kind in kinds for entry in ALL[name].get(kind, [])]
    return [next(iter(entry)) if isinstance(entry, dict) else entry for entry in entries]


@pytest.mark.parametrize("name", ALL)
def test_a_stage_depends_on_all_code_that_it_imports(name):
    assert {file for file in code_of(name) if not any(lies_in(file, dep) for dep in deps(name, code=True))} == set()


@pytest.mark.parametrize("name", ALL)
def test_a_stage_depends_on_no_code_that_it_does_not_import(name):
    listed = deps(name, code=True)
    assert [dep for dep in listed if not (ROOT / dep).exists()] == []
    assert [dep for dep in listed if not any(lies_in(file, dep) for file in code_of(name))] == []
    assert [dep for dep in listed if any(dep != other and lies_in(dep, other) for other in listed)] == []
    assert len({*listed}) == len(listed)


def test_the_walk_follows_imports_inside_functions_and_through_modules():
    assert "stages/lib/models/label_model.py" in code_of("mask")  # imported inside main()
    assert "stages/lib/graft/select.py" in code_of("movement")  # through order_file.py
    assert "stages/lib/graft/select.py" not in imported("stages/movement.py")
    assert code_of("calibration").isdisjoint(NOT_TRACKED) and script("calibration") in code_of("calibration")
    assert "stages/lib/data/tasks.py" not in code_of("movement")  # there only through params.py
    assert "stages/lib/localizers/attribution.py" in code_of("rank")


def test_the_sweep_follows_what_refines_masks_and_not_what_ranks():
    assert refining() == {f"stages/lib/localizers/{name}.py" for name in ("grown", "refined", "talos")}
    assert {file for file in code_of("sweep") if "/localize/" in file} == {
        f"stages/lib/localizers/{name}.py" for name in ("evidence", "grown", "learned", "movement", "refined", "talos")
    }
    assert NOT_FOLLOWED["sweep"] in imported(
        "stages/study/localizer_sweep.py"
    )  # the control: it is there to be followed
    assert "masks/rank/${item.seed}/${item.localizer}" in deps("sweep", code=False)


def test_the_names_that_settings_are_checked_against_are_those_of_the_registry():
    assert [*NAMES] == [*LOCALIZERS]


def test_every_data_file_beside_the_code_is_known_here():
    there = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "stages/lib").rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert there == {*DATA_FILES.values()}


def test_untracked_code_stores_nothing():
    for file in NOT_TRACKED - {"stages/lib/io.py"}:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not re.search(r"\b(write_\w+|replacing|save_file)\(", text), file
        assert not [name for name in imported(file) if name.endswith("runtime.py")], file
    assert re.search(r"\bwrite_rows\(", (ROOT / "stages/sample.py").read_text(encoding="utf-8"))


def asked_for(name: str) -> list[str]:
    """The keys of the one load_params(...) call in a script, or none, as dvc.yaml spells them."""
    calls = [
        node
        for node in ast.walk(tree(script(name)))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "load_params"
    ]
    assert len(calls) <= 1
    return [spelt(key) for call in calls for key in call.args]


def spelt(key: ast.expr) -> str:
    """A literal, or a setting that an argument of the stage names: f"order.{order}" is order.${item.order}."""
    if isinstance(key, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else f"${{item.{part.value.id}}}" for part in key.values
        )
    assert isinstance(key, ast.Constant)
    return key.value


@pytest.mark.parametrize("name", ALL)
def test_a_stage_declares_exactly_the_settings_it_asks_for(name):
    assert asked_for(name) == ALL[name].get("params", [])


def test_only_scripts_ask_for_settings():
    libraries = [
        str(path.relative_to(ROOT)) for path in (ROOT / "stages/lib").rglob("*.py") if path.name != "params.py"
    ]
    assert [file for file in libraries if "stages/lib/params.py" in imported(file)] == []
    assert asked_for("mask") == ["model", "runtime", "graft", "data.k"]


@pytest.mark.parametrize("name", ALL)
def test_a_command_runs_the_script_of_its_stage_with_the_arguments_it_takes(name):
    main = next(node for node in tree(script(name)).body if isinstance(node, ast.FunctionDef) and node.name == "main")
    takes = [argument.arg for argument in main.args.args]
    given = "".join(f" --{argument} ${{item.{argument}}}" for argument in takes)
    assert ALL[name]["cmd"] == f"exec python -m {module(name)}{given}"
    assert [*ALL[name].get("matrix", {})] == takes


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_of_the_main_pipeline_runs_for_all_tasks_and_seeds(name):
    matrix = ALL[name].get("matrix", {})
    assert matrix == {axis: f"${{{axis}s}}" for axis in matrix}


@pytest.mark.parametrize("name", PIPELINE_OF)
def test_a_stage_of_another_pipeline_runs_for_lists_of_its_sections_and_last_for_its_seeds(name):
    settings = pipeline("params.yaml")
    sections = importlib.import_module(f"stages.{PIPELINE_OF[name]}.settings").SECTIONS
    matrix = ALL[name].get("matrix", {})
    for axis, place in matrix.items():
        section, setting = re.fullmatch(r"\$\{(\w+)\.(\w+)\}", place).groups()
        assert section in sections
        assert setting == (f"{axis[:-1]}ies" if axis.endswith("y") else f"{axis}s")
        assert isinstance(settings[section][setting], list)
    assert [*matrix][-1:] == ([] if name in REPORTS else ["seed"])


@pytest.mark.parametrize("name", EXTENSIONS)
def test_another_pipeline_stands_in_the_top_folder_and_takes_its_settings_from_there(name):
    assert [stage for stage, entry in EXTENSIONS[name].items() if entry["wdir"] != "../.."] == []
    [settings] = pipeline(f"stages/{name}/dvc.yaml")["vars"]
    assert (ROOT / "stages" / name / settings).resolve() == (ROOT / paths.PARAMS).resolve()
    assert name in EXTENSIONS[name], "its report has its name"


def test_no_two_pipelines_have_a_stage_of_the_same_name():
    assert [name for name, stage in STAGES.items() if "wdir" in stage] == []
    assert len(ALL) == len(STAGES) + sum(len(stages) for stages in EXTENSIONS.values())


def test_every_script_with_a_stage_is_in_a_table_and_the_other_way_round():
    scripts = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "stages").rglob("*.py")
        if re.search(r"^@stage$", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert {*scripts} == {script(name) for name in ALL}
    assert {*OUTPUTS} | {*MEASURING} == {*ALL}


@pytest.mark.parametrize("name", ALL)
def test_a_stage_writes_where_the_paths_module_says(name):
    made = [*OUTPUTS.get(name, [])]
    if name in MEASURING:
        *others, seed = axes(name)
        made.append(paths.reading_dir(name, tuple(others), seed))
    assert output_paths(name, "outs") == [str(path) for path in made]


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_declares_its_metric_and_plots_where_the_paths_module_says(name):
    metric, plots = REPORTS[name]
    assert output_paths(name, "metrics") == [str(metric)]
    assert output_paths(name, "plots")
    assert all(plots in (Path(path), Path(path).parent) for path in output_paths(name, "plots"))


def test_only_reports_declare_metrics_and_plots():
    assert [name for name in ALL if output_paths(name, "metrics", "plots")] == [*REPORTS]


@pytest.mark.parametrize("name", ALL)
def test_whatever_a_stage_reads_is_made_by_an_earlier_one_or_by_the_user(name):
    own = [*EXTENSIONS[PIPELINE_OF[name]]] if name in PIPELINE_OF else []
    before = [*STAGES, *own]
    earlier = before[: before.index(name)]
    made = [path for stage in earlier for path in output_paths(stage, "outs")]
    for dep in deps(name, code=False):
        parts = [path for path in made if lies_in(dep, path) or lies_in(path, dep)]
        assert parts or dep in ("${data.root}", "${model.root}"), dep


def test_no_output_switches_the_run_cache_off():
    # `cache: false`, `persist` or `always_changed` would take a stage out of the run cache; metrics and plots may have the first
    switched = [
        (name, entry) for name, stage in ALL.items() for entry in stage.get("outs", []) if isinstance(entry, dict)
    ]
    assert switched == []
    assert [name for name, stage in ALL.items() if {*stage} & {"always_changed", "frozen"}] == []
    assert all(
        options["cache"] is False
        for name in REPORTS
        for kind in ("metrics", "plots")
        for entry in ALL[name][kind]
        for options in entry.values()
    )


def ignored(names: list[str]) -> set[str]:
    command = ["git", "check-ignore", "--no-index", *names]
    return {*subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()}


def test_git_ignores_what_dvc_caches_and_nothing_else_that_is_written():
    filled = [filled_in(path) for name in ALL for path in output_paths(name, "outs")]
    assert ignored(filled) == {*filled} and len(filled) >= len(ALL)
    for_git = [path for name in REPORTS for path in [*output_paths(name, "metrics", "plots"), *code_of(name)]]
    files = ["dvc.yaml", "dvc.lock", "params.yaml", "data/local/reviews/train.csv"]
    of_others = ["stages/{}/dvc.yaml", "stages/{}/dvc.lock", "plots/{}/any.csv"]
    files += [file.format(name) for name in EXTENSIONS for file in of_others]
    assert ignored([*for_git, *files]) == set()


def filled_in(path: str) -> str:
    """An output of one cell; an axis without an example stands for itself."""
    return re.sub(r"\$\{item\.(\w+)\}", lambda axis: EXAMPLES.get(axis[1], axis[1]), path)


@pytest.mark.parametrize("name", EXTENSIONS)
def test_what_a_report_reads_is_there_even_where_its_stages_are_off(name):
    # an empty list makes no cell, and DVC refuses a missing dep; so git keeps the empty folders
    made = {path for stage in EXTENSIONS[name] for path in output_paths(stage, "outs")}
    folders = [dep for dep in deps(name, code=False) if any(lies_in(path, dep) for path in made)]
    placeholders = [f"{dep}/.gitkeep" for dep in folders if dep.split("/")[0] != str(paths.PLOTS)]
    listed = subprocess.run(["git", "ls-files", *placeholders], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {*listed.stdout.split()} == {*placeholders} and placeholders


def test_no_two_cells_share_a_stage_name():
    # `a@b-c-1` would be both (a, b-c) and (a-b, c)
    assert [name for name in (*registry(), *NAMES) if "-" in name] == []


def test_starting_a_stage_loads_no_heavy_library():
    heavy = ("torch", "transformers", "pandas", "matplotlib", "numpy", "datasets", "safetensors", "rich")
    program = "import importlib, json, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(json.dumps([*sys.modules]))"

    def loaded(*modules: str) -> set[str]:
        result = subprocess.run(
            [sys.executable, "-c", program, *modules], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return {*json.loads(result.stdout)} & {*heavy}

    assert loaded(*map(module, ALL), "stages.commands.profile") == set()
    assert loaded("stages.lib.metrics.predictions") >= {"numpy"}
