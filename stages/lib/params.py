"""The one validated params object, and the only reader of params.yaml.

`load_params("model", "finetune.optimizer")` checks the whole file, reports every problem in one message, and hands out
just the settings that were asked for.  So a stage cannot read a setting that its entry in dvc.yaml doesn't list (a test
compares the two).  What there is to set stands in the settings.py of each pipeline, which is found by its folder.

    python -m stages.lib.params        checks params.yaml and prints every resolved setting
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from copy import copy
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from . import paths
from .data.tasks import unknown_tasks
from .entry import COMPARISONS, guarded
from .errors import ParamsError, did_you_mean, plain_problem, shown
from .localizers.settings import NAMES, localizer_in
from .settings import WRONG, Choice, Params, Table, at, fine_part, is_on, lists, told
from .yaml12 import load_yaml

PROJECT = Path(__file__).parents[2]
# what of the section `runtime` counts for what a stage computes with the model; the rest of it is no param of any stage
RUNTIME = ("runtime.device", "runtime.precision", "runtime.threads", "runtime.batch_tokens")
MODEL = ("model.mode", "model.max_length", *RUNTIME)
# name -> settings of every pipeline: those of the main one (""), then those of each folder with a dvc.yaml: SECTIONS, the
# TASKS that they name, and problems() between sections.  An extension's are looked at only where one of its sections is asked
# for, so that none of them stops another pipeline.
PIPELINES: dict[str, ModuleType] = {"": import_module("stages.settings")} | {
    path.parent.name: import_module(f"stages.{path.parent.name}.settings")
    for path in sorted((PROJECT / paths.PIPELINES).glob("*/dvc.yaml"))
}
# what this process has read of which file, by which keys
READ: list[tuple[Path, tuple[str, ...], Params]] = []
SECTIONS: dict[str, Any] = {name: kind for pipeline in PIPELINES.values() for name, kind in pipeline.SECTIONS.items()}


def load_params(*keys: str, path: Path = paths.PARAMS) -> Params:
    """Check params.yaml as far as these pipelines read it, and give the settings named by `keys`, as attributes.

    A key is a section (`"graft"`), a setting (`"graft.region"`) or a section within one, which may be named by
    another setting as in dvc.yaml (`"localizer.${graft.localizer}"`).  A section is an object of its class, with
    those settings that were asked for.  Lists of tasks hold those of `tasks` that are meant: all for null.
    Raises ParamsError with every problem of the main pipeline's sections and of the pipelines that the keys belong to.
    """
    values = _values(path, keys)
    chosen = _chosen(values, keys)
    READ.append((path, keys, copy(chosen)))  # stages may put more beside what they were given
    if {*RUNTIME} <= {*keys}:  # what computes with the model comes after the stage that imports it
        require_measurable(values, _sections_of_keys(keys), path)
        chosen.runtime = _more(chosen.runtime, values["runtime"], "gradient_checkpointing")  # changes no result
    return chosen


def checkpoint_seconds() -> float:
    """`runtime.checkpoint_seconds`, which a stage may read without listing it: it changes no result (a test knows it)."""
    return _values(paths.PARAMS, ())["runtime"].checkpoint_seconds


def require_unchanged() -> None:
    """Raise ParamsError where this process has read settings that are others by now.

    DVC looks at the settings only when a stage has ended, and would record a result as made under the new ones.
    """
    for path, keys, before in READ:
        now = _chosen(_values(path, keys), keys)
        if now != before:
            from .differences import compare, plain, told

            raise ParamsError(
                f"{path} was edited while this ran: {told(compare(plain(before), plain(now)))}; "
                "nothing is recorded, run `dvc repro` again"
            )


COMPARISONS.append(require_unchanged)


def _values(path: Path, keys: Iterable[str]) -> dict[str, Any]:
    return validate(load_yaml(path, ParamsError), path, _sections_of_keys(keys))


def _sections_of_keys(keys: Iterable[str]) -> list[str]:
    return [key.partition(".")[0] for key in keys]


def _chosen(values: dict[str, Any], keys: tuple[str, ...]) -> Params:
    chosen = Params()
    for key in (re.sub(r"\$\{([\w.]+)\}", lambda name: str(at(values, name[1])), key) for key in keys):
        section, _, setting = key.partition(".")
        part = values[section] if not setting else _more(getattr(chosen, section, None), values[section], setting)
        setattr(chosen, section, part)
    return chosen


def require_listed(module: str, arguments: dict[str, Any]) -> None:
    """Raise ParamsError for a name among a stage's arguments that isn't in the list of the settings which its stage runs for."""
    top, _, name = module.rpartition(".")
    folder = PROJECT if top == str(paths.PIPELINES) else PROJECT.joinpath(*top.split("."))
    stages = load_yaml(file, ParamsError)["stages"] if (file := folder / paths.PIPELINE).is_file() else {}
    axes = {axis: place[2:-1] for axis, place in stages.get(name, {}).get("matrix", {}).items()}
    if not axes:
        return
    values = _values(paths.PARAMS, axes.values())
    for axis, place in axes.items():
        allowed = [*map(str, at(values, place))]
        if isinstance(given := arguments[axis], str) and given not in allowed:
            near = did_you_mean(given, allowed)
            raise ParamsError(f"--{axis}: {given!r} is not among {place} ({', '.join(allowed)}){near}")


def require_measurable(values: dict[str, Any], asked: Collection[str], path: Path = paths.PARAMS) -> None:
    """Raise ParamsError for shares of the main and `asked` pipelines that are less than one parameter."""
    from .models.anatomy import FILE, read_anatomy

    if not (paths.PRETRAINED / FILE).is_file():
        return
    region = read_anatomy(paths.PRETRAINED).region(values["graft"].region)
    used = [one for name, one in PIPELINES.items() if not name or {*asked} & {*one.SECTIONS}]
    places = [
        place
        for one in used
        for place, needed in getattr(one, "SPARSITIES", {}).items()
        if is_on(values, place.partition(".")[0]) and (not needed or at(values, needed))
    ]
    found = [(place, share) for place in places for share in _shares(at(values, place)) if not region.budget(share)]
    if found:
        size, lines = region.size, "".join(f"\n  {place}: {share} is less than one of them" for place, share in found)
        least = f"so the smallest share is {1 / size:.2g}"
        raise ParamsError(f"{path}: the model has {size:,} graftable parameters, {least}:{lines}")


def _shares(value: object) -> Iterator[float]:
    """Of a setting that is one, a list of them, or a list of names some of which end with one."""
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, str):
            yield item
        elif share := re.search(r"_([0-9.]+)$", item):
            yield float(share[1])


def load_localizer(name: str) -> Any:
    """The section `localizer` with the settings of the localizer in this name alone, or of none if there is none in it.

    A stage that asks for them depends on a file of digests that bears this name and has them (stages/code.py): DVC
    knows no params for `learned_0.1`, or for a name that is no localizer.
    """
    found = localizer_in(name)
    return load_params(f"localizer.{found}").localizer if found in NAMES else None


def _more(part: object, section: object, setting: str) -> Any:
    """The part of a section that was asked for so far, with one more setting."""
    kind = type(section).model_construct if isinstance(section, BaseModel) else Params
    return kind(**(vars(part) if part else {}), **{setting: at(section, setting)})


def validate(raw: object, path: Path = paths.PARAMS, asked: Collection[str] = ()) -> dict[str, Any]:
    """Turn the parsed file into checked sections; raise ParamsError with all problems at once.

    The main pipeline's sections are always checked, another pipeline's where one of them is among those `asked` for.
    """
    return checked(raw, path, asked)[0]


def checked(raw: object, path: Path = paths.PARAMS, asked: Collection[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """The settings as `validate` gives them, and a line on each section left out, whose tasks `tasks` doesn't have."""
    if not isinstance(raw, dict):
        raise ParamsError(
            f"{path}: expected sections ({', '.join(SECTIONS)}), found {shown(raw) if raw else 'nothing'}"
        )
    strange, known = [name for name in raw if name not in SECTIONS], ", ".join(SECTIONS)
    problems = [f"{name}: unknown section{did_you_mean(name, SECTIONS)}; known: {known}" for name in strange]
    values = Table()
    rules, left_out, broken = [], [], set()
    for name, pipeline in PIPELINES.items():
        found = _sections(raw, pipeline, values)
        broken |= found.keys()
        tasks = getattr(pipeline, "TASKS", ())
        wrong = _twice(values, pipeline) + [line for choice in tasks for line in told([_unknown], choice, values)]
        left = told([choice.fit for choice in tasks], values)
        if not name or {*asked} & {*pipeline.SECTIONS}:
            problems, left_out = problems + [line for lines in found.values() for line in lines], left_out + left
            rules += wrong + told([pipeline.problems], values)
    others = [name for name, pipeline in PIPELINES.items() if name and {*asked} & {*pipeline.SECTIONS}]
    if others and _completes(raw):
        use = "generative is for the main pipeline and `graft localize`"
        rules.append(f"model.mode: {use}; {', '.join(others)} read logits of labels")
    if problems or rules:
        lines = "".join(f"\n  {line}" for line in problems + rules)
        raise ParamsError(f"{path} has {len(problems + rules)} problem(s):{lines}")
    return {name: section for name, section in values.items() if name not in broken}, left_out


def _unknown(choice: Choice, values: dict[str, Any]) -> list[str]:
    return unknown_tasks(choice.place, choice.named(values), values["task"])


def _completes(raw: dict[str, Any]) -> bool:
    """True if the model completes prompts, of which the main pipeline alone knows."""
    return isinstance(model := raw.get("model"), dict) and model.get("mode") == "generative"


def _twice(values: dict[str, Any], pipeline: ModuleType) -> list[str]:
    # what a task of the user's says is checked by its own class
    sections = [(name, part) for name, part in values.items() if name in pipeline.SECTIONS and name != "task"]
    found = [pair for name, part in sections for pair in lists(name, part)]
    twice = [(key, item) for key, items in found for item in dict.fromkeys(items) if items.count(item) > 1]
    return [f"{key}: {item} stands twice" for key, item in twice]


def _sections(raw: dict[str, Any], pipeline: ModuleType, values: dict[str, Any]) -> dict[str, list[str]]:
    """Add what is fine by itself of a pipeline's sections to `values`; gives the problems of those that are not."""
    problems = {}
    for name, kind in pipeline.SECTIONS.items():
        if name not in raw:
            values[name], problems[name] = WRONG, [f"{name}: this section is missing"]
            continue
        try:
            # strict: a `true` among the seeds is not a 1
            values[name] = TypeAdapter(kind).validate_python(raw[name], strict=True)
        except ValidationError as error:
            problems[name] = [plain_problem(problem, name, kind) for problem in error.errors()]
            values[name] = fine_part(kind, raw[name], [problem["loc"] for problem in error.errors()])
    return problems


def sections_of(pipelines: Iterable[str]) -> list[str]:
    """The sections of these pipelines, by their folders' names."""
    return [section for name in pipelines for section in PIPELINES[name].SECTIONS]


def data_files(name: str) -> dict[str, Any]:
    """The YAML file of this name of each pipeline's folder, by pipeline; those that have none are left out."""
    files = {pipeline: PROJECT / paths.PIPELINES / pipeline / name for pipeline in PIPELINES}
    return {pipeline: load_yaml(file, ParamsError) for pipeline, file in files.items() if file.is_file()}


def main() -> None:
    """Print the checked settings as JSON."""
    raw = load_yaml(paths.PARAMS, ParamsError)
    values = validate(raw, asked=() if isinstance(raw, dict) and _completes(raw) else SECTIONS)
    plain = {name: value.model_dump() if isinstance(value, BaseModel) else value for name, value in values.items()}
    print(json.dumps(plain, indent=2))


if __name__ == "__main__":
    guarded("params", main)
