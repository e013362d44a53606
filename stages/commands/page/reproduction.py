"""Results that reproduce and those that do not: the claims of publications, beside the verdicts of this project's reports.

python -m stages.commands.page.reproduction        writes stages/REPRODUCTION.md from metrics/*.report.json
"""

from pathlib import Path

from stages.commands.page.results import MAIN, read_results
from stages.lib import paths
from stages.lib.entry import guarded
from stages.lib.io import write_text
from stages.lib.report.differences import told
from stages.lib.report.document import HOW_JUDGED
from stages.workflow.settings import PIPELINES, load_all

PAGE = Path("stages/REPRODUCTION.md")
INTRO = f"""# What reproduces and what does not

Written by `python -m stages.commands.page.reproduction` from `metrics/*.report.json`; change nothing here by hand.

Beside each claim stands the paper's figure with its size, model and n, and ours with the same. Ours are of the default settings
(`params.yaml`): small models and few seeds, to run on a laptop, so the effects can be compared and the sizes can't.

{HOW_JUDGED}
"""


def markdown() -> str:
    """The page: a table of all claims made under the settings of params.yaml, then their figures."""
    results = {result.name: result for result in read_results(load_all())}
    left_out = [f"- {name}: not run" for name in (pipeline or MAIN for pipeline in PIPELINES) if name not in results]
    for name in [name for name, result in results.items() if result.others]:
        left_out.append(f"- {name}: left out, made under other settings ({told(results.pop(name).others)})")
    found = [(name, claim) for name, result in results.items() for claim in result.report.claims if claim.paper]
    lines = ["| claim | in the paper | here | measured with | verdict |", "| :-- | :-- | :-- | :-- | :-- |"]
    for _, claim in found:
        cells = claim.text, str(claim.paper), claim.figure, claim.here, f"**{claim.verdict}**"
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    plots = dict.fromkeys(paths.report_plots(name) / claim.plot for name, claim in found if claim.plot)
    pictures = [f"![{plot.relative_to(paths.PLOTS).with_suffix('')}](../{plot})" for plot in plots if plot.is_file()]
    lines += ["", *left_out] if left_out else []
    return "\n".join([INTRO, *lines, "", "## Figures", "", "\n\n".join(pictures), ""])


def main() -> None:
    """Write the page."""
    write_text(PAGE, markdown())
    print(PAGE)


if __name__ == "__main__":
    guarded("reproduction", main)
