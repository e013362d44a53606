"""Ways to find a mask, a file each; importing one imports no other."""

from pathlib import Path

# files of this folder that are not localizers
SUPPORT = ("__init__", "evidence", "known", "registry")
NAMES = tuple(sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - {*SUPPORT}))
