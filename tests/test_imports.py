"""No module of the project comes back to itself by its imports, those for types included, and the library imports nothing outside itself."""

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parents[1]


def modules(root: Path) -> dict[str, Path]:
    """Dotted name -> file of every module of stages."""
    names = {path: path.relative_to(root).with_suffix("").parts for path in (root / "stages").rglob("*.py")}
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
    # the library is skill_grafting where it is installed
    return {(name, other) for name, other in found if name != other and other.startswith(("stages", "skill_grafting"))}


def circles(found: set[tuple[str, str]]) -> list[set[str]]:
    return [part for part in networkx.strongly_connected_components(networkx.DiGraph(found)) if len(part) > 1]


def leaving(found: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The imports by which the library is left."""
    return {(a, b) for a, b in found if a.startswith("stages.lib") and not f"{b}.".startswith("stages.lib.")}


def test_the_library_stands_by_itself_and_nothing_imports_itself():
    found = edges(ROOT)
    assert len(found) > 500
    assert leaving(found) == set() and circles(found) == []


@pytest.mark.parametrize(
    ("text", "leaves", "circle"),
    [
        ("from stages.study import frames", True, False),
        ("import skill_grafting", True, False),
        ("def f():\n    from .. import settings", True, False),
        ("def f():\n    from .b import g", False, True),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import g", False, True),
        ("from . import c", False, False),
    ],
)
def test_what_must_not_be_is_found(tmp_path, text, leaves, circle):
    library = tmp_path / "stages/lib"
    library.mkdir(parents=True)
    for name, content in {"__init__": "", "a": text, "b": "from . import a", "c": ""}.items():
        (library / f"{name}.py").write_text(content)
    found = edges(tmp_path)
    assert bool(leaving(found)) == leaves and bool(circles(found)) == circle
