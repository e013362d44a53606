"""The one validated params object, and the only reader of params.yaml.

`load_params("model", "finetune.optimizer")` checks the whole file, reports every problem in one
message, and hands out just the settings that were asked for.  So a stage cannot read a setting
that its entry in dvc.yaml doesn't list (a test compares the two).  What there is to set stands in
the settings.py of each pipeline, which is found by its folder.

    python -m stages.lib.params        checks params.yaml and prints every resolved setting
"""

import json
import re
from collections.abc import Collection, Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from stages.lib import paths
from stages.lib.errors import ParamsError, did_you_mean, plain_problem
from stages.lib.settings import Params, at
from stages.lib.yaml12 import load_yaml

PROJECT = Path(__file__).parents[2]
# name -> settings of every pipeline: those of the main one (""), then those of each folder with a dvc.yaml.  The rules
# between an extension's sections and the others hold only where one of them is used, so that the main pipeline can run
# on other tasks and seeds than they do.
PIPELINES: dict[str, ModuleType] = {"": import_module("stages.settings")} | {
    path.parent.name: import_module(f"stages.{path.parent.name}.settings")
    for path in sorted((PROJECT / paths.PIPELINES).glob("*/dvc.yaml"))
}
SECTIONS: dict[str, Any] = {name: kind for pipeline in PIPELINES.values() for name, kind in pipeline.SECTIONS.items()}


def load_params(*keys: str, path: Path = paths.PARAMS) -> Params:
    """Check all of params.yaml and give the settings named by `keys`, as attributes.

    A key is a section (`"graft"`), a setting (`"graft.region"`) or a section within one, which may be named by
    another setting as in dvc.yaml (`"localizer.${graft.localizer}"`).
    Raises ParamsError with every problem of the file, one a line; with those of another pipeline as a
    whole if a key is one of its sections.
    """
    values = validate(load_yaml(path, ParamsError), path, [key.partition(".")[0] for key in keys])
    chosen = Params()
    for key in (re.sub(r"\$\{([\w.]+)\}", lambda name: str(at(values, name[1])), key) for key in keys):
        section, _, setting = key.partition(".")
        if not setting:
            setattr(chosen, section, values[section])
            continue
        part = getattr(chosen, section, None) or Params()
        setattr(part, setting, at(values, key))
        setattr(chosen, section, part)
    return chosen


def validate(raw: Any, path: Path = paths.PARAMS, asked: Collection[str] = ()) -> dict[str, Any]:
    """Turn the parsed file into checked sections; raise ParamsError with all problems at once.

    With sections of another pipeline among those `asked` for, also check that its sections fit each other
    and the main pipeline.
    """
    if not isinstance(raw, dict):
        raise ParamsError(f"{path}: expected sections ({', '.join(SECTIONS)}), found {type(raw).__name__}")
    values, problems = {}, []
    for name in raw:
        if name not in SECTIONS:
            problems.append(f"{name}: unknown section{did_you_mean(name, SECTIONS)}; known: {', '.join(SECTIONS)}")
    for name, kind in SECTIONS.items():
        if name not in raw:
            problems.append(f"{name}: this section is missing")
            continue
        try:
            # strict: a `true` among the seeds is not a 1
            values[name] = TypeAdapter(kind).validate_python(raw[name], strict=True)
        except ValidationError as error:
            problems.extend(plain_problem(problem, name, kind) for problem in error.errors())
    for name, pipeline in PIPELINES.items():
        if not name or {*asked} & {*pipeline.SECTIONS}:
            problems.extend(pipeline.problems(values))
    if problems:
        raise ParamsError(f"{path} has {len(problems)} problem(s):\n" + "\n".join(f"  {line}" for line in problems))
    return values


def sections_of(pipelines: Iterable[str]) -> list[str]:
    """The sections of these pipelines, by their folders' names."""
    return [section for name in pipelines for section in PIPELINES[name].SECTIONS]


def data_files(name: str) -> dict[str, Any]:
    """What the YAML file of this name in each pipeline's folder says, by pipeline; those that have none are left out."""
    files = {pipeline: PROJECT / paths.PIPELINES / pipeline / name for pipeline in PIPELINES}
    return {pipeline: load_yaml(file, ParamsError) for pipeline, file in files.items() if file.is_file()}


def main() -> None:
    """Print the checked settings as JSON."""
    values = validate(load_yaml(paths.PARAMS, ParamsError), asked=SECTIONS)
    plain = {name: value.model_dump() if isinstance(value, BaseModel) else value for name, value in values.items()}
    print(json.dumps(plain, indent=2))


if __name__ == "__main__":
    from stages.lib.entry import guarded

    guarded("params", main)
