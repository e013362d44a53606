"""bench: what the project's own work costs beside what nobody can do without, as ratios within one run.

python -m tests.bench                      all of it, about 25 minutes
python -m tests.bench learning swaps       some of it
python -m tests.bench --json FILE          also as JSON, with facts about the machine
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from stages.lib.io import write_json
from tests.bench.results import Row, machine

BENCHES = ("learning", "finetuning", "swaps", "side_by_side")


def main() -> None:
    """Measure, print each number as it is known, and leave with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Ratios, each within one run.")
    parser.add_argument("benches", nargs="*", metavar="bench", help=f"of {', '.join(BENCHES)}; all if left out")
    parser.add_argument("--json", type=Path, help="write the numbers and facts about the machine there, too")
    asked = parser.parse_args()
    unknown = [name for name in asked.benches if name not in BENCHES]
    if unknown:
        parser.error(f"no bench {unknown[0]!r}; there are {', '.join(BENCHES)}")
    facts, rows = machine(), {}
    print(json.dumps(facts))
    for name in asked.benches or BENCHES:
        measure: Callable[[], Iterator[Row]] = import_module(f"tests.bench.{name}").measure
        for row in measure():
            rows.setdefault(name, []).append(row)
            print(f"{name:13} {row.name:62} {row.value:10.3f} {row.unit:10} {row.goal}", flush=True)
    if asked.json:
        write_json(asked.json, {"machine": facts} | {name: [*map(vars, found)] for name, found in rows.items()})
    sys.exit(any(not row.met for found in rows.values() for row in found))


if __name__ == "__main__":
    main()
