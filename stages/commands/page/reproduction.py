"""What reproduces and what does not: the claims of publications, beside what the reports of this project say of them.

python -m stages.commands.page.reproduction        writes stages/REPRODUCTION.md from metrics/*.report.json
"""

from collections.abc import Iterator
from pathlib import Path

from stages.commands.page.results import MAIN
from stages.lib import paths
from stages.lib.io import write_text
from stages.lib.params import PIPELINES
from stages.lib.report.document import HOW_JUDGED, Claim, read_report

PAGE = Path("stages/REPRODUCTION.md")
INTRO = f"""# What reproduces and what does not

Written by `python -m stages.commands.page.reproduction` from `metrics/*.report.json`; change nothing here by hand.

Beside each claim stands the paper's figure with its size, model and n, and ours with the same. Ours are of the default settings
(`params.yaml`): small models and few seeds, to run on a laptop, so the effects can be compared and the sizes can't.

{HOW_JUDGED}
"""


def claims_beside_paper(folder: Path) -> Iterator[tuple[str, Claim]]:
    """Every claim of a publication that a report in a project folder has judged, with the name of the report."""
    for name in (pipeline or MAIN for pipeline in PIPELINES):
        document = folder / paths.report_document(name)
        if document.is_file():
            yield from ((name, claim) for claim in read_report(document).claims if claim.paper)


def markdown(folder: Path) -> str:
    """The page: a table of all claims, then their figures."""
    found = [*claims_beside_paper(folder)]
    lines = ["| claim | in the paper | here | measured with | verdict |", "| :-- | :-- | :-- | :-- | :-- |"]
    for _, claim in found:
        cells = claim.text, str(claim.paper), claim.figure, claim.here, f"**{claim.verdict}**"
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    plots = dict.fromkeys(paths.report_plots(name) / claim.plot for name, claim in found if claim.plot)
    pictures = [
        f"![{plot.relative_to(paths.PLOTS).with_suffix('')}](../{plot})" for plot in plots if (folder / plot).is_file()
    ]
    return "\n".join([INTRO, *lines, "", "## Figures", "", "\n\n".join(pictures), ""])


def main() -> None:
    """Write the page."""
    write_text(PAGE, markdown(Path()))
    print(PAGE)


if __name__ == "__main__":
    from stages.lib.entry import guarded

    guarded("reproduction", main)
