"""A seeded campaign against the project: python -m tests.chaos [--cases 10000] [--kills 200] [--seed 0].

It prints a table of checks with their cases and failures, and fails if there is one.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.chaos import copies, folders, inputs, kills, situations, tensors
from tests.chaos.campaign import Row, examine

WIDTH, SHOWN = 32, 5
CHECKS = {**inputs.CHECKS, **tensors.CHECKS, **folders.CHECKS}


def main() -> None:
    """Run all checks and print what they found."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="A seeded campaign against the project.")
    parser.add_argument("--cases", type=int, default=10_000, help="of odd input, shared out evenly over the checks")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    failed = False
    print(f"{'check':{WIDTH}}  {'cases':>6}  failures")
    for name, cases, failures in _rows(asked.cases, asked.kills, asked.seed):
        failed |= bool(failures)
        print(f"{name:{WIDTH}}  {cases:>6,}  {len(failures)}")
        print(*(f"    {line}" for line in failures[:SHOWN]), sep="\n", end="\n" * bool(failures), flush=True)
    sys.exit(failed)


def _rows(cases: int, count: int, seed: int) -> Iterator[Row]:
    """Each as soon as it is known, so that a campaign that is stopped has said what it had found."""
    for name, check in CHECKS.items() if cases else ():
        yield examine(name, check, -(-cases // len(CHECKS)), seed)
    if not count:
        return
    with TemporaryDirectory(prefix="chaos") as folder:
        [finished] = copies.fresh_copies(Path(folder), "finished")
        finished.run(*kills.RUNNER, *copies.pipelines(finished))
        yield from situations.run(finished, seed)
        yield from kills.run(finished, count, seed)


if __name__ == "__main__":
    main()
