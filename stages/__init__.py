"""What dvc.yaml runs.  `skill_grafting` is the library of this checkout, whichever one is installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
