"""code: digests of the code that the stages of a pipeline run, so that DVC makes anew what a change of it concerns.

A stage depends on metrics/code/<pipeline>/<stage>.json: a digest of every module that its script imports, also inside
functions and through other modules.  It is of the syntax, so comments, docstrings and layout may change.  A file of
another kind is there by its content if a module names it and it lies beside that module or the script.

Localizers are loaded by name, so no import tells of them.  <stage>/<localizer>.json has the module of that name, too, and,
unless they are among the stage's params, its settings; a share at the end of the name doesn't count, and a name without a
module is one of the stage's own.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import md5
from itertools import chain
from pathlib import Path
from typing import Any

from stages.lib import paths
from stages.lib.entry import stage
from stages.lib.errors import GraftError, ParamsError
from stages.lib.io import read_json, write_json
from stages.lib.localizers.names import NAMES, localizer_in
from stages.lib.settings import at
from stages.lib.yaml12 import load_yaml
from stages.workflow.settings import load_params

LOCALIZERS = Path("stages/lib/localizers")
# name of a file that is no module; what of a dvc.yaml counts, DVC knows itself
FILE = re.compile(r"(?!dvc\.)[\w-]+\.(?!py\b)\w+")

# They compute nothing that is stored: like every settings.py they check settings, know places, and hand on what is itself
# among the params and deps of a stage.  The walk stops here, so what only they import isn't tracked either.
UNTRACKED = {
    Path("stages/lib/__init__.py"),
    Path("stages/workflow/rules.py"),
    *(Path(f"stages/lib/{name}.py") for name in ("paths", "entry", "errors", "yaml12", "io", "progress")),
    Path("stages/lib/data/tasks.py"),
}


@stage
def main(file: str) -> None:
    """Write the digests that the stages of a dvc.yaml depend on."""
    digests = code_digests(Path(file))
    for place, content in digests.items():
        write_json(place, content)
    read.cache_clear()
    if code_digests(Path(file)) != digests:
        raise GraftError("code was edited while its digests were taken; nothing is recorded, run `dvc repro` again")
    print(f"code: {len(digests)} files of digests for {file}")


def code_digests(file: Path) -> dict[Path, dict[str, Any]]:
    """The files for the stages of a dvc.yaml: path of each file of code -> its digest, localizer.NAME -> its settings."""
    entries = load_yaml(file, ParamsError)["stages"].values()
    keys = [key for entry in entries if _module(entry) == "stages.code" for key in _keys(entry)]
    settings = vars(load_params(*keys))
    digests = {}
    for entry in entries:
        lists_localizer = any(key.startswith("localizer") for key in _keys(entry))
        for dep in (dep for dep in entry["deps"] if dep.startswith(f"{paths.CODE}/")):
            for place in _places(dep, entry.get("matrix", {}), settings):
                digests[place] = _digests(_module(entry), _localizer(place))
                name = localizer_in(place.stem)
                if "${item." in dep and not lists_localizer and name in NAMES:
                    digests[place][f"localizer.{name}"] = at(settings, f"localizer.{name}").model_dump()
    return digests


def changed_code(place: Path) -> list[str]:
    """Files of code that are no longer what a file of digests says."""
    pipeline = place.parts[len(paths.CODE.parts)]
    file = paths.PIPELINE if pipeline == "main" else paths.PIPELINES / pipeline / paths.PIPELINE
    before, now = read_json(place), code_digests(file).get(place, {})
    return [path for path in sorted(before | now) if before.get(path) != now.get(path)]


def require_unchanged(module: str) -> None:
    """Raise GraftError where code that a stage runs, with the localizers it has loaded, is not what its digests were taken of.

    DVC would record what new code has made under the digests of the old.  A pipeline without digests has nothing to compare.
    """
    pipeline = module.split(".")[1] if module.count(".") > 1 else "main"
    taken: dict[str, Any] = {}
    for place in (paths.CODE / pipeline).rglob("*.json"):
        taken |= read_json(place)
    read.cache_clear()
    changed = [path for path, digest in running(module).items() if taken.get(path) not in (None, digest)]
    if changed:
        raise GraftError(
            f"{', '.join(changed)}: edited since `code` took {'its' if len(changed) == 1 else 'their'} digest; "
            "nothing is recorded, run `dvc repro` again"
        )


def running(module: str) -> dict[str, str]:
    """Digest of every file of code that a stage runs, with the localizers it has loaded."""
    loaded = [name for name in sys.modules if name.startswith(f"{'.'.join(LOCALIZERS.parts)}.")]
    return _digests(module, *loaded)


def _digests(*modules: str) -> dict[str, Any]:
    return {str(path): read(path).digest for path in sorted(closure(*modules))}


def _keys(entry: dict[str, Any]) -> list[str]:
    """Of all files, the keys that a stage lists under `params`."""
    parts = [part if isinstance(part, str) else [*chain(*part.values())] for part in entry.get("params", [])]
    return [key for part in parts for key in ([part] if isinstance(part, str) else part)]


def _module(entry: dict[str, Any]) -> str:
    return re.search(r" -m (\S+)", entry["cmd"])[1]


def _places(dep: str, matrix: dict[str, str], settings: dict[str, Any]) -> Iterator[Path]:
    """A dep of a stage, for every value of the axis or the setting in it."""
    template = re.search(r"\$\{(item\.)?([\w.]+)\}", dep)
    if not template:
        yield Path(dep)
        return
    values = at(settings, matrix[template[2]][2:-1] if template[1] else template[2])
    for value in [values] if isinstance(values, str) else values:
        yield Path(dep.replace(template[0], value))


def _localizer(place: Path) -> str:
    """Module of the localizer that a file of digests is named after; of no module, if it is named after its stage."""
    name = localizer_in(place.stem) if place.parts[: len(paths.CODE.parts) + 2] != place.parts else ""
    return ".".join([*LOCALIZERS.parts, name])


def closure(*modules: str) -> set[Path]:
    """Every file of code that the first of these modules, a script, needs together with the others."""
    reached: set[Path] = set()
    todo = [path for name in modules if (path := module_file(name))]
    script = todo[0]
    while todo:
        path = todo.pop()
        if path not in reached and path not in UNTRACKED and path.name != "settings.py":
            reached.add(path)
            todo += read(path).imports
    beside = {folder / name for path in reached for folder in (path.parent, script.parent) for name in read(path).files}
    return reached | {path for path in beside if path.is_file()}


def module_file(name: str) -> Path | None:
    """File of a module of the project; None for any other name, and for a package that says nothing."""
    place = Path(*name.split("."))
    files = (place.with_suffix(".py"), place / "__init__.py") if name.startswith("stages.") else ()
    return next((path for path in files if path.is_file() and path.stat().st_size), None)


@dataclass(frozen=True)
class Code:
    """A file of code: its digest, the modules of the project that it imports, and files of other kinds that it names."""

    digest: str
    imports: frozenset[Path] = frozenset()
    files: frozenset[str] = frozenset()


@cache
def read(path: Path) -> Code:
    """Read a file of code; all versions of Python give the same digest of a module's syntax."""
    if path.suffix != ".py":
        return Code(_md5(path.read_bytes()))
    words, imports, files = [], set(), set()
    todo: list[Any] = [ast.parse(path.read_bytes(), str(path))]
    while todo:
        match part := todo.pop():
            case ast.AST():
                # `ctx` follows from the place; fields that only newer versions of Python have are empty
                fields = {name: getattr(part, name, None) for name in part._fields if name != "ctx"}
                fields = {name: value for name, value in fields.items() if value is not None and value != []}
                words += [type(part).__name__, *fields]
                todo += fields.values()
            case list():
                items = [item for item in part if not _is_text(item)]
                words.append(str(len(items)))
                todo += items
            case _:
                words.append(repr(part))
        match part:
            case ast.Import():
                imports |= {alias.name for alias in part.names}
            case ast.ImportFrom():
                above = path.parts[: -part.level] if part.level else ()
                source = ".".join(filter(None, [*above, part.module]))
                imports |= {source, *(f"{source}.{alias.name}" for alias in part.names)}
            case ast.Constant(value=str(text)) if FILE.fullmatch(text):
                files.add(text)
    modules = frozenset(filter(None, map(module_file, imports)))
    return Code(_md5("\n".join(words).encode()), modules, frozenset(files))


def _is_text(item: object) -> bool:
    """True if this is a statement of a text alone, such as a docstring."""
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)


def _md5(content: bytes) -> str:
    return md5(content, usedforsecurity=False).hexdigest()


if __name__ == "__main__":
    main()
