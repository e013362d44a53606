"""The library imports nothing of the project outside itself, and no module of it comes back to itself by its imports."""

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parents[1]
LIB = ROOT / "stages/lib"
OUTSIDE = "outside"


def modules(folder: Path) -> dict[str, Path]:
    """Dotted name -> file, the package itself as an empty name."""
    names = {path: path.relative_to(folder).with_suffix("").parts for path in folder.rglob("*.py")}
    return {".".join(part for part in parts if part != "__init__"): path for path, parts in names.items()}


def imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules that one imports anywhere in it, but for types alone; OUTSIDE for one of the project elsewhere."""
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    package = [part for part in package if part]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    ]
    passed_over = {inner for node in typing_only for inner in ast.walk(node)}
    for node in (node for node in ast.walk(tree) if node not in passed_over):
        absolute = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        absolute += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if any(place.partition(".")[0] in ("stages", "skill_grafting") for place in absolute):
            yield OUTSIDE
        if isinstance(node, ast.ImportFrom) and node.level:
            if node.level - 1 > len(package):
                yield OUTSIDE
                continue
            base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            for alias in node.names:
                place = ".".join(part for part in (*base, alias.name) if part)
                yield place if place in known else ".".join(part for part in base if part)


def edges(folder: Path) -> set[tuple[str, str]]:
    known = modules(folder)
    found = {(name, other) for name, path in known.items() for other in imported(name, path, known)}
    return {(name, other) for name, other in found if name != other}


def circles(found: set[tuple[str, str]]) -> list[set[str]]:
    return [part for part in networkx.strongly_connected_components(networkx.DiGraph(found)) if len(part) > 1]


def test_the_library_stands_by_itself():
    found = edges(LIB)
    assert {name for name, other in found if other == OUTSIDE} == set()
    assert circles(found) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("from stages.study import frames", "outside"),
        ("def f():\n    from ... import settings", "outside"),
        ("def f():\n    from .b import g", "circle"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import g", None),
    ],
)
def test_what_must_not_be_is_found(tmp_path, text, wrong):
    for name, content in {"__init__": "", "a": text, "b": "from . import a"}.items():
        (tmp_path / f"{name}.py").write_text(content)
    found = edges(tmp_path)
    assert (("a", OUTSIDE) in found) == (wrong == "outside") and bool(circles(found)) == (wrong == "circle")
