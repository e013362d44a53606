"""The one validated params object, and the only reader of params.yaml.

`load_params("model", "finetune.optimizer")` checks the whole file, reports every problem in one
message, and hands out just the settings that were asked for.  So a stage cannot read a setting
that its entry in dvc.yaml doesn't list (a test compares the two).  What there is to set stands in
stages/lib/schema, one file for each pipeline.

    python -m stages.lib.params        checks params.yaml and prints every resolved setting
"""

import json
from collections.abc import Collection, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from stages.lib import paths
from stages.lib.errors import ParamsError, did_you_mean, plain_problem
from stages.lib.schema import continual, merge, multitask, study, surgical, talos
from stages.lib.schema import main as main_pipeline
from stages.lib.schema.choices import at
from stages.lib.yaml12 import load_yaml

# Pipelines that build on the main one.  The rules between their sections and the others hold only where one of them is
# used, so that the main pipeline can run on other tasks and seeds than they do.
EXTENSIONS = (study, continual, merge, multitask, surgical, talos)
SECTIONS: dict[str, Any] = main_pipeline.SECTIONS | {
    name: kind for extension in EXTENSIONS for name, kind in extension.SECTIONS.items()
}


def load_params(*keys: str, path: Path = paths.PARAMS) -> SimpleNamespace:
    """Check all of params.yaml and give the settings named by `keys`, as attributes.

    A key is a section (`"graft"`) or a setting (`"graft.region"`).
    Raises ParamsError with every problem of the file, one a line; with those of another pipeline as a
    whole if a key is one of its sections.
    """
    values = validate(load_yaml(path, ParamsError), path, [key.partition(".")[0] for key in keys])
    chosen = SimpleNamespace()
    for key in keys:
        section, _, setting = key.partition(".")
        if not setting:
            setattr(chosen, section, values[section])
            continue
        part = getattr(chosen, section, None) or SimpleNamespace()
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
    for pipeline in (main_pipeline, *(extension for extension in EXTENSIONS if {*asked} & {*extension.SECTIONS})):
        problems.extend(pipeline.problems(values))
    if problems:
        raise ParamsError(f"{path} has {len(problems)} problem(s):\n" + "\n".join(f"  {line}" for line in problems))
    return values


def sections_of(pipelines: Iterable[str]) -> list[str]:
    """The sections of these pipelines, none for the main one."""
    known = {extension.__name__.rpartition(".")[2]: [*extension.SECTIONS] for extension in EXTENSIONS}
    return [section for name in pipelines for section in known.get(name, [])]


def main() -> None:
    """Print the checked settings as JSON."""
    values = validate(load_yaml(paths.PARAMS, ParamsError), asked=SECTIONS)
    plain = {name: value.model_dump() if isinstance(value, BaseModel) else value for name, value in values.items()}
    print(json.dumps(plain, indent=2))


if __name__ == "__main__":
    from stages.lib.entry import guarded

    guarded("params", main)
