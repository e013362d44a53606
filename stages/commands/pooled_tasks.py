"""pooled_tasks: the report of the main pipeline over the tasks of several runs, such as those of several machines or days.

python -m stages.commands.pooled_tasks first=first/plots .=plots --figures pooled --markdown pooled.md

Before the = stands the folder with a run's params.yaml, after it its plots.  The settings in which runs differ are named.  Each
task is judged on its own test set; of other test sets the runs' own reports tell.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from stages.commands.named_runs import named_runs, read_csv
from stages.figures import FIGURES
from stages.lib import paths
from stages.lib.data.tasks import resolve_tasks, unknown_tasks
from stages.lib.entry import guarded
from stages.lib.errors import DataError, ParamsError
from stages.lib.io import write_text
from stages.lib.metrics.gain import add_gain, scores_of_ends
from stages.lib.report.claims import judge, read_statements
from stages.lib.report.differences import flat, written
from stages.lib.report.document import Report
from stages.lib.report.format import counts, words
from stages.lib.report.publish import show, to_markdown
from stages.lib.report.style import save_all
from stages.lib.report.table import shown
from stages.lib.settings import at
from stages.lib.yaml12 import load_yaml
from stages.report import CELL, HERE, MEASURED, Results, added_bars, added_bins, error_table, score_table
from stages.settings import SummaryParams
from stages.workflow.settings import PIPELINES

FORM = "FOLDER=PLOTS is wanted: the folder of a run's params.yaml, and that of its plots"
# what a run leaves for `dvc plots`, and what tells its rows
TABLES = {
    "scores": [*CELL, "variant", "score", "ece", "agreement", "retained"],
    "reliability": ["task", "variant", "bin", "count", "confidence", "accuracy"],
    "confidence": ["task", "variant", "low", "high", "count"], "frontier": [*CELL, "method", "ece"],
}  # fmt: skip
# sections of the main pipeline whose values are about which cells there are, or change no result
ASIDE = {"tasks", "seeds", "task", "ood"}


def main() -> None:
    """Parse the command line, print the report, draw the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m stages.commands.pooled_tasks", description="The report over the tasks of several runs."
    )
    parser.add_argument(
        "runs", nargs="+", metavar="FOLDER=PLOTS", help="a run's params.yaml is in the one, its tables in the other"
    )
    parser.add_argument("--figures", type=Path, help="folder for the figures")
    parser.add_argument("--markdown", type=Path, help="file for the report as markdown")
    asked = parser.parse_args()
    folders = named_runs(asked.runs, FORM)
    settings = {name: load_yaml(Path(name) / paths.PARAMS, ParamsError) for name in folders}
    results = pool(folders, settings)
    if asked.figures:
        save_all({name: draw for name, draw in FIGURES.items() if name != "ood"}, results, asked.figures)
    report = pooled_report(results, settings)
    if asked.markdown:
        write_text(asked.markdown, to_markdown(report))
    show(report)


def pool(folders: Mapping[str, Path], settings: Mapping[str, dict[str, Any]]) -> Results:
    """The results of all runs as those of one; raises DataError if two have the same cell, or a table can't be read."""
    frames = {name: _pooled(folders, name) for name in TABLES}
    # of all seeds together, and runs may have seeds of one task; a bin without rows is left out of a run's file
    bins = frames["reliability"].sort_values("bin", kind="stable")
    frames |= {"reliability": added_bins(bins), "confidence": added_bars(frames["confidence"])}
    scores, first = frames["scores"], next(iter(settings.values()))
    twice = scores[scores.duplicated([*CELL, "variant"])]
    if len(twice):
        raise DataError(f"{' '.join(folders)}: two of these have {twice.task.iloc[0]} with seed {twice.seed.iloc[0]}")
    tasks = [*dict.fromkeys(scores.task)]
    own = {name: spec for values in settings.values() for name, spec in values["task"].items()}
    if problems := unknown_tasks("scores.csv", tasks, own):
        raise DataError("\n".join(problems))
    least = first["summary"]["least_gain"]
    frames["scores"] = scores = add_gain(scores, scores_of_ends(scores, CELL), least)
    # a mask's share is all that tables and figures say of it
    graft = {"selected": first["graft"]["sparsity"], "graftable": 1.0, "localizer": first["graft"]["localizer"]}
    masks = scores[CELL].drop_duplicates().assign(**graft, k=first["data"]["k"], mode=first["model"]["mode"])
    specs, _ = resolve_tasks(own)
    return Results(
        tasks={name: specs[name] for name in tasks},
        seeds=sorted({*scores.seed}),
        masks=masks,
        ood=pd.DataFrame(),
        leaks={},
        least_gain=least,
        **frames,
    )


def _pooled(folders: Mapping[str, Path], name: str) -> pd.DataFrame:
    files = [plots / f"{name}.csv" for plots in folders.values()]
    return pd.concat([read_csv(file, TABLES[name], "of a run of the main pipeline", {"task": str}) for file in files])


def differing_settings(settings: Mapping[str, dict[str, Any]]) -> list[str]:
    """Settings of the main pipeline in which the runs differ, with the value of each, in the order of the runs.

    A setting that there was not yet when a run was made is no difference by itself.
    """
    sections = [name for name in PIPELINES[""].SECTIONS if name not in ASIDE]
    used = {name: _used(values, sections) for name, values in settings.items()}
    return [
        f"{key}: {', '.join(written(values[key]) if key in values else 'not there' for values in used.values())}"
        for key in dict.fromkeys(key for values in used.values() for key in values)
        for sides in [[values[key] for values in used.values() if key in values]]
        if any(side != sides[0] for side in sides)
    ]


def _used(values: dict[str, Any], sections: Sequence[str]) -> dict[str, Any]:
    localizer = f"localizer.{values['graft']['localizer']}"
    keys = [name for name in sections if name not in ("localizer", "runtime")]
    return flat({key: at(values, key) for key in [*keys, "runtime.precision", localizer]})


def pooled_report(results: Results, settings: Mapping[str, dict[str, Any]]) -> Report:
    """Tables, what the runs differ in, and claims."""
    first, seeds = next(iter(settings.values())), results.scores.groupby("task", sort=False).seed.nunique()
    few = [f"{words(task)} {number}" for task, number in seeds.items() if number < len(results.seeds)]
    facts = [f"Runs: {', '.join(settings)}", *(f"The runs differ in {text}" for text in differing_settings(settings))]
    facts += [f"Fewer seeds than {len(results.seeds)}: {', '.join(few)}"] * bool(few)
    here = f"{first['model']['name']}, {first['model']['mode']}, {first['data']['k']} shots, graft of {100 * first['graft']['sparsity']:g} %"
    limits = SummaryParams.model_validate(first["summary"])
    return Report(
        "Grafted models against fine-tuned models, over several runs",
        f"{here}, {counts(run=len(settings), task=len(results.tasks), seed=len(results.seeds))}",
        shown([score_table(results), error_table(results)]),
        facts,
        judge(read_statements(HERE / "claims.yaml"), MEASURED, results, here, limits),
    )


if __name__ == "__main__":
    guarded("pooled_tasks", main)
