"""report: everything that has run, as one web page that needs nothing else.

python -m stages.commands.page                       metrics/report.html, beside the last commit
python -m stages.commands.page --baseline main~3     beside another commit
"""

import argparse

from stages.lib.command import guarded
from stages.workflow.core import paths


def main() -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(
        prog="python -m stages.commands.page", description="Write the report as one web page."
    )
    parser.add_argument("--baseline", default="HEAD", help="commit whose settings and numbers to compare with")
    arguments = parser.parse_args()

    from stages.commands.page.render import write_page
    from stages.lib.io import write_text

    html = write_page(arguments.baseline)
    write_text(paths.PAGE, html)
    print(f"{paths.PAGE}: {len(html) / 1e6:.1f} MB")


if __name__ == "__main__":
    guarded("report", main)
