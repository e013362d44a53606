"""Names of all localizers, which a list of settings is checked against without loading torch."""

import re
from pathlib import Path

# files of this folder that are not localizers
SUPPORT = ("__init__", "evidence", "names", "registry")
NAMES = tuple(sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - {*SUPPORT}))
# Localizers that other code imports, on which every stage depends (.dvcignore).  A stage that gets a localizer in another name than
# its own (`learned_0.1`, a method) can't depend on its file, and may use only these.
SHARED = ("attribution", "grown", "learned", "lota", "movement", "random", "stitch", "talos")


def localizer_in(name: str) -> str:
    """The localizer in a name with a share at its end: `learned` of learned_0.1."""
    return re.sub(r"_[0-9.]+$", "", name)
