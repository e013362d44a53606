"""The files of the project that a file imports, directly or through others, as its text says."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


@cache
def imports(path: Path, for_types: bool = False) -> frozenset[Path]:
    """Files that a file, relative to ROOT as they are, imports when it runs, also inside functions, and the packages that they lie in.

    `for_types`: all whose names stand in its imports instead, also those for types.
    """
    tree = ast.parse((ROOT / path).read_bytes())
    blocks = (node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    left_out = set() if for_types else {inner for block in blocks for inner in ast.walk(block)}
    names = {name for node in {*ast.walk(tree)} - left_out for name in _names(node, path)}
    if not for_types:
        names |= {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 1)}
    return frozenset(file for name in names if (file := module_file(name)))


def _names(node: ast.AST, path: Path) -> Iterator[str]:
    """The modules that an import names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        source = ".".join(filter(None, [*(path.parts[: -node.level] if node.level else ()), node.module]))
        yield from (inner if module_file(inner := f"{source}.{alias.name}") else source for alias in node.names)


def module_file(name: str) -> Path | None:
    """File of a module of the project; None for any other name, and for a package that says nothing."""
    place, top = Path(*name.split(".")), name.partition(".")[0]
    place = Path("stages", place) if top == "skill_grafting" else place
    files = (place.with_suffix(".py"), place / "__init__.py") if top in ("stages", "skill_grafting") else ()
    return next((path for path in files if _says_something(ROOT / path)), None)


@cache
def _says_something(file: Path) -> bool:
    """Is there more in a file than its docstring, and than the place of the library?"""
    if not file.is_file() or file == ROOT / "stages/__init__.py":
        return False
    tree = ast.parse(file.read_bytes())
    return len(tree.body) > (ast.get_docstring(tree) is not None)


def closure(*paths: Path) -> set[Path]:
    """These files and all that they need."""
    reached, due = set(), {*paths}
    while due:
        reached |= due
        due = {found for path in due for found in imports(path)} - reached
    return reached
