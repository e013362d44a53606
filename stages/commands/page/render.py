"""The whole page, from the files that the pipelines have left and the template beside this module."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from stages.commands.page.baseline import read_baseline, uncommitted
from stages.commands.page.results import Result, read_results
from stages.commands.plan.stage_status import UNCHANGED
from stages.lib import paths
from stages.lib.errors import GraftError, ParamsError, StorageError
from stages.lib.report.differences import compare, written
from stages.lib.report.document import Verdict
from stages.lib.report.format import counted
from stages.lib.yaml12 import load_yaml

TITLE = "Skill localization by grafting: what this run shows"
# the class that marks a claim, and the order in which the caveats have those that don't hold
KINDS = {Verdict.HOLDS: "holds", Verdict.FAILS: "fails", Verdict.UNCLEAR: "unclear", Verdict.OPEN: "open"}
FEW_SEEDS = 3
SHOWN = 5


def write_page(revision: str) -> str:
    """HTML of the report on this folder, beside the commit `revision`.

    Raises StorageError if no pipeline has run, or git doesn't know the commit.
    """
    results = read_results()
    ran = [result for result in results if result.report]
    if not ran:
        missing = paths.report_document("summary")
        raise StorageError(f"nothing to report: there is no {missing}; run `dvc repro` first")
    params = load_yaml(paths.PARAMS, ParamsError)
    baseline = read_baseline(revision)
    settings = compare(baseline.params, params)
    return _template().render(
        title=TITLE,
        about=_about(params, ran),
        ran=ran,
        remarks=[*_stale(ran), *_few(params), *_uncommitted(), *_absent(results)],
        claims=[(result, claim) for result in ran for claim in result.report.claims],
        baseline=baseline,
        settings=settings,
        sections={name: [entry for entry in settings if entry.name.split(".")[0] == name] for name in params},
        numbers={
            result.name: compare(baseline.metrics[file], result.metrics)
            for result in ran
            if (file := f"{result.name}.json") in baseline.metrics
        },
    )


def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_unbroken,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"written": written, "counted": counted}
    environment.globals |= {"KINDS": KINDS}
    return environment.get_template("page.html.j2")


def _unbroken(value: object) -> object:
    """No line break between a number and its sign of percent."""
    return value if hasattr(value, "__html__") else re.sub(r"(?<=\d) %", "\u00a0%", str(value))


def _about(params: dict[str, Any], ran: Sequence[Result]) -> str:
    verdicts = [claim.verdict for result in ran for claim in result.report.claims]
    holds, fails, unclear, unknown = map(verdicts.count, KINDS)
    model, tasks, seeds = params["model"], params["tasks"], params["seeds"]
    return (
        f"{model['name']}, {model['mode']} fine-tuning on {', '.join(tasks)}; {counted(len(seeds), 'seed')}. "
        f"{counted(len(ran), 'pipeline')}, {counted(len(verdicts), 'claim')}: {holds} hold, "
        f"{fails} do not, {unclear} are not shown, {unknown} can't be measured here."
    )


def _stale(ran: Sequence[Result]) -> Iterator[str]:
    """Stages that would run again, as settings or code are not those that the results were made with."""
    from stages.commands.plan.predicted_steps import predict_steps

    try:
        steps = predict_steps([result.pipeline for result in ran])
    except GraftError as problem:
        yield f"Whether the results belong to these settings can't be told: {problem}"
        return
    # a stage that only looks at the code makes nothing that is reported
    due = [step for step in steps if step.fate != UNCHANGED and not step.stage.endswith("code")]
    if due:
        names = ", ".join(dict.fromkeys(step.stage for step in due))
        yield f"Earlier settings or code: {counted(len(due), 'stage')} would be made anew ({names})."


def _few(params: dict[str, Any]) -> Iterator[str]:
    seeds = len(params["seeds"])
    if seeds < FEW_SEEDS:
        yield f"Few repetitions: a standard deviation over {counted(seeds, 'seed')} says little."


def _uncommitted() -> Iterator[str]:
    changed = uncommitted()
    if changed:
        more = len(changed) - len(changed[:SHOWN])
        yield f"Not committed: {', '.join(changed[:SHOWN])}{f' and {more} more files' if more else ''}."


def _absent(results: Sequence[Result]) -> Iterator[str]:
    names = ", ".join(result.name for result in results if not result.report)
    if names:
        yield f"Not run, so not in this report: {names}."
