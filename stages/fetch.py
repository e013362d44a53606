"""fetch: the data sets of all tasks, and their out-of-distribution test sets, as tables."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from skill_grafting.support.errors import DataError, printable
from skill_grafting.support.io import read_rows, write_json, write_rows
from skill_grafting.support.progress import progress
from skill_grafting.support.writing import replacing
from stages.text.rows.content import Row, describe_dropped, dropped_in
from stages.text.sources.hub import load_hub
from stages.text.sources.local import load_local
from stages.text.sources.packaged import load_packaged
from stages.text.sources.packages import download
from stages.text.sources.tables import (
    Table,
    Texts,
    build_table,
    leakage,
    ood_rows,
    together,
)
from stages.text.tasks.settings import DataParams, OodParams
from stages.text.tasks.tasks import TaskSpec, resolve_tasks
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage
from stages.workflow.stage.sections import Settings

# file of the texts that test sets of others share with the training data of a task
Shared = dict[str, dict[str, dict[str, int]]]


def needed_sets(tasks: list[str], ood: dict[str, list[str]]) -> list[str]:
    """The data sets to fetch: the trained tasks, then what they are tested on besides."""
    return list(dict.fromkeys([*tasks, *(test for task in tasks for test in ood.get(task, []))]))


def named_by(name: str, tasks: list[str], ood: dict[str, list[str]]) -> str:
    """The settings that name a data set that is not a task, in brackets, to end a message."""
    places = [f"ood.sets.{task}" for task in tasks if name in ood.get(task, [])]
    return f" ({' and '.join(places)} {'asks' if len(places) == 1 else 'ask'} for it)" if name not in tasks else ""


def write_table(
    spec: TaskSpec, data: DataParams, fetch: Callable[[str], Path], folder: Path, specs: Mapping[str, TaskSpec]
) -> tuple[Texts, dict[str, Any]]:
    """Fetch one data set into `folder`, which becomes data/tables; give its texts and its card.

    `data` has the settings source, root and columns; `fetch` turns a package's name into its file's path;
    `specs` are all known tasks, among them the parts of one that is made of others.
    """
    table = _table(spec, data, fetch, specs)
    write_rows(_inside(folder, paths.table(spec.name)), table.rows)
    write_json(_inside(folder, paths.card(spec.name)), table.card)
    return table.texts, table.card


def _table(spec: TaskSpec, data: DataParams, fetch: Callable[[str], Path], specs: Mapping[str, TaskSpec]) -> Table:
    if not spec.parts:
        return build_table(spec, *load_raw(spec, data, fetch))
    parts = {name: _table(specs[name], data, fetch, specs) for name in spec.parts}
    return build_table(spec, together(parts.values()), {"parts": {name: part.card for name, part in parts.items()}})


def write_ood(tasks: Iterable[str], texts: dict[str, Texts], ood: OodParams, folder: Path) -> Shared:
    """Write the out-of-distribution test sets of each task, and leakage.json, whose content it gives.

    `ood` has the settings sets, test_max and leaks.  Where a set is tested on, leakage.json also
    says how many of its rows are "used".
    """
    shared = leakage(texts)
    for task in tasks:
        for test in ood.sets.get(task, []):
            rows = ood_rows(read_rows(_inside(folder, paths.table(test))), texts[task].trained, ood.leaks, ood.test_max)
            write_rows(_inside(folder, paths.ood_table(task, test)), rows)
            shared[task][test]["used"] = len(rows)
    write_json(_inside(folder, paths.LEAKAGE), shared)
    return shared


def summary_line(card: dict[str, Any]) -> str:
    """One line about a data set for the user: rows of each split, dropped rows, texts that test shares with train."""
    splits = ", ".join(f"{sum(counts.values())} {split}" for split, counts in card["counts"].items())
    dropped = dropped_in(card)
    shared, task = card["test_texts_in_train"], card["task"]
    line = f"{task['name']}: {splits} rows"
    line += f", {dropped.total():,} dropped ({describe_dropped(dropped)})" if dropped else ""
    line += f", {shared} test texts also in train" if shared else ""
    if any("label '" in reason for reason in dropped):
        line += f"; labels that are used: {', '.join([*task['labels'], *(task['relabel'] or ())])}"
    return printable(line)


def _inside(folder: Path, path: Path) -> Path:
    return folder / path.relative_to(paths.TABLES)


def load_raw(
    spec: TaskSpec, data: DataParams, fetch: Callable[[str], Path]
) -> tuple[dict[str, list[Row]], dict[str, Any]]:
    """Give the raw rows of a task by split (train, dev, test), and a JSON description of where they are from.

    `data` has the settings source, and root and columns of the local one; `fetch` turns a package's name into the path of its
    file.  Raises DataError with what is missing and what to do.
    """
    if data.source == "packaged":
        return load_packaged(spec, fetch)
    if data.source == "hub":
        return load_hub(spec)
    return load_local(spec, Path(data.root), data.columns)


@stage
def main(params: Settings) -> None:
    """Fetch every data set that the tasks in params.yaml need."""
    specs, _ = resolve_tasks(params.task)
    names, texts, problems = needed_sets(params.tasks, params.ood.sets), {}, {}
    with (
        TemporaryDirectory() as downloads,
        replacing(paths.TABLES) as folder,
        progress("fetch", len(names), "set") as bar,
    ):
        fetch = cache(lambda package: download(package, Path(downloads)))
        for name in names:
            try:
                texts[name], card = write_table(specs[name], params.data, fetch, folder, specs)
                bar.write(f"fetch {summary_line(card)}")
            except DataError as problem:
                problems.setdefault(str(problem), named_by(name, params.tasks, params.ood.sets))
                if params.data.source != "local":  # each failing download would be retried for minutes
                    break
            bar.update()
        if problems:
            raise DataError("\n".join(map("".join, problems.items())))
        write_ood(params.tasks, texts, params.ood, folder)
