"""The one reader of params.yaml, and of the params.yaml in the folder of each further pipeline.

`load_params("model", "finetune.optimizer")` hands out just the settings that were asked for, of a stage those that its entry in
dvc.yaml lists: it cannot read another one.  Before that the files that they stand in are checked in two steps: each setting by
its kind, all problems at once; then, if there were none, the rules between settings.  What there is to set stands in the
settings.py of each pipeline, which is found by its folder.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ValidationError, create_model

from skill_grafting.localizers.registry import localizer_of, original
from skill_grafting.support.errors import ParamsError, did_you_mean, plain_problem, shown
from skill_grafting.support.fields import Section
from stages.text.tasks.settings import Values, get_by_path
from stages.text.tasks.tasks import resolve_tasks, unknown_tasks
from stages.text.tasks.yaml12 import load_yaml
from stages.workflow.stage import paths
from stages.workflow.stage.rules import with_setting
from stages.workflow.stage.sections import LocalizerParams, Settings

PROJECT = Path(__file__).parents[3]
# problems of the items of one list
SHOWN = 10
# settings of `runtime` that affect the results of a model; the others are not params of any stage
RUNTIME = ("runtime.device", "runtime.precision", "runtime.threads", "runtime.batch_tokens")


class Pipelines(Mapping[str, ModuleType]):
    """Name -> settings of a pipeline, the main one ("") first, then each folder with a dvc.yaml; imported when asked for.

    They have Settings, the TASKS that those name, and problems() between sections.
    """

    names = ("", *sorted(path.parent.name for path in (PROJECT / paths.PIPELINES).glob("*/dvc.yaml")))

    def __getitem__(self, name: str) -> ModuleType:
        return import_module(f"stages.{name}.settings" if name else "stages.workflow.stage.sections")

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


PIPELINES = Pipelines()
# settings that this process has read: folder, keys, values
READ: list[tuple[Path, tuple[str, ...], Settings]] = []


def load_params(*keys: str, folder: Path = Path()) -> Settings:
    """Check the files that these settings stand in, and give the settings named by `keys`, of the pipeline that has them.

    A key is a section (`"graft"`), a setting (`"graft.region"`) or a section within one, which may be named by
    another setting as in dvc.yaml (`"localizer.${graft.localizer}"`).  A section is an object of its class, with
    those settings that were asked for.  Lists of tasks hold those of `tasks` that are meant: all for null.
    Raises ParamsError with every problem of the main pipeline's settings and of the pipelines that the keys belong to.
    """
    # classes of localizers, which are loaded by their names, are checked only for a stage that depends on them
    localizers = any(key.startswith("localizer") for key in keys)
    values, _ = checked(read_files(pipelines_of(keys), folder), localizers)
    chosen = _chosen(values, keys)
    READ.append((folder, keys, chosen))
    if {*RUNTIME} <= {*keys}:
        # read by every stage with a model, though it changes no result
        more = {"gradient_checkpointing": values["runtime"].gradient_checkpointing}
        return with_setting(chosen, "runtime", chosen.runtime.model_copy(update=more))
    return chosen


def load_all(folder: Path = Path()) -> Values:
    """Every section of every pipeline."""
    return with_localizers(checked(read_files(PIPELINES, folder), localizers=True)[0])


def with_localizers(values: Values, names: Iterable[str] = ()) -> Values:
    """The same with these localizers, or all that have a line, in place of the lines."""
    lines = values["localizer"].model_extra
    found = {name: localizer_of(name, lines.get(name, {}), "localizer.") for name in names or lines}
    return values | {"localizer": LocalizerParams.model_construct(**found)}


def params_file(pipeline: str) -> Path:
    """Where the settings of a pipeline stand; "" is the main one."""
    return paths.PIPELINES / pipeline / paths.PARAMS if pipeline else paths.PARAMS


def pipelines_of(keys: Iterable[str]) -> list[str]:
    """The pipelines whose settings these are, the main one first and in any case."""
    owners = {owner_of(key.partition(".")[0]) for key in keys}
    return [name for name in PIPELINES if not name or name in owners]


def sections_of(pipeline: str) -> dict[str, Any]:
    """Section -> its kind, of those in a pipeline's own file."""
    return PIPELINES[pipeline].Settings.__annotations__


def owner_of(section: str) -> str | None:
    """The pipeline that has a section; None if none does."""
    return next((name for name in PIPELINES if section in sections_of(name)), None)


def read_files(pipelines: Iterable[str], folder: Path = Path()) -> dict[str, Any]:
    """What stands in the files of these pipelines, by pipeline; raises ParamsError for one that can't be read or has no sections."""
    found = {name: load_yaml(folder / params_file(name), ParamsError) for name in pipelines}
    for name, content in found.items():
        if not isinstance(content, dict):
            known, what = ", ".join(sections_of(name)), shown(content) if content else "nothing"
            raise ParamsError(f"{params_file(name)}: expected sections ({known}), found {what}")
    return found


def checked(files: Mapping[str, dict[str, Any]], localizers: bool = False) -> tuple[Values, list[str]]:
    """The sections of these pipelines, the main one among them, and a line on each list whose tasks `tasks` doesn't have.

    With `localizers` those that have settings in the file are checked by their classes, too.  Raises ParamsError with all
    problems of the first step that finds any.
    """
    values: Values = {}
    _require_none({name: [*_by_kind(name, content, localizers, values)] for name, content in files.items()})
    left_out: list[str] = []
    _require_none({name: [*_by_rules(name, values, left_out)] for name in files})
    return values, left_out


def _require_none(problems: dict[str, list[str]]) -> None:
    found = {params_file(name): lines for name, lines in problems.items() if lines}
    if found:
        texts = ["\n  ".join([f"{file} has {len(lines)} problem(s):", *lines]) for file, lines in found.items()]
        raise ParamsError("\n".join(texts))


def _by_kind(pipeline: str, content: dict[str, Any], localizers: bool, values: Values) -> Iterator[str]:
    """Problems of a file's settings by themselves; without any they are in `values`."""
    kind, wrong, found = _kind(pipeline), set(), Counter()
    try:
        values |= dict(kind.model_validate(content))
    except ValidationError as error:
        for problem in error.errors():
            wrong.add(problem["loc"][0])
            found[setting := ".".join(part for part in problem["loc"] if isinstance(part, str))] += 1
            if found[setting] <= SHOWN:
                yield _line(problem, kind, pipeline)
    yield from (
        f"{setting}: and {times - SHOWN:,} more like these" for setting, times in found.items() if times > SHOWN
    )
    if not pipeline and "task" not in wrong:
        yield from resolve_tasks(content["task"])[1]
    if not pipeline and "localizer" not in wrong:
        for name, changes in content["localizer"].items():
            try:
                (localizer_of if localizers and changes else original)(name, changes, "localizer.")
            except ParamsError as error:
                yield str(error)


def _line(problem: dict[str, Any], kind: type[Section], pipeline: str) -> str:
    name = problem["loc"][0]
    if problem["type"] == "extra_forbidden" and (owner_of(name) or pipeline) != pipeline:
        return f"{name}: this section belongs in {params_file(owner_of(name))}"
    return plain_problem(problem, "", kind)


@cache
def _kind(pipeline: str) -> type[Section]:
    """The class of a pipeline's file."""
    return create_model("File", __base__=Section, **{name: (kind, ...) for name, kind in sections_of(pipeline).items()})


def _by_rules(pipeline: str, values: Values, left_out: list[str]) -> Iterator[str]:
    """Problems between settings that are valid by themselves.  Lists of tasks in `values` get the tasks that are meant."""
    module = PIPELINES[pipeline]
    # what a task of the user's says is checked by its own class
    own = {name: values[name] for name in sections_of(pipeline) if name != "task"}
    for key, items in flat(own).items():
        if isinstance(items, list):
            yield from (
                f"{key}: {item} is listed twice" for item, times in Counter(map(str, items)).items() if times > 1
            )
    for choice in getattr(module, "TASKS", ()):
        yield from unknown_tasks(choice.place, choice.named(values), values["task"])
    for choice in getattr(module, "TASKS", ()):
        left_out += choice.fit(values)
    yield from module.problems(values)


def flat(values: object, key: str = "") -> dict[str, Any]:
    """Dotted key -> value of every setting in these sections and tables."""
    parts = dict(values) if isinstance(values, BaseModel) else values
    if not isinstance(parts, dict):
        return {key: values}
    return {
        place: end for name, part in parts.items() for place, end in flat(part, f"{key}.{name}".lstrip(".")).items()
    }


def _chosen(values: Values, keys: Sequence[str]) -> Settings:
    kind: type[Settings] = PIPELINES[pipelines_of(keys)[-1]].Settings
    parts: dict[str, Any] = {}
    for named in keys:
        key = re.sub(r"\$\{([\w.]+)\}", lambda name, values=values: str(get_by_path(values, name[1])), named)
        section, _, setting = key.partition(".")
        known = with_localizers(values, [setting] if setting else ()) if section == "localizer" else values
        if not setting:
            parts[section] = known[section]
        else:
            parts.setdefault(section, {})[setting] = get_by_path(known, key)
    for section, part in parts.items():
        whole = kind.model_fields[section].annotation
        if isinstance(part, dict) and hasattr(whole, "model_construct"):
            parts[section] = whole.model_construct(**part)
    return kind.model_construct(**parts)


def changed() -> list[str]:
    """Settings that this process has read and that have changed since, by file and name."""
    found = []
    for folder, keys, before in READ:
        now = dict(_chosen(checked(read_files(pipelines_of(keys), folder))[0], keys))
        found += [name for name, value in before if flat(now[name]) != flat(value)]
    return [f"{params_file(owner_of(name))}: {name}" for name in dict.fromkeys(found)]


def require_known(entry: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Raise ParamsError for a name among a stage's arguments that isn't in the list of the settings which dvc.yaml runs it for."""
    axes = {axis: place[2:-1] for axis, place in entry.get("matrix", {}).items()}
    values = checked(read_files(pipelines_of(axes.values())))[0] if axes else {}
    for axis, place in axes.items():
        allowed = [*map(str, get_by_path(values, place))]
        if isinstance(given := arguments[axis], str) and given not in allowed:
            near = did_you_mean(given, allowed)
            raise ParamsError(f"--{axis}: {given!r} is not among {place} ({', '.join(allowed)}){near}")
