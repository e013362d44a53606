"""Every dvc.yaml says of every stage what its script reads, asks for and writes: nothing is missing, nothing too much."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from dvc.fs import localfs
from dvc.ignore import DvcIgnoreFilter
from ruamel.yaml import YAML

from skill_grafting.localizers.registry import METHODS
from stages.text.tasks.settings import RuntimeParams
from stages.text.tasks.tasks import registry
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import GIVEN
from stages.workflow.stage.settings import RUNTIME, owner_of, params_file
from tests.imports import ROOT, closure, module_file

MAIN = "main"


def pipeline(file: str) -> dict[str, dict[str, Any]]:
    return YAML(typ="safe").load((ROOT / file).read_text(encoding="utf-8"))


FILES = {MAIN: "dvc.yaml"} | {
    path.parent.name: str(path.relative_to(ROOT)) for path in sorted((ROOT / "stages").glob("*/dvc.yaml"))
}
PIPELINES: dict[str, dict[str, dict[str, Any]]] = {name: pipeline(file)["stages"] for name, file in FILES.items()}
STAGES = PIPELINES[MAIN]
EXTENSIONS = {name: stages for name, stages in PIPELINES.items() if name != MAIN}
PIPELINE_OF = {stage: name for name, stages in PIPELINES.items() for stage in stages}
ALL = {stage: entry for stages in PIPELINES.values() for stage, entry in stages.items()}
REPORTS = {name: (paths.report(name), paths.report_plots(name)) for name in ("summary", *EXTENSIONS)}


@pytest.fixture(autouse=True)
def in_the_top_folder(monkeypatch):
    monkeypatch.chdir(ROOT)


def keys_of(entry: dict[str, Any]) -> list[str]:
    """Every setting under `params` of a stage; one of a further pipeline stands under the file that has it."""
    found = [part if isinstance(part, dict) else {str(paths.PARAMS): [part]} for part in entry.get("params", [])]
    keys = [(file, key) for part in found for file in part for key in part[file]]
    assert all(params_file(owner_of(key.partition(".")[0])) == Path(file) for file, key in keys)
    return [key for _, key in keys]


def module(name: str) -> str:
    return f"stages.{name}" if PIPELINE_OF[name] == MAIN else f"stages.{PIPELINE_OF[name]}.{name}"


def script(name: str) -> Path:
    return ROOT / f"{module(name).replace('.', '/')}.py"


def data_deps(name: str) -> list[str]:
    return [dep for dep in ALL[name]["deps"] if not dep.startswith("stages/")]


def lies_in(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def output_paths(name: str, *kinds: str) -> list[str]:
    entries = [entry for kind in kinds for entry in ALL[name].get(kind, [])]
    return [next(iter(entry)) if isinstance(entry, dict) else entry for entry in entries]


# --- Code --------------------------------------------------------------------------------------------------------


@cache
def files_of(dep: str) -> set[Path]:
    """The files that DVC hashes for a dep of code: all of a folder but what .dvcignore names, or the one file."""
    found = not_ignored().find(localfs, str(ROOT / dep)) if (ROOT / dep).is_dir() else [str(ROOT / dep)]
    return {Path(file).relative_to(ROOT) for file in found}


@cache
def not_ignored() -> DvcIgnoreFilter:
    return DvcIgnoreFilter(localfs, str(ROOT))


def code_deps(name: str) -> list[str]:
    return [dep for dep in ALL[name]["deps"] if dep.startswith("stages/")]


@cache
def needed(name: str) -> set[Path]:
    """The files that a stage imports: from its script, and from its pipeline's settings."""
    return closure(script(name).relative_to(ROOT), module_file(settings_module(name)))


def lacking(name: str, deps: Iterable[str]) -> set[Path]:
    """What a stage imports and none of these deps covers."""
    return needed(name) - {file for dep in deps for file in files_of(dep)}


@pytest.mark.parametrize("name", ALL)
def test_a_stage_depends_on_every_module_that_it_imports(name):
    assert lacking(name, code_deps(name)) == set()


@pytest.mark.parametrize("name", ALL)
def test_no_dep_on_code_could_be_left_out(name):
    """So a module that a stage imports and that is no dep of it fails the test above, whichever it is."""
    deps = code_deps(name)
    tables = {dep for dep in deps if dep.endswith((".yaml", ".csv"))}
    for dep in {*deps} - tables:
        assert lacking(name, [other for other in deps if other != dep]), dep


@pytest.mark.parametrize("name", sorted({*ALL} - {*REPORTS}))
def test_no_stage_but_a_report_depends_on_a_report(name):
    files = {file for dep in code_deps(name) for file in files_of(dep)}
    reports = {script(report).relative_to(ROOT) for report in REPORTS}
    assert files.isdisjoint(reports | files_of("stages/workflow/report")) and files.isdisjoint(files_of("stages/commands"))


def test_localizers_which_are_loaded_by_their_names_are_part_of_the_library():
    localizers = {Path(f"stages/skill_grafting/localizers/{place.partition('.')[0]}.py") for place in METHODS.values()}
    assert closure(*localizers) <= files_of("stages/skill_grafting")


@cache


# --- Settings and commands ---------------------------------------------------------------------------------------


def test_what_changes_no_result_is_a_param_of_no_stage():
    asked = {key for name in ALL for key in keys_of(ALL[name]) if key.partition(".")[0] == "runtime"}
    assert asked == {*RUNTIME}  # not the section as a whole
    unlisted = {"gradient_checkpointing", "resources"}
    assert {f"runtime.{name}" for name in {*RuntimeParams.model_fields} - unlisted} == asked


def test_stages_that_ask_for_the_runtime_come_after_the_model():
    # how they compute hangs on what is in models/pretrained, which has to be the one they are about; the summary reads its tokenizer
    asking = {name for name in ALL if {*RUNTIME} <= {*keys_of(ALL[name])}}
    assert asking == {name for name in ALL if str(paths.PRETRAINED) in data_deps(name)} - {"movement", "summary"}
    assert asking == {name for name in ALL if "machine" in taken(name)}


@pytest.mark.parametrize("name", sorted({*ALL} - {*REPORTS}))
def test_a_stage_declares_the_lists_that_its_tasks_are_chosen_from(name):
    asked = keys_of(ALL[name])
    for choice in importlib.import_module(settings_module(name)).TASKS:
        if any(key in (choice.place, choice.place.partition(".")[0]) for key in asked):
            assert choice.source in asked, f"{choice.place} depends on {choice.source}"


def settings_module(name: str) -> str:
    return "stages.workflow.stage.sections" if PIPELINE_OF[name] == MAIN else f"stages.{PIPELINE_OF[name]}.settings"


def taken(name: str) -> list[str]:
    """What main takes; it stands last in its script, since it runs as soon as it is there."""
    main = ast.parse(script(name).read_text(encoding="utf-8")).body[-1]
    assert main.name == "main" and [one.id for one in main.decorator_list] == ["stage"]
    return [argument.arg for argument in main.args.args]


@pytest.mark.parametrize("name", ALL)
def test_a_command_runs_the_script_of_its_stage_with_the_arguments_it_takes(name):
    takes = [argument for argument in taken(name) if argument not in GIVEN]
    given = "".join(f" --{argument} ${{item.{argument}}}" for argument in takes)
    assert ALL[name]["cmd"] == f"exec python -m {module(name)}{given}"
    assert [*ALL[name].get("matrix", {})] == takes


@pytest.mark.parametrize("name", ALL)
def test_a_stage_runs_for_lists_of_its_pipelines_settings_and_last_for_its_seeds(name):
    matrix = ALL[name].get("matrix", {})
    own = {axis: place for axis, place in matrix.items() if PIPELINE_OF[name] != MAIN and axis != "seed"}
    for axis, place in own.items():
        section, setting = re.fullmatch(r"\$\{(\w+)\.(\w+)\}", place).groups()
        assert owner_of(section) == PIPELINE_OF[name] and setting == f"{axis}s".replace("ys", "ies")
        assert isinstance(pipeline(str(params_file(PIPELINE_OF[name])))[section][setting], list)
    # a matrix can't make anything of null, so every stage of another pipeline runs for all seeds
    assert {axis: place for axis, place in matrix.items() if axis not in own} == {axis: f"${{{axis}s}}" for axis in matrix if axis not in own}
    assert PIPELINE_OF[name] == MAIN or [*matrix][-1:] == ([] if name in REPORTS else ["seed"])


@pytest.mark.parametrize("name", EXTENSIONS)
def test_another_pipeline_stands_in_the_top_folder_and_takes_its_settings_from_there(name):
    assert {entry["wdir"] for entry in EXTENSIONS[name].values()} == {"../.."}
    assert pipeline(FILES[name])["vars"] == [f"../../{paths.PARAMS}"]
    assert name in EXTENSIONS[name], "its report has its name"


def test_every_stage_has_a_name_of_its_own_and_a_script_and_the_other_way_round():
    assert [name for name, stage in STAGES.items() if "wdir" in stage] == []
    assert len(ALL) == sum(map(len, PIPELINES.values()))
    modules = (ROOT / "stages").rglob("*.py")
    scripts = {path for path in modules if re.search(r"^@stage$", path.read_text("utf-8"), re.MULTILINE)}
    assert scripts == {*map(script, ALL)}
    assert [name for name in (*registry(), *METHODS) if "-" in name] == [], "a@b-c-1 would be two cells"


def test_what_runs_stages_and_checks_settings_loads_no_heavy_library():
    heavy = {"torch", "transformers", "pandas", "matplotlib", "numpy", "datasets", "safetensors", "rich"}

    def loaded(*modules: str) -> set[str]:
        program = f"import {', '.join(modules)}, sys; print(*sys.modules)"
        return {*subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True).split()} & heavy

    # each fork of a stage imports the runner anew
    assert loaded("stages.commands.profile", "stages.workflow.stage.settings", "stages.workflow.run") == set()
    assert not loaded("stages.workflow.plan", "stages.workflow.repro") & {"torch", "transformers"}
    assert loaded("stages, stages.text.scores.predictions") >= {"numpy"}, "control"


# --- Inputs and outputs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_a_stage_writes_where_its_name_says(name):
    written = [path for path in output_paths(name, "outs") if path not in drawn(name)]
    if name in REPORTS:
        metric, of_main = REPORTS[name][0], name == "summary"
        claims = metric.with_name(f"{metric.stem}_claims.json")
        assert written == [*[str(metric)] * (not of_main), str(metric.with_suffix(".md")), str(claims)]
    elif PIPELINE_OF[name] != MAIN:  # tests/test_dvc.py compares those of the main pipeline with what is opened
        axes = [f"${{item.{axis}}}" for axis in ALL[name].get("matrix", {})]
        for path in written:
            top, stage, *rest = path.split("/")
            assert top in ("masks", "models", str(paths.METRICS)) and stage == name and sorted(rest) == sorted(axes)


def drawn(name: str) -> list[str]:
    """Plots among the outputs of a stage."""
    return [path for path in output_paths(name, "outs") if lies_in(path, str(paths.PLOTS))]


def test_only_reports_declare_metrics_and_plots_which_git_keeps_and_no_output_switches_the_run_cache_off():
    assert [name for name in ALL if output_paths(name, "metrics") or drawn(name)] == [*REPORTS]
    assert [name for name in ALL if for_git(name)] == [*REPORTS]
    # what is drawn stands at the end of each dvc.yaml; the others would take a stage out of the run cache
    assert [name for name, stage in ALL.items() if {*stage} & {"plots", "always_changed", "frozen"}] == []
    for name, (metric, plots) in REPORTS.items():
        # one headline counts as metrics, or `dvc exp show` would have a column for each number of all pipelines
        assert output_paths(name, "metrics") == [str(metric)] * (name == "summary")
        assert drawn(name) and all(plots in (Path(path), Path(path).parent) for path in drawn(name))
        assert {str(metric), *drawn(name)} <= {*for_git(name)}


@pytest.mark.parametrize("name", ALL)
def test_whatever_a_stage_reads_is_made_by_an_earlier_one_or_by_the_user(name):
    """An earlier one of its pipeline or of the main one, but of no other."""
    before = [*dict.fromkeys([*STAGES, *PIPELINES[PIPELINE_OF[name]]])]
    made = [path for stage in before[: before.index(name)] for path in output_paths(stage, "outs")]
    for dep in {*data_deps(name)} - {"${data.root}", "${model.root}", "${finetune.root}"}:
        assert any(lies_in(dep, path) or lies_in(path, dep) for path in made), dep


def for_git(name: str) -> list[str]:
    """Metrics, and outputs that git keeps instead of DVC's cache."""
    entries = [entry for kind in ("metrics", "outs") for entry in ALL[name].get(kind, []) if isinstance(entry, dict)]
    assert all(options == {"cache": False} for entry in entries for options in entry.values())
    return [path for entry in entries for path in entry]


def test_git_ignores_what_dvc_caches_and_nothing_else_that_is_written(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_bytes((ROOT / ".gitignore").read_bytes())

    def ignored(names: list[str]) -> set[str]:
        asked = subprocess.run(["git", "check-ignore", *names], cwd=tmp_path, capture_output=True, text=True, check=False)
        return {*asked.stdout.split()}

    kept = [path for name in REPORTS for path in for_git(name)]
    made = [path for name in ALL for path in output_paths(name, "outs") if path not in kept]
    filled = [re.sub(r"\$\{item\.(\w+)\}", r"\1", path) for path in made]
    filled += ["data/local/reviews/train.csv", "models/local/mine/config.json", "models/checkpoints/mine/config.json"]
    assert ignored(filled) == {*filled}
    folders = [".", *(f"stages/{name}" for name in EXTENSIONS)]
    assert ignored([*kept, "stages/fetch.py", *(f"{one}/{file}" for one in folders for file in ("dvc.yaml", "dvc.lock"))]) == set()


def test_what_a_report_reads_is_there_even_where_its_stages_are_off(published):
    # an empty list makes no cell, and DVC refuses a missing dep; so git keeps the empty folders
    made = {path for stages in EXTENSIONS.values() for stage in stages for path in output_paths(stage, "outs")}
    folders = {dep for name in EXTENSIONS for dep in data_deps(name) if any(lies_in(path, dep) for path in made)}
    placeholders = {f"{dep}/.gitkeep" for dep in folders if dep.split("/")[0] != str(paths.PLOTS)}
    assert placeholders and [file for file in placeholders if not (published / file).is_file()] == []
