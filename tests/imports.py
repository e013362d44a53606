"""The modules of the project that a module imports, directly or through others, as its text says."""

import ast
from functools import cache
from pathlib import Path

from tests.dvc_project import ROOT


@cache
def imports(path: Path) -> frozenset[Path]:
    """Files of the project that a file imports when it runs, also inside functions, and the packages that they lie in; relative to ROOT."""
    names: set[str] = set()
    tree = ast.parse((ROOT / path).read_bytes())
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in {*ast.walk(tree)} - for_types:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            above = path.parts[: -node.level] if node.level else ()
            source = ".".join(filter(None, [*above, node.module]))
            names |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
    packages = {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 1)}
    return frozenset(file for name in names | packages if (file := module_file(name)))


def module_file(name: str) -> Path | None:
    """File of a module of the project; None for any other name, and for a package that says nothing."""
    place, top = Path(*name.split(".")), name.partition(".")[0]
    place = Path("stages", place) if top == "skill_grafting" else place
    files = (place.with_suffix(".py"), place / "__init__.py") if top in ("stages", "skill_grafting") else ()
    return next((path for path in files if (ROOT / path).is_file() and _says_something(path)), None)


@cache
def _says_something(path: Path) -> bool:
    """Is there more in a file than its docstring, and than the place of the library?"""
    if path == Path("stages/__init__.py"):
        return False
    tree = ast.parse((ROOT / path).read_bytes())
    return len(tree.body) > (ast.get_docstring(tree) is not None)


def closure(*paths: Path) -> set[Path]:
    """These files and all that they need."""
    reached: set[Path] = set()
    due = {*paths}
    while due:
        reached |= due
        due = {found for path in due for found in imports(path)} - reached
    return reached
