"""Found by `python stages/mask.py` under the name of the package, as in each folder of scripts: says how to run it."""

import sys
from pathlib import Path

words = sys.orig_argv
# `python -m stages.mask` finds this too, in this folder
folders = Path(sys.argv[0]).absolute().with_suffix("").parts
module = (
    words[words.index("-m") + 1]
    if sys.argv[0] == "-m"
    else ".".join(folders[len(folders) - folders[::-1].index("stages") - 1 :])
)
sys.exit(f"run this in the project's top folder, as a module: python -m {module}")
