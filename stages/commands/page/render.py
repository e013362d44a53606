"""The whole page, from the files that the pipelines have left and the template beside this module."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from stages.commands.page import provenance
from stages.commands.page.results import MAIN, Result, read_results
from stages.lib import paths
from stages.lib.errors import GraftError, ParamsError, StorageError
from stages.lib.params import sections_of, validate
from stages.lib.report.differences import NOT_THERE, Entry, compare, written
from stages.lib.report.document import HOW_JUDGED, Verdict
from stages.lib.report.format import counted, model_title
from stages.lib.yaml12 import load_yaml, parse_yaml
from stages.workflow.plan import Step

TITLE = "Skill localization by grafting: what this run shows"
# the class that marks a claim, and the order in which the caveats have those that don't hold
KINDS = {Verdict.HOLDS: "holds", Verdict.FAILS: "fails", Verdict.UNCLEAR: "unclear", Verdict.OPEN: "open"}
FEW_SEEDS = 3
SHOWN = 5


def write_page(revision: str) -> str:
    """HTML of the report on this folder, beside the commit `revision`.

    Raises StorageError if no pipeline has run under the settings of params.yaml, or git doesn't know the commit.
    """
    params = load_yaml(paths.PARAMS, ParamsError)
    results = read_results(validate(params))
    ran = [result for result in results if not result.others]
    if not ran:
        reasons = [result.left_out for result in results] or [f"there is no {paths.report_document(MAIN)}"]
        raise StorageError("\n  ".join(["nothing to report: run `dvc repro` first", *reasons]))
    commit, subject = provenance.commit_of(revision)
    settings = compare(_stored(commit, paths.PARAMS), params)
    steps = _steps(ran)
    return _template().render(
        title=TITLE,
        about=_about(params, ran),
        made=[*_made(ran, steps)],
        ran=ran,
        remarks=[*_remarks(params, results, steps)],
        claims=[(result, claim) for result in ran for claim in result.report.claims],
        grafts=[*_grafts(params)] if ran[0].name == MAIN else [],
        baseline=f"{commit} ({subject})",
        sections=_sections(settings, ran),
        numbers={result.name: _numbers(commit, result) for result in ran},
    )


def _stored(commit: str, path: Path) -> dict[str, Any]:
    """A YAML or JSON file of a commit; an empty table if it isn't there."""
    text = provenance.git("show", f"{commit}:./{path}")
    return parse_yaml(text, f"{commit}:{path}", ParamsError) if text else {}


def _numbers(commit: str, result: Result) -> list[Entry] | None:
    """The headline of a pipeline beside that of a commit; None where the commit has none."""
    before = _stored(commit, paths.report(result.name))
    return compare(before, result.metrics) if before else None


def _sections(settings: Sequence[Entry], ran: Sequence[Result]) -> dict[str, list[Entry]]:
    """Settings of the pipelines that ran, by section."""
    shown = sections_of(["", *(result.name for result in ran if result.name != MAIN)])
    entries = {name: [entry for entry in settings if entry.name.split(".")[0] == name] for name in shown}
    return {name: found for name, found in entries.items() if found}


def _made(ran: Sequence[Result], steps: Sequence[Step]) -> Iterator[tuple[str, str]]:
    """The head of the page: when, of what, by what and in how long."""
    commit = provenance.git("rev-parse", "--short", "HEAD")
    changed = provenance.uncommitted()
    yield "page", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    yield "commit", (commit or "none") + (f", {counted(len(changed), 'file')} changed since" if changed else "")
    yield "results", "; ".join(f"{result.name}: {result.made}" for result in ran)
    yield "versions", provenance.versions()
    yield "processor", provenance.processor()
    yield "durations", _took(provenance.durations(step.name for step in steps))


def _took(seconds: Mapping[str, float]) -> str:
    if not seconds:
        return "not known: no stage ran on this computer"
    last = sorted(seconds, key=seconds.get)[: -SHOWN - 1 : -1]
    longest = ", ".join(f"{stage} {_minutes(seconds[stage])}" for stage in last)
    return f"{_minutes(sum(seconds.values()))} in all stages that ran on this computer; longest: {longest}"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def _grafts(params: Mapping[str, Any]) -> Iterator[tuple[str, int, Path, str]]:
    """Task, seed, mask and the command that makes a patch of it."""
    for task, seed in product(params["tasks"], params["seeds"]):
        mask = paths.learned(task, seed)
        if mask.is_file():
            command = f"python -m stages.commands.graft export {mask} --as patch --to shared/{task}-{seed}"
            yield task, seed, mask, command


def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, finalize=_unbroken,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"written": written, "counted": counted, "json": _json}
    environment.globals |= {"KINDS": KINDS, "NOT_THERE": NOT_THERE, "HOW_JUDGED": HOW_JUDGED}
    return environment.get_template("page.html.j2")


def _json(value: object) -> Markup:
    """For a script element, which ends at the first `</`."""
    return Markup(json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"))


def _unbroken(value: object) -> object:
    """No line break between a number and its sign of percent."""
    return value if hasattr(value, "__html__") else re.sub(r"(?<=\d) %", "\u00a0%", str(value))


def _about(params: dict[str, Any], ran: Sequence[Result]) -> str:
    verdicts = [claim.verdict for result in ran for claim in result.report.claims]
    holds, fails, unclear, unknown = map(verdicts.count, KINDS)
    model, tasks, seeds = params["model"], params["tasks"], params["seeds"]
    return (
        f"{model_title(model['name'])}, {model['mode']} fine-tuning on {', '.join(tasks)}; {counted(len(seeds), 'seed')}. "
        f"{counted(len(ran), 'pipeline')}, {counted(len(verdicts), 'claim')}: {holds} hold, "
        f"{fails} do not, {unclear} are not shown, {unknown} can't be measured here."
    )


def _steps(ran: Sequence[Result]) -> list[Step]:
    """The plan of DVC for every stage that the results come from; nothing where it can't tell."""
    from stages.workflow.plan import steps_of

    try:
        return steps_of([str(result.pipeline) for result in ran])
    except GraftError:
        return []


def _remarks(params: dict[str, Any], results: Sequence[Result], steps: Sequence[Step]) -> Iterator[str]:
    """Gaps of the page: other settings, stages that would run again, few repetitions, work not committed or not run."""
    yield from (f"Left out: {result.left_out}." for result in results if result.others)
    if not steps:
        yield "DVC can't tell whether the results belong to this code and data (`dvc status` says why)."
    # a stage that only looks at the code makes nothing that is reported
    due = [step for step in steps if step.reasons and not step.stage.endswith("code")]
    if due:
        names = ", ".join(dict.fromkeys(step.stage for step in due))
        yield f"Earlier data, models or code: {counted(len(due), 'stage')} would be made anew ({names})."
    tasks, seeds = len(params["tasks"]), len(params["seeds"])
    if tasks < 2 or seeds < 2:
        yield f"No intervals, so no verdicts: {counted(tasks, 'task')}, {counted(seeds, 'seed')}; both take at least two."
    elif seeds < FEW_SEEDS:
        yield f"Few repetitions: a standard deviation over {counted(seeds, 'seed')} says little."
    if changed := provenance.uncommitted():
        more = f" and {len(changed) - SHOWN} more files" * (len(changed) > SHOWN)
        yield f"Not committed: {', '.join(changed[:SHOWN])}{more}."
    there = {result.name for result in results}
    files = sorted(paths.PIPELINES.glob("*/dvc.yaml"))
    if names := ", ".join(file.parent.name for file in files if file.parent.name not in there):
        yield f"Not run, so not in this report: {names}."
