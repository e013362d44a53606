"""The parts of the report: settings, one part for each pipeline, what changed, and what to keep in mind."""

import base64
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from stages.commands.page import reproduction
from stages.commands.page.baseline import Baseline
from stages.commands.page.differences import Difference, differences, flat, written
from stages.commands.page.html import Section, bullets, folded, paragraph, scrolling, table, text
from stages.commands.page.markdown import VERDICTS, claims, to_html, unbroken
from stages.commands.page.results import Result
from stages.lib import paths
from stages.lib.params import data_files
from stages.lib.report.format import counted

CAPTIONS = "captions.yaml"
# of a list of changes that is shown without a click
FEW = 30
NUMBERS = int | float


def settings(params: dict[str, Any], baseline: Baseline) -> Section:
    """Every setting; those that differ from the baseline are highlighted and their section is open."""
    changed = {found.name: found for found in differences(baseline.params, params)}
    parts = []
    for name, values in params.items():
        inside = flat({name: values})
        gone = [key for key in changed if key.split(".")[0] == name and key not in inside]
        rows = [[text(key), text(written(inside.get(key))), _was(changed.get(key))] for key in [*inside, *gone]]
        marks = [key in changed for key in [*inside, *gone]]
        number = sum(marks)
        title = f"{name}: {number} changed" if number else name
        parts.append(folded(title, table(["setting", "value", "baseline"], rows, marks), is_open=bool(number)))
    about = f"{counted(len(changed), 'setting')} differ" if len(changed) != 1 else "1 setting differs"
    return Section("settings", "Settings", paragraph(f"{about} from {_named(baseline)}.") + "".join(parts))


def _was(found: Difference | None) -> str:
    if found is None:
        return ""
    return text(written(found.before)) if found.before is not None else '<span class="quiet">not there</span>'


def beside_the_paper() -> Section:
    """The paper's claims, its numbers and ours."""
    return Section("paper", "Beside the paper", to_html(reproduction.table(Path())).replace('"numbers"', '"reading"'))


def pipeline(result: Result) -> Section:
    """Tables, verdict and figures of a pipeline that has run."""
    return Section(result.name, result.title, to_html(result.markdown) + "".join(map(_figure, result.figures)))


def _figure(path: Path) -> str:
    content = path.read_bytes()
    width, height = struct.unpack(">II", content[16:24])  # of a PNG, in its first chunk
    place = str(Path(*path.parts[path.parts.index(str(paths.PLOTS)) :]))
    key = place.removeprefix(f"{paths.PLOTS}/").removesuffix(".png")
    caption = caption_of(key)
    data = base64.b64encode(content).decode("ascii")
    image = f'<img src="data:image/png;base64,{data}" alt="{text(caption)}" width="{width}" height="{height}">'
    return f"<figure>{scrolling(image)}<figcaption>{text(caption)} <code>{text(place)}</code></figcaption></figure>"


@cache
def _captions() -> dict[str, str]:
    return {
        f"{pipeline}/{name}".lstrip("/"): caption
        for pipeline, captions in data_files(CAPTIONS).items()
        for name, caption in captions.items()
    }


def caption_of(key: str) -> str:
    """What is said under a figure, by its place under plots; of one that is drawn several times, which it is."""
    known = _captions()
    fitting = [name for name in known if key == name or key.startswith(f"{name}_")]
    if not fitting:
        return f"{Path(key).name.replace('_', ' ').capitalize()}."
    name = max(fitting, key=len)
    which = key.removeprefix(name).strip("_").replace("_", " ")
    return f"{known[name]} Here: {which}." if which else known[name]


def changes(results: Sequence[Result], baseline: Baseline) -> Section:
    """Every number that differs from the baseline, by pipeline."""
    parts = []
    for result in results:
        before = baseline.metrics.get(f"{result.name}.json")
        if not result.has_run:
            continue
        if before is None:
            parts.append(paragraph(f"{result.name}: the baseline has no numbers of it."))
            continue
        found = differences(before, result.metrics)
        same = len(flat(result.metrics)) - sum(entry.after is not None for entry in found)
        title = f"{result.name}: {len(found):,} of {len(found) + same:,} numbers differ"
        parts.append(folded(title, _change_table(found), 0 < len(found) <= FEW) if found else paragraph(title))
    return Section("changes", "Against the baseline", paragraph(f"Compared with {_named(baseline)}.") + "".join(parts))


def _change_table(found: Sequence[Difference]) -> str:
    rows = [
        [text(entry.name), *(_cell(value) for value in (entry.before, entry.after)), _gap(entry)] for entry in found
    ]
    drawn = table(["number", "baseline", "now", "change"], rows)
    return drawn.replace("<table>", '<table class="numbers">')


def _cell(value: Any) -> str:
    return '<span class="quiet">not there</span>' if value is None else text(written(value))


def _gap(entry: Difference) -> str:
    pair = (entry.before, entry.after)
    if all(isinstance(value, NUMBERS) and not isinstance(value, bool) for value in pair):
        return f"{entry.after - entry.before:+.6g}"
    return ""


def caveats(results: Sequence[Result], remarks: Sequence[str]) -> Section:
    """Claims that don't hold, their exceptions, pipelines that haven't run, and further `remarks`."""
    lines = [
        (claim.kind, f"<strong>{KINDS[claim.kind].value}</strong> ({text(result.name)}): {unbroken(text(claim.text))}")
        for kind in DOUBTFUL
        for result in results
        for claim in claims(result.markdown)
        if claim.kind == kind
    ]
    exceptions = [
        f"{unbroken(text(claim.text))}; not so in {unbroken(text(claim.exceptions))}"
        for result in results
        for claim in claims(result.markdown)
        if claim.kind == "holds" and claim.exceptions
    ]
    absent = [result.name for result in results if not result.has_run]
    notes = [*remarks, f"Not run, so not in this report: {', '.join(absent)}."] if absent else [*remarks]
    body = [bullets([text(note) for note in notes])]
    body += (
        ["<h3>Claims that do not hold, are not shown, or can't be measured here</h3>", _claims(lines)] if lines else []
    )
    body += ["<h3>Claims that hold, but not everywhere</h3>", bullets(exceptions)] if exceptions else []
    return Section("caveats", "Failures and caveats", "".join(body) or paragraph("None."))


KINDS = {kind: verdict for verdict, kind in VERDICTS.items()}
# the order in which the caveats have them
DOUBTFUL = ("fails", "unclear", "open")


def _claims(lines: Sequence[tuple[str, str]]) -> str:
    return f'<ul class="claims">{"".join(f"""<li class="{kind}">{line}</li>""" for kind, line in lines)}</ul>'


def _named(baseline: Baseline) -> str:
    return f"{baseline.commit} ({baseline.subject})"
