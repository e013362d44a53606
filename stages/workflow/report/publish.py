"""A pipeline's report: its tidy frames as CSV, tables and claims as markdown, headline and claims as JSON, figures as PNG."""

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from skill_grafting.support.formatting import as_markdown
from skill_grafting.support.io import write_json, write_text
from skill_grafting.support.writing import replacing
from stages.workflow.report.claims import FEW_TASKS, HOW_FAMILIES, HOW_JUDGED, Judged, families, judge, of_few_tasks
from stages.workflow.report.spec import Frames, Spec, fill, load_frames, read_spec, result
from stages.workflow.report.tables import Rendered, facts_of, render
from stages.workflow.stage import paths

DECIMALS = 4  # of what git keeps, so that another machine writes the same; of small numbers as many digits
CLAIMS = "## Claims"
MARKS = {"ours": "", "paper": "*", "average": "**", "group": "**"}


def publish(pipeline: str, frames: Mapping[str, pd.DataFrame]) -> None:
    """Write the CSV files of a pipeline, then its report from these alone, and print the result in one line.

    Its folder has report.yaml, paper.csv and the script of the report, whose `derive` adds columns.
    """
    plots = paths.report_plots(pipeline)
    for name, frame in frames.items():
        numbers = {*frame.select_dtypes("floating")} - {"sparsity"}
        rounded = frame.assign(**{column: frame[column].map(_rounded) for column in frame if column in numbers})
        write_text(plots / f"{name}.csv", rounded.to_csv(index=False, lineterminator="\n"))
    report(pipeline)


def report(pipeline: str) -> None:
    """Write the report of a pipeline from its CSV files alone, and print the result in one line."""
    plots = paths.report_plots(pipeline)
    spec, found = load_report(report_folders()[pipeline], plots)
    write_text(paths.report(pipeline).with_suffix(".md"), markdown(spec, found))
    write_json(paths.report(pipeline), headline(spec, found))
    write_json(paths.report(pipeline).with_name(f"{pipeline}_claims.json"), claims_record(spec, found))
    save_figures(spec, found, plots)
    print(f"{_sentence(spec, found, facts_of(spec, found))} (metrics/{pipeline}.md)")


def report_folders() -> dict[str, Path]:
    """Name -> folder of every pipeline that has a report, the main one first."""
    further = sorted(file.parent for file in Path("stages").glob("*/report.yaml"))
    return {"summary": Path("stages"), **{folder.name: folder for folder in further}}


def load_report(folder: Path, plots: Path) -> tuple[Spec, Frames]:
    """The spec of a pipeline's folder and its frames, read from CSV and with all that is derived from them."""
    return read_spec(folder / "report.yaml"), derive_with(folder, load_frames(plots, folder / "paper.csv"))


def derive_with(folder: Path, frames: Frames) -> Frames:
    """The frames with all that the report's script of a pipeline's folder derives from them."""
    script = "summary" if folder == paths.PIPELINES else folder.name  # as dvc.yaml has it
    return import_module(".".join([*folder.parts, script])).derive(frames)


def save_figures(spec: Spec, frames: Frames, folder: Path) -> None:
    """Every figure as <name>.png; equal figures give equal bytes, since neither date nor version is in them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from stages.workflow.report.plots import DPI, draw_all

    for name, drawn in draw_all(spec, frames):
        drawn.set_dpi(DPI)
        with replacing(folder / f"{name}.png") as partial:
            FigureCanvasAgg(drawn).print_png(partial, metadata={"Software": None})


def headline(spec: Spec, frames: Frames) -> dict[str, Any]:
    """At most 15 numbers for `dvc metrics`, without undefined ones."""
    facts = facts_of(spec, frames)
    known = {name: facts[name].mean for name in spec.headline if facts[name].mean is not None}
    return {name: round(float(value), DECIMALS) + 0.0 for name, value in known.items()}


def markdown(spec: Spec, frames: Frames) -> str:
    """The report as one markdown text: the result, tables, claims."""
    facts = facts_of(spec, frames)
    parts = [
        f"# {spec.title}",
        _sentence(spec, frames, facts),
        fill(spec, spec.setting, "setting", **facts),
        start_of(facts),
    ]
    parts += map(_table, render(spec, frames))
    return "\n\n".join(filter(None, [*parts, claims_text(judge(spec, frames))])) + "\n"


def claims_text(claims: Sequence[Judged]) -> str:
    """The part of a report that tells its claims, and the families that these are corrected in; empty without claims."""
    alone = of_few_tasks(claims)
    told = "\n".join(_claim(claim, "" if alone else f"**{claim.verdict}**: ") for claim in claims)
    parts = [CLAIMS, FEW_TASKS if alone else HOW_JUDGED, told] if claims else []
    if found := families(claims):
        rows = [[_escaped(name), f"{size}", smallest] for name, (size, smallest) in found.items()]
        table = [["family", "claims", "smallest difference"], [":--", "--:", "--:"], *rows]
        parts += ["## Families of claims", HOW_FAMILIES, "\n".join(map(_row, table))]
    return "\n\n".join(parts)


def claims_record(spec: Spec, frames: Frames) -> dict[str, dict[str, Any]]:
    """Each claim by its words: its verdict, and what this follows from, on the scale of the frames."""
    return {claim.words: _record(claim) for claim in judge(spec, frames)}


def _record(claim: Judged) -> dict[str, Any]:
    value = claim.value
    numbers = {
        "value": value.mean, "limit": claim.limit, "by_task": [value.low, value.high], "by_source": value.by_source,
        "p_value": value.p_value(claim.limit), "smallest_shown": claim.smallest,
    }  # fmt: skip
    told = {
        name: [*map(_known, number)] if isinstance(number, list | tuple) else _known(number)
        for name, number in numbers.items()
    }
    family = {"family": claim.family, "family_size": claim.family_size}
    return {"verdict": str(claim.verdict), "n": claim.n, **told, **family}


def _known(number: float | None) -> float | None:
    # more digits than pages have, so that these round to the same
    return None if number is None or math.isnan(number) else round(float(number), DECIMALS + 2) + 0.0


def start_of(facts: Mapping[str, Any]) -> str:
    """What the report calls pretrained: the model with all that is known of where it is from; empty for the frames of older runs."""
    return f"Pretrained is what fine-tuning starts from: {facts['provenance']}." if "provenance" in facts else ""


def _sentence(spec: Spec, frames: Frames, facts: Mapping[str, Any]) -> str:
    """The result, or that nothing was measured."""
    measured = any(len(frame) for name, frame in frames.items() if name not in ("run", "facts", "paper"))
    return result(spec, facts) if measured else "Off: the settings ask for nothing here."


def _table(table: Rendered) -> str:
    rows = [_row(table.header), _row([":--", *["--:"] * (len(table.header) - 1)])]
    for line in table.lines:
        mark = MARKS[line.kind]
        cells = [f"{mark}{_escaped(cell.strip())}{mark}" if cell.strip() else "" for cell in line.cells]
        rows.append(_row([*cells, *[""] * (len(table.header) - len(cells))]))
    notes = "\n".join(f"- {_escaped(note)}" for note in table.notes)
    return "\n\n".join(filter(None, [f"## {table.title}", "\n".join(rows), notes]))


def _claim(claim: Judged, verdict: str) -> str:
    lines = [f"- {verdict}{_escaped(claim.words)}: {_escaped(claim.figure)}"]
    if claim.paper:
        lines.append(f"  - the paper: {_escaped(str(claim.paper))}; here: {_escaped(claim.size)}")
    if claim.elsewhere:
        lines.append(f"  - {claim.elsewhere}")
    if claim.exceptions:
        lines.append(f"  - not so in: {_escaped(', '.join(claim.exceptions))}")
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return as_markdown(text).replace("->", "→")


def _rounded(value: float) -> float:
    """At four decimals, a number below 0.1 at four digits; 0.0 for -0.0."""
    digits = DECIMALS - 1 - math.floor(math.log10(abs(value))) if value and math.isfinite(value) else DECIMALS
    return round(value, max(DECIMALS, digits)) + 0.0
