"""A seeded campaign against the project: python -m tests.chaos [--cases 10000] [--kills 200] [--seed 0].

It prints a table of checks with their cases and failures, and fails if there is one.
"""

import argparse
import sys

from tests.chaos import inputs, kills, patches

SHOWN = 5  # failures of a check


def main() -> None:
    """Run all checks and print what they found."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="A seeded campaign against the project.")
    for name, default in (("cases", 10_000), ("kills", 200), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    checks = []
    for found in (inputs.run, asked.cases), (patches.run, asked.cases), (kills.run, asked.kills):
        checks += found[0](found[1], asked.seed) if found[1] else []
    width = max(len(name) for name, _, _ in checks)
    print(f"{'check':{width}}  {'cases':>6}  failures")
    for name, cases, failures in checks:
        print(f"{name:{width}}  {cases:>6,}  {len(failures)}")
        print(*(f"    {line[:300]}" for line in failures[:SHOWN]), sep="\n", end="\n" * bool(failures))
    sys.exit(any(failures for _, _, failures in checks))


if __name__ == "__main__":
    main()
