"""The whole page, from the files that the pipelines have left."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.commands.page import sections
from stages.commands.page.baseline import read_baseline, uncommitted
from stages.commands.page.html import page, paragraph
from stages.commands.page.markdown import claims
from stages.commands.page.results import Result, read_results
from stages.commands.plan.stage_status import UNCHANGED, outlook
from stages.lib import paths
from stages.lib.errors import GraftError, ParamsError, StorageError
from stages.lib.report.format import counted
from stages.lib.yaml12 import load_yaml

TITLE = "Skill localization by grafting: what this run shows"
FEW_SEEDS = 3
SHOWN = 5


def write_page(revision: str) -> str:
    """HTML of the report on this folder, beside the commit `revision`.

    Raises StorageError if no pipeline has run, or git doesn't know the commit.
    """
    results = read_results(Path())
    ran = [result for result in results if result.has_run]
    if not ran:
        raise StorageError(f"nothing to report: there is no {paths.SUMMARY.with_suffix('.md')}; run `dvc repro` first")
    params = load_yaml(paths.PARAMS, ParamsError)
    baseline = read_baseline(revision)
    remarks = [*_stale(ran), *_few(params), *_uncommitted()]
    parts = [
        sections.caveats(results, remarks),
        sections.beside_the_paper(),
        *map(sections.pipeline, ran),
        sections.changes(results, baseline),
        sections.settings(params, baseline),
    ]
    return page(TITLE, paragraph(_about(params, ran)), parts)


def _about(params: dict[str, Any], ran: Sequence[Result]) -> str:
    kinds = [claim.kind for result in ran for claim in claims(result.markdown)]
    model, tasks, seeds = params["model"], params["tasks"], params["seeds"]
    return (
        f"{model['name']}, {model['mode']} fine-tuning on {', '.join(tasks)}; {counted(len(seeds), 'seed')}. "
        f"{counted(len(ran), 'pipeline')}, {counted(len(kinds), 'claim')}: {kinds.count('holds')} hold, "
        f"{kinds.count('fails')} do not, {kinds.count('unclear')} are not shown, {kinds.count('open')} can't be measured here."
    )


def _stale(ran: Sequence[Result]) -> list[str]:
    """Whether what is reported follows from the settings and the code as they are."""
    try:
        steps = outlook([result.file for result in ran])
    except GraftError as problem:
        return [f"Whether the results belong to these settings can't be told: {problem}"]
    due = [step for step in steps if step.fate != UNCHANGED]
    names = ", ".join(dict.fromkeys(step.stage for step in due))
    return [f"Earlier settings or code: {counted(len(due), 'stage')} would be made anew ({names})."] if due else []


def _few(params: dict[str, Any]) -> list[str]:
    seeds = len(params["seeds"])
    if seeds >= FEW_SEEDS:
        return []
    return [f"Few repetitions: a standard deviation over {counted(seeds, 'seed')} says little."]


def _uncommitted() -> list[str]:
    changed = uncommitted()
    if not changed:
        return []
    more = len(changed) - len(changed[:SHOWN])
    return [f"Not committed: {', '.join(changed[:SHOWN])}{f' and {more} more files' if more else ''}."]
