"""Names of all localizers, which a list of settings is checked against without loading torch."""

import re
from pathlib import Path

# files of this folder that are no localizers
SUPPORT = ("__init__", "evidence", "names", "registry")
NAMES = tuple(sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - {*SUPPORT}))


def localizer_in(name: str) -> str:
    """The localizer that a name with a share at its end is about: `learned` of learned_0.1."""
    return re.sub(r"_[0-9.]+$", "", name)
