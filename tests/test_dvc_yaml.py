"""Every dvc.yaml says of every stage what its script reads, asks for and writes: nothing is missing, nothing too much."""

import ast
import importlib
import json
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from stages import code
from stages.lib import paths
from stages.lib.data.tasks import registry
from stages.lib.entry import _script_module
from stages.lib.localizers.settings import NAMES
from stages.lib.params import MODEL, RUNTIME
from stages.lib.settings import RuntimeParams

ROOT = Path(__file__).parents[1]
MAIN = "main"


def pipeline(file: str) -> dict[str, dict[str, Any]]:
    return YAML(typ="safe").load((ROOT / file).read_text(encoding="utf-8"))


FILES = {MAIN: "dvc.yaml"} | {
    path.parent.name: str(path.relative_to(ROOT)) for path in sorted((ROOT / "stages").glob("*/dvc.yaml"))
}
PIPELINES: dict[str, dict[str, dict[str, Any]]] = {name: pipeline(file)["stages"] for name, file in FILES.items()}
# the stage at the head of each pipeline, which looks at the code of the others
CODE = {name: stages.pop("code" if name == MAIN else f"{name}_code") for name, stages in PIPELINES.items()}
STAGES = PIPELINES[MAIN]
EXTENSIONS = {name: stages for name, stages in PIPELINES.items() if name != MAIN}
PIPELINE_OF = {stage: name for name, stages in PIPELINES.items() for stage in stages}
ALL = {stage: entry for stages in PIPELINES.values() for stage, entry in stages.items()}
CELL = ("${item.task}", "${item.seed}")

# Where the stages of the main pipeline write; those of the others in folders of their own names.
OUTPUTS = {
    "fetch": [paths.TABLES],
    "model": [paths.PRETRAINED],
    "sample": [paths.sample_dir(*CELL)],
    "finetune": [paths.finetuned(*CELL)],
    "reference": [paths.reading_dir("reference", (), CELL[1])],
    "controls": [paths.reading_dir("controls", (), CELL[1])],
    "movement": [paths.movement(*CELL)],
    "mask": [paths.learned(*CELL)],
    "evaluate": [paths.predictions("evaluate", *CELL), paths.scores("evaluate", *CELL)],
    "calibration": [paths.reading_dir("calibration", (), CELL[1])],
    "ood": [paths.reading_dir("ood", (), CELL[1])],
}
REPORTS = {name: (paths.report(name), paths.report_plots(name)) for name in ("summary", *EXTENSIONS)}


@pytest.fixture(autouse=True)
def in_the_top_folder(monkeypatch):
    monkeypatch.chdir(ROOT)


def module(name: str) -> str:
    return f"stages.{name}" if PIPELINE_OF[name] == MAIN else f"stages.{PIPELINE_OF[name]}.{name}"


def script(name: str) -> Path:
    return ROOT / f"{module(name).replace('.', '/')}.py"


def deps(name: str, code: bool) -> list[str]:
    return [dep for dep in ALL[name]["deps"] if dep.startswith(f"{paths.CODE}/") == code]


def axes(name: str) -> list[str]:
    """The values that tell the cells of a stage apart, as they stand in paths."""
    return [f"${{item.{axis}}}" for axis in ALL[name].get("matrix", {})]


def lies_in(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def output_paths(name: str, *kinds: str) -> list[str]:
    entries = [entry for kind in kinds for entry in ALL[name].get(kind, [])]
    return [next(iter(entry)) if isinstance(entry, dict) else entry for entry in entries]


# --- Code --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PIPELINES)
def test_the_code_stage_depends_on_all_code_of_its_pipeline_and_on_nothing_else(name):
    used = {str(path) for stage in PIPELINES[name] for path in code.closure(module(stage))}
    of_reports = {path for path in used if lies_in(path, "stages/workflow")}
    of_pipeline = {path for path in used - of_reports if not lies_in(path, "stages/lib")} | {"stages/workflow"}
    entry = CODE[name]
    assert sorted(entry["deps"]) == sorted({"stages/lib", "stages/code.py"} | of_pipeline)
    assert entry["cmd"] == f"exec python -m stages.code --file {FILES[name]}"
    assert entry["outs"] == [f"{paths.CODE}/{name}"]
    # a shell sees what stands on an axis: a change of it is checked here before any other stage runs
    lists = {value[2:-1] for stage in PIPELINES[name].values() for value in stage.get("matrix", {}).values()}
    code_deps = [dep for stage in PIPELINES[name] for dep in deps(stage, code=True)]
    named = {setting for dep in code_deps for setting in re.findall(r"\$\{((?!item\.)[\w.]+)\}", dep)}
    localized = {name for name in PIPELINES[name] if calls(script(name), "load_localizer")}
    assert {*entry.get("params", [])} == lists | named | ({"localizer"} if localized else set())


@pytest.mark.parametrize("name", ALL)
def test_a_stage_depends_on_the_digests_of_its_own_code(name):
    place = f"{paths.CODE}/{PIPELINE_OF[name]}/{name}"
    assert deps(name, code=True)
    assert [dep for dep in deps(name, code=True) if dep != f"{place}.json" and not lies_in(dep, place)] == []


def test_the_digests_are_of_what_a_script_imports_also_in_functions_and_through_modules():
    mask, movement = ({str(path) for path in code.closure(f"stages.{name}")} for name in ("mask", "movement"))
    assert {"stages/mask.py", "stages/lib/models/label_model.py"} <= mask  # imported inside main()
    assert "stages/lib/graft/select.py" in movement  # through mask_file.py
    assert Path("stages/lib/graft/select.py") not in code.read(Path("stages/movement.py")).imports
    assert "stages/lib/data/tasks.py" not in movement  # there only through params.py, which isn't tracked
    assert "stages/lib/data/packages.yaml" in {str(path) for path in code.closure("stages.model")}
    assert mask.isdisjoint(map(str, code.UNTRACKED))


def test_a_digest_is_of_the_syntax_without_comments_docstrings_and_layout(tmp_path):
    def digest(text: str) -> str:
        path = tmp_path / f"{len([*tmp_path.iterdir()])}.py"
        path.write_text(text)
        return code.read(path).digest

    text = "def f(x: int) -> int:\n    return x + 1\n"
    assert digest('"""Module."""\n\n# why\n' + text.replace("\n ", '\n    """Add."""\n ').replace("x +", "(x  +")
                  .replace("1", "1)")) == digest(text)  # fmt: skip
    changes = [("+", "-"), ("1", "1.0"), ("f(", "g("), (": int", ""), ("x +", "f +"), ("return ", 'return "" and ')]
    others = [text.replace(*change) for change in changes]
    assert len({*map(digest, [text, *others])}) == 1 + len(others)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_file_that_is_named_after_a_localizer_has_its_module_too(name):
    for place, files in code.code_digests(Path(FILES[name])).items():
        of_stage = place.parts[len(paths.CODE.parts) + 1].removesuffix(".json")
        localizer = re.sub(r"_[0-9.]+$", "", place.stem) if place.stem != of_stage else ""
        file = f"stages/lib/localizers/{localizer}.py"
        assert (file in files) >= Path(file).is_file()
        assert ("localizer." + localizer in files) == (localizer in NAMES and bool(asked_by_name(of_stage)))
        read = {path for path in files if not path.startswith("localizer.")}
        assert read == {*map(str, code.closure(module(of_stage), f"stages.lib.localizers.{localizer}"))}


def asked_by_name(stage: str) -> list[str]:
    """The argument whose localizer's settings a script asks for, which have to be among its digests."""
    return [call.args[0].id for call in calls(script(stage), "load_localizer")]


@pytest.mark.parametrize("name", ALL)
def test_a_stage_that_asks_for_settings_by_a_name_has_it_in_the_name_of_its_digests(name):
    for argument in asked_by_name(name):
        assert deps(name, code=True) == [f"{paths.CODE}/{PIPELINE_OF[name]}/{name}/${{item.{argument}}}.json"]


@cache
def calls(path: Path, *functions: str) -> list[ast.Call]:
    """Where a module calls these functions."""
    nodes = (node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call))
    return [node for node in nodes if getattr(node.func, "id", "") in functions]


@pytest.mark.parametrize("name", ALL)
def test_a_stage_that_asks_for_a_localizer_depends_on_its_module(name):
    files = [
        path for path in code.closure(module(name)) if path.suffix == ".py" and code.LOCALIZERS not in path.parents
    ]
    asked = [call.args[0] for path in files for call in calls(path, "find_mask", "localizer_of")]
    given = [dep.split("/")[4].removesuffix(".json") for dep in deps(name, code=True) if dep.count("/") == 4]
    assert bool(asked) == bool(given)
    assert {node.value for node in asked if isinstance(node, ast.Constant)} <= {*given}


def test_what_changes_of_the_code_is_told_by_its_files(tmp_path, monkeypatch):
    place = paths.CODE / MAIN / "ood.json"
    digests = code.code_digests(paths.PIPELINE)[place]
    old = digests | {"stages/ood.py": "another", "stages/gone.py": "one"}
    monkeypatch.setattr(code, "read_json", {place: old}.get)
    assert code.changed_code(place) == ["stages/gone.py", "stages/ood.py"]


def test_untracked_code_stores_nothing():
    for path in code.UNTRACKED - {Path("stages/lib/io.py")}:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\b(write_\w+|replacing|save_file)\(", text), path
        assert Path("stages/lib/runtime.py") not in code.read(path).imports
    assert re.search(r"\bwrite_rows\(", Path("stages/sample.py").read_text(encoding="utf-8"))


# --- Settings and commands ---------------------------------------------------------------------------------------


def asked_for(name: str) -> list[str]:
    """The keys of the one load_params(...) call in a script, or none, as dvc.yaml spells them."""
    found = calls(script(name), "load_params")
    assert len(found) <= 1
    return [name for call in found for key in call.args for name in spelt(key)]


def spelt(key: ast.expr) -> list[str]:
    """A literal, those of *MODEL, or a setting that an argument of the stage names: f"order.{order}" is order.${item.order}."""
    if isinstance(key, ast.Starred):
        assert key.value.id == "MODEL"
        return [*MODEL]
    if isinstance(key, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else f"${{item.{part.value.id}}}" for part in key.values)
        return ["".join(parts)]
    assert isinstance(key, ast.Constant)
    return [key.value]


@pytest.mark.parametrize("name", ALL)
def test_a_stage_declares_exactly_the_settings_it_asks_for(name):
    assert asked_for(name) == ALL[name].get("params", [])


def test_what_changes_no_result_is_a_param_of_no_stage():
    asked = {key for name in ALL for key in ALL[name].get("params", []) if key.partition(".")[0] == "runtime"}
    assert asked == {*RUNTIME, "runtime.processes"}  # not the section as a whole
    # what is read all the same, by no stage's script
    unlisted = {"checkpoint_seconds", "gradient_checkpointing", "resources"}
    assert {f"runtime.{name}" for name in {*RuntimeParams.model_fields} - unlisted} == asked
    assert [name for name in ALL if calls(script(name), "checkpoint_seconds")] == []


def test_stages_that_ask_for_the_runtime_come_after_the_model():
    # their settings are held against models/pretrained (stages/lib/params.py), which has to be the one they are about
    asking = {name for name in ALL if {*RUNTIME} <= {*ALL[name].get("params", [])}}
    assert asking == {name for name in ALL if str(paths.PRETRAINED) in deps(name, code=False)} - {"movement"}


def upstream(name: str) -> set[str]:
    """All stages whose outputs lead to a stage, itself among them."""
    found, due = set(), {name}
    while due:
        found |= due
        places = [fixed(dep) for stage in due for dep in deps(stage, code=False)]
        due = {
            stage
            for stage in {*ALL} - found
            for out in map(fixed, output_paths(stage, "outs"))
            if any(lies_in(out, place) or lies_in(place, out) for place in places)
        }
    return found


def fixed(path: str) -> str:
    """A path up to its first axis."""
    return path.partition("/${")[0]


def test_the_summary_follows_from_all_stages_of_its_pipeline_and_from_no_other():
    assert upstream("summary") == {*STAGES} and upstream("calibration") == {*STAGES} - {"summary", "ood"}


@pytest.mark.parametrize("name", sorted({*ALL} - {*REPORTS}))
def test_a_stage_declares_the_lists_that_its_tasks_are_chosen_from(name):
    asked = ALL[name].get("params", [])
    for choice in importlib.import_module(settings_module(name)).TASKS:
        if any(key in (choice.place, choice.place.partition(".")[0]) for key in asked):
            assert choice.source in asked, f"{choice.place} depends on {choice.source}"


def settings_module(name: str) -> str:
    return "stages.settings" if PIPELINE_OF[name] == MAIN else f"stages.{PIPELINE_OF[name]}.settings"


def test_only_scripts_and_commands_ask_for_settings():
    # what hands a stage its arguments looks for them there, and takes nothing; a command is no stage
    entry = {ROOT / "stages/lib" / name for name in ("params.py", "entry.py", "patches/export.py")}
    libraries = [path.relative_to(ROOT) for path in {*(ROOT / "stages/lib").rglob("*.py")} - entry]
    assert [str(path) for path in libraries if Path("stages/lib/params.py") in code.read(path).imports] == []


@pytest.mark.parametrize("name", ALL)
def test_a_command_runs_the_script_of_its_stage_with_the_arguments_it_takes(name):
    tree = ast.parse(script(name).read_text(encoding="utf-8"))
    main = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
    takes = [argument.arg for argument in main.args.args]
    given = "".join(f" --{argument} ${{item.{argument}}}" for argument in takes)
    assert ALL[name]["cmd"] == f"exec python -m {module(name)}{given}"
    assert [*ALL[name].get("matrix", {})] == takes


@pytest.mark.parametrize("name", ALL)
def test_a_stage_runs_for_lists_of_its_pipelines_settings_and_last_for_its_seeds(name):
    settings, matrix = pipeline("params.yaml"), ALL[name].get("matrix", {})
    if PIPELINE_OF[name] == MAIN:
        assert matrix == {axis: f"${{{axis}s}}" for axis in matrix}
        return
    sections = importlib.import_module(f"stages.{PIPELINE_OF[name]}.settings").SECTIONS
    for axis, place in matrix.items():
        if axis == "seed":  # a matrix can't make anything of null, so every stage runs for all seeds
            assert place == "${seeds}"
            continue
        section, setting = re.fullmatch(r"\$\{(\w+)\.(\w+)\}", place).groups()
        assert section in sections
        assert setting == (f"{axis[:-1]}ies" if axis.endswith("y") else f"{axis}s")
        assert isinstance(settings[section][setting], list)
    assert [*matrix][-1:] == ([] if name in REPORTS else ["seed"])


@pytest.mark.parametrize("name", EXTENSIONS)
def test_another_pipeline_stands_in_the_top_folder_and_takes_its_settings_from_there(name):
    assert {entry["wdir"] for entry in [CODE[name], *EXTENSIONS[name].values()]} == {"../.."}
    assert pipeline(FILES[name])["vars"] == [f"../../{paths.PARAMS}"]
    assert name in EXTENSIONS[name], "its report has its name"


def test_every_stage_has_a_name_of_its_own_and_a_script_and_the_other_way_round():
    assert [name for name, stage in STAGES.items() if "wdir" in stage] == []
    assert len(ALL) == sum(map(len, PIPELINES.values()))
    modules = (ROOT / "stages").rglob("*.py")
    scripts = {path for path in modules if re.search(r"^@stage$", path.read_text("utf-8"), re.MULTILINE)}
    assert scripts == {*map(script, ALL), ROOT / "stages/code.py"}


def test_no_two_cells_share_a_stage_name():
    # `a@b-c-1` would be both (a, b-c) and (a-b, c)
    assert [name for name in (*registry(), *NAMES) if "-" in name] == []


def test_starting_a_stage_loads_no_heavy_library():
    heavy = ("torch", "transformers", "pandas", "matplotlib", "numpy", "datasets", "safetensors", "rich")
    program = "import importlib, json, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(json.dumps([*sys.modules]))"

    def loaded(*modules: str) -> set[str]:
        command = [sys.executable, "-c", program, *modules]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return {*json.loads(result.stdout)} & {*heavy}

    assert loaded(*map(module, ALL), "stages.code", "stages.commands.profile") == set()
    assert loaded("stages.lib.metrics.predictions") >= {"numpy"}
    plan = ("stages.commands.plan.costs", "stages.commands.plan.predicted_steps", "stages.lib.models.anatomy")
    assert not loaded(*plan) & {"torch", "transformers"}, "which would take most of the plan's time"


def test_a_script_has_its_module_s_name_wherever_the_project_lies(tmp_path):
    script = tmp_path / "stages/project/stages/study/toy.py"
    script.parent.mkdir(parents=True)
    script.write_text("def main(): pass\n")
    assert _script_module(runpy.run_path(str(script))["main"]) == "stages.study.toy"


# --- Inputs and outputs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_a_stage_writes_where_its_name_or_the_paths_module_says(name):
    written = output_paths(name, "outs")
    if name in REPORTS:
        assert [path for path in written if path not in drawn(name)] == [str(REPORTS[name][0].with_suffix(".md"))]
    elif PIPELINE_OF[name] == MAIN:
        assert written == [*map(str, OUTPUTS[name])]
    else:
        assert written
        for path in written:
            top, stage, *rest = path.split("/")
            assert top in ("masks", "models", str(paths.METRICS)) and stage == name
            assert sorted(rest) == sorted(axes(name))


def drawn(name: str) -> list[str]:
    """Plots among the outputs of a stage."""
    return [path for path in output_paths(name, "outs") if lies_in(path, str(paths.PLOTS))]


def test_only_reports_declare_metrics_and_plots_and_none_that_dvc_would_draw_against_its_row_numbers():
    assert [name for name in ALL if output_paths(name, "metrics") or drawn(name)] == [*REPORTS]
    assert [name for name in ALL if "plots" in ALL[name]] == []  # what is drawn stands at the end of each dvc.yaml
    for name, (metric, plots) in REPORTS.items():
        assert output_paths(name, "metrics") == [str(metric)]
        assert drawn(name) and all(plots in (Path(path), Path(path).parent) for path in drawn(name))


@pytest.mark.parametrize("name", ALL)
def test_whatever_a_stage_reads_is_made_by_an_earlier_one_or_by_the_user(name):
    before = [*dict.fromkeys([*STAGES, *PIPELINES[PIPELINE_OF[name]]])]
    made = [path for stage in before[: before.index(name)] for path in output_paths(stage, "outs")]
    given = ("${data.root}", "${model.root}", "${finetune.root}", "stages/lib/data/tasks.yaml")
    for dep in deps(name, code=False):
        assert dep in given or [path for path in made if lies_in(dep, path) or lies_in(path, dep)], dep


def for_git(name: str) -> list[str]:
    """Metrics, and outputs that git keeps instead of DVC's cache."""
    entries = [entry for kind in ("metrics", "outs") for entry in ALL[name].get(kind, []) if isinstance(entry, dict)]
    assert all(options == {"cache": False} for entry in entries for options in entry.values())
    return [path for entry in entries for path in entry]


def test_only_reports_write_for_git_and_no_output_switches_the_run_cache_off():
    # `persist` or `always_changed` would take a stage out of the run cache
    assert [name for name in ALL if for_git(name)] == [*REPORTS]
    assert all({*output_paths(name, "metrics"), *drawn(name)} <= {*for_git(name)} for name in REPORTS)
    assert [name for name, stage in ALL.items() if {*stage} & {"always_changed", "frozen"}] == []


def ignored(names: list[str]) -> set[str]:
    command = ["git", "check-ignore", "--no-index", *names]
    return {*subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()}


def test_git_ignores_what_dvc_caches_and_nothing_else_that_is_written():
    kept = [path for name in REPORTS for path in for_git(name)]
    made = [path for name in ALL for path in output_paths(name, "outs") if path not in kept]
    filled = [re.sub(r"\$\{item\.(\w+)\}", r"\1", path) for path in made]
    filled += [entry["outs"][0] for entry in CODE.values()]
    assert ignored(filled) == {*filled} and len(filled) >= len(ALL)
    files = ["dvc.yaml", "dvc.lock", "params.yaml", "data/local/reviews/train.csv", *CODE[MAIN]["deps"]]
    of_others = ["stages/{}/dvc.yaml", "stages/{}/dvc.lock", "plots/{}/any.csv"]
    files += [file.format(name) for name in EXTENSIONS for file in of_others]
    assert ignored([*kept, *files]) == set()


def test_what_a_report_reads_is_there_even_where_its_stages_are_off():
    # an empty list makes no cell, and DVC refuses a missing dep; so git keeps the empty folders
    made = {path for stages in EXTENSIONS.values() for stage in stages for path in output_paths(stage, "outs")}
    folders = {dep for name in EXTENSIONS for dep in deps(name, code=False) if any(lies_in(path, dep) for path in made)}
    placeholders = {f"{dep}/.gitkeep" for dep in folders if dep.split("/")[0] != str(paths.PLOTS)}
    listed = subprocess.run(["git", "ls-files", *placeholders], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {*listed.stdout.split()} == placeholders
