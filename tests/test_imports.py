"""No module comes back to itself by its imports, the library imports nothing outside itself, and nobody imports a pipeline."""

import ast
import re
import tokenize
from io import StringIO
from pathlib import Path

import networkx
import pytest

import skill_grafting
from stages.workflow.stage.settings import PIPELINES, flat, load_all
from tests import imports
from tests.imports import ROOT

LIBRARY, TEXT = Path("stages/skill_grafting"), Path("stages/text")
# the floors of the library, the lowest first; what stands beside them is on top (api, curves)
FLOORS = ("support", "grafting", "localizers", "models", "modules", "checkpoints", "merging", "patches")
Edges = set[tuple[Path, Path]]


def edges(root: Path = ROOT) -> Edges:
    """Who imports whom, for types too."""
    files = [path.relative_to(root) for path in (root / "stages").rglob("*.py")]
    return {(path, other) for path in files for other in imports.imports(path, for_types=True) - {path}}


def circles(found: Edges) -> list[set[Path]]:
    return [part for part in networkx.strongly_connected_components(networkx.DiGraph(found)) if len(part) > 1]


def leaving(found: Edges) -> Edges:
    """The imports by which the library is left."""
    return {(one, other) for one, other in found if LIBRARY in one.parents and LIBRARY not in other.parents}


def floor(path: Path) -> int | None:
    name = path.relative_to(LIBRARY).parts[0].removesuffix(".py") if LIBRARY in path.parents else ""
    return FLOORS.index(name) if name in FLOORS else None


def test_the_library_stands_by_itself_and_nothing_imports_itself():
    found = edges()
    assert len(found) > 500 and leaving(found) == set() and circles(found) == []


def test_what_is_about_texts_knows_no_pipeline():
    above = {(one, other) for one, other in edges() if TEXT in one.parents and not {LIBRARY, TEXT} & {*other.parents}}
    assert above == set()


def said(path: Path) -> str:
    """What a file of the library says to people: its texts and comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text
    parts = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    comments = [token.string for token in tokenize.generate_tokens(StringIO(text).readline) if token.type == tokenize.COMMENT]
    return "\n".join([*parts, *comments])


SETTINGS = "|".join(re.escape(name) for name in flat(load_all(ROOT)) if "." in name and not name.startswith("task."))
CLIENT = re.compile(rf"\bdvc\b|params\.yaml|\bstages/(?!skill_grafting)|(?<![\w.])({SETTINGS})(?!\w)", re.IGNORECASE)


def test_the_library_does_not_speak_of_its_client():
    files = [path for path in (ROOT / LIBRARY).rglob("*") if path.suffix in (".py", ".pyi", ".j2")]
    assert {path.name: found for path in files if (found := CLIENT.findall(said(path)))} == {}
    assert CLIENT.search(said(ROOT / "stages/workflow/run.py")) and CLIENT.search("lower graft.sparsity"), "control"


def test_no_floor_of_the_library_imports_a_higher_one():
    on = {path: floor(path) for edge in edges() for path in edge}
    assert {*on.values()} - {None} == {*range(len(FLOORS))}
    assert [(a, b) for a, b in edges() if None not in (on[a], on[b]) and on[a] < on[b]] == []


def test_the_library_has_one_name():
    texts = {path: path.read_text(encoding="utf-8") for top in ("stages", "tests") for path in (ROOT / top).rglob("*.py")}
    assert [path for path, text in texts.items() if "import stages" + ".skill" in text or "from stages" + ".skill" in text] == []


def test_editors_see_the_names_that_the_library_has():
    stub = ast.parse((ROOT / LIBRARY / "__init__.pyi").read_bytes())
    imported = {(node.module, alias.asname) for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names if alias.asname}
    spelled = {(skill_grafting._PLACES[node.name], node.name) for node in stub.body if isinstance(node, ast.FunctionDef)}
    assert spelled == {("api", "localize"), ("merging.merge", "merge")}, "whose options only a stub tells one by one"
    assert imported | spelled == {(module, name) for name, module in skill_grafting._PLACES.items()} and len(imported) > 10


@pytest.mark.parametrize("name", [name for name in PIPELINES if name])
def test_nothing_outside_a_pipeline_s_folder_imports_it(name):
    into = {one for one, other in edges() if Path("stages", name) in other.parents}
    assert into and all(Path("stages", name) in path.parents for path in into)


@pytest.mark.parametrize(
    ("text", "leaves", "circle"),
    [
        ("from stages.study import study", True, False),
        ("def f():\n    from .b import g", False, True),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import g", False, True),
        ("from . import c", False, False),
    ],
)
def test_what_must_not_be_is_found(tmp_path, monkeypatch, text, leaves, circle):
    monkeypatch.setattr(imports, "ROOT", tmp_path)
    imports.imports.cache_clear()
    files = {LIBRARY / "a.py": text, LIBRARY / "b.py": "from . import a", LIBRARY / "c.py": "x = 1", Path("stages/study/study.py"): "x = 1"}
    for file, content in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(content)
    found = edges(tmp_path)
    imports.imports.cache_clear()
    assert bool(leaving(found)) == leaves and bool(circles(found)) == circle
