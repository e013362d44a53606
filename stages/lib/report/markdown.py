"""The report as markdown, for metrics/summary.md."""

from .document import HEADING, Claim, Report, Table


def to_markdown(report: Report) -> str:
    """The whole report as one markdown text."""
    parts = [f"# {report.title}", report.setting, *map(_table, report.tables)]
    parts.append("\n".join(f"- {fact}" for fact in report.facts))
    if report.claims:
        parts += [f"## {HEADING}", report.how_judged, "\n".join(map(_claim, report.claims))]
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    lines = [_line(table.header), _line([":--", *["--:"] * (len(table.header) - 1)])]
    for row in table.rows:
        cells = [*row.cells, *[""] * (len(table.header) - len(row.cells))]
        lines.append(_line([_emphasis(row.kind, cell.strip()) for cell in cells]))
    notes = "\n".join(f"- {_escaped(note)}" for note in table.notes)
    return "\n\n".join([f"## {table.title}", "\n".join(lines), notes])


def _emphasis(kind: str, cell: str) -> str:
    mark = {"ours": "", "paper": "*", "average": "**", "group": "**"}[kind]
    return f"{mark}{_escaped(cell)}{mark}" if cell else ""


def _claim(claim: Claim) -> str:
    lines = [f"- **{claim.verdict}**: {_escaped(claim.text)}: {_escaped(claim.figure)}"]
    if claim.paper:
        lines.append(f"  - the paper: {_escaped(str(claim.paper))}; here: {_escaped(claim.here)}")
    if claim.exceptions:
        lines.append(f"  - not so in: {_escaped(', '.join(claim.exceptions))}")
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Task names may hold underscores, which markdown takes for emphasis."""
    return text.replace("_", "\\_").replace("|", "\\|").replace("->", "→")
