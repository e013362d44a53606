"""No module of the project comes back to itself by its imports, those for types included, and the library imports nothing outside itself."""

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

# the floors of the library, the lowest first; what stands beside them is at the bottom (io, errors, ...) or on top (api)
FLOORS = ("grafting", "metrics", "localizers", "merging", "data", "models", "training", "patches")
ROOT = Path(__file__).parents[1]


def modules(root: Path) -> dict[str, Path]:
    """Dotted name -> file of every module, by the name that it is imported by."""
    names = {path: path.relative_to(root / "stages").with_suffix("").parts for path in (root / "stages").rglob("*.py")}
    names = {path: parts if parts[0] == "skill_grafting" else ("stages", *parts) for path, parts in names.items()}
    return {".".join(part for part in parts if part != "__init__"): path for path, parts in names.items()}


def imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of the project that one imports anywhere in it."""
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            place = ".".join([*above, *(node.module or "").split(".")]).strip(".")
            yield from (inner if (inner := f"{place}.{alias.name}") in known else place for alias in node.names)


def edges(root: Path) -> set[tuple[str, str]]:
    known = modules(root)
    found = {(name, other) for name, path in known.items() for other in imported(name, path, known)}
    return {(name, other) for name, other in found if name != other and other.startswith(("stages", "skill_grafting"))}


def circles(found: set[tuple[str, str]]) -> list[set[str]]:
    return [part for part in networkx.strongly_connected_components(networkx.DiGraph(found)) if len(part) > 1]


def leaving(found: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The imports by which the library is left."""
    return {(a, b) for a, b in found if a.startswith("skill_grafting") and not f"{b}.".startswith("skill_grafting.")}


def test_the_library_stands_by_itself_and_nothing_imports_itself():
    found = edges(ROOT)
    assert len(found) > 500
    assert leaving(found) == set() and circles(found) == []


def test_the_library_has_one_name_and_no_floor_imports_a_higher_one():
    found = edges(ROOT)
    assert not [(a, b) for a, b in found if f"{b}.".startswith("stages.skill_grafting.")]
    floors = {name: number for number, name in enumerate(FLOORS)}
    on = {
        name: floors[name.split(".")[1]]
        for edge in found
        for name in edge
        if name.startswith("skill_grafting.") and name.split(".")[1] in floors
    }
    assert not [(a, b) for a, b in found if on.get(a, len(on)) < on.get(b, -1)]


@pytest.mark.parametrize(
    ("text", "leaves", "circle"),
    [
        ("from stages.study import study", True, False),
        ("def f():\n    from .b import g", False, True),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import g", False, True),
        ("from . import c", False, False),
    ],
)
def test_what_must_not_be_is_found(tmp_path, text, leaves, circle):
    library = tmp_path / "stages/skill_grafting"
    library.mkdir(parents=True)
    for name, content in {"__init__": "", "a": text, "b": "from . import a", "c": ""}.items():
        (library / f"{name}.py").write_text(content)
    found = edges(tmp_path)
    assert bool(leaving(found)) == leaves and bool(circles(found)) == circle
