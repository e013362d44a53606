"""A seeded campaign against the project: python -m tests.chaos [--cases 10000] [--kills 200] [--seed 0].

It prints a table of checks with their cases and failures, and fails if there is one.
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.chaos import copies, folders, inputs, kills, situations, tensors
from tests.chaos.campaign import examine

CHECKS = {**inputs.CHECKS, **tensors.CHECKS, **folders.CHECKS}


def main() -> None:
    """Run all checks and print what they found."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="A seeded campaign against the project.")
    parser.add_argument("--cases", type=int, default=10_000, help="of odd input, shared out evenly over the checks")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    each = -(-asked.cases // len(CHECKS))
    checks = [examine(name, check, each, asked.seed) for name, check in CHECKS.items()] if each else []
    if asked.kills:
        with TemporaryDirectory(prefix="chaos") as folder:
            finished, killed = copies.fresh_copies(Path(folder), "finished", "killed")
            finished.run(*copies.EVERYTHING)
            checks += situations.run(finished, asked.seed) + kills.run(finished, killed, asked.kills, asked.seed)
    width = max(len(name) for name, _, _ in checks)
    print(f"{'check':{width}}  {'cases':>6}  failures")
    for name, cases, failures in checks:
        print(f"{name:{width}}  {cases:>6,}  {len(failures)}")
        print(*(f"    {line}" for line in failures[:5]), sep="\n", end="\n" * bool(failures))
    sys.exit(any(failures for _, _, failures in checks))


if __name__ == "__main__":
    main()
