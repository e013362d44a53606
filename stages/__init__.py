"""What dvc.yaml runs.  `skill_grafting` is the library of this checkout, whichever one is installed."""

import sys
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


def code_digests() -> dict[str, str]:
    """Every module of the project, and every table that modules read: path -> a digest of its bytes."""
    files = [path for path in HERE.rglob("*") if path.suffix in (".py", ".yaml")]
    # DVC and the check of settings look at these
    code = sorted(path for path in files if path.name not in ("params.yaml", "dvc.yaml"))
    return {str(path): sha256(path.read_bytes()).hexdigest() for path in code}


# before anything else of the project is imported, so that an edit after that is found (workflow/stage/decorator.py)
AT_START = code_digests()
