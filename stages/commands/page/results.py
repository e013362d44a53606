"""What each pipeline has left: its tables, its numbers and its figures."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.lib import paths

MAIN = "summary"


@dataclass(frozen=True)
class Result:
    """One pipeline: the text of its report (empty if it hasn't run), its numbers, and its pictures."""

    name: str
    file: Path
    markdown: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    figures: tuple[Path, ...] = ()

    @property
    def title(self) -> str:
        """The heading of its report, or its name."""
        found = re.match(r"# (.*)", self.markdown)
        return found[1] if found else self.name

    @property
    def has_run(self) -> bool:
        """Whether there is a report."""
        return bool(self.markdown)


def read_results(folder: Path) -> list[Result]:
    """Every pipeline of the project, the main one first."""
    others = sorted(path.relative_to(folder) for path in (folder / paths.PIPELINES).glob("*/dvc.yaml"))
    main = _result(folder, MAIN, paths.PIPELINE, paths.SUMMARY, paths.PLOTS)
    return [main] + [
        _result(folder, file.parent.name, file, paths.report(file.parent.name), paths.report_plots(file.parent.name))
        for file in others
    ]


def _result(folder: Path, name: str, file: Path, metrics: Path, plots: Path) -> Result:
    text = (folder / metrics).with_suffix(".md")
    if not text.is_file():
        return Result(name, file)
    numbers = json.loads((folder / metrics).read_text(encoding="utf-8")) if (folder / metrics).is_file() else {}
    return Result(name, file, text.read_text(encoding="utf-8"), numbers, (*sorted((folder / plots).glob("*.png")),))
