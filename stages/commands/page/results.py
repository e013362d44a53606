"""The results of each pipeline: its report, its numbers and its figures."""

import base64
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.lib import paths
from stages.lib.io import read_json
from stages.lib.params import data_files
from stages.lib.report.document import Report, read_report

MAIN = "summary"


@dataclass(frozen=True)
class Figure:
    """A picture of a report with the sentence below it."""

    path: Path
    caption: str

    @property
    def data(self) -> str:
        """The PNG in base64."""
        return base64.b64encode(self.path.read_bytes()).decode("ascii")

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, which stand in the first chunk of a PNG."""
        return struct.unpack(">II", self.path.read_bytes()[16:24])


@dataclass(frozen=True)
class Result:
    """One pipeline by the name of its report: no report if it hasn't run, its numbers, and its pictures."""

    name: str
    pipeline: Path
    report: Report | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()


def read_results() -> list[Result]:
    """Every pipeline of the project, the main one first."""
    others = sorted(paths.PIPELINES.glob("*/dvc.yaml"))
    return [_result(MAIN, paths.PIPELINE, paths.PLOTS)] + [
        _result(file.parent.name, file, paths.report_plots(file.parent.name)) for file in others
    ]


def _result(name: str, pipeline: Path, plots: Path) -> Result:
    document, numbers = paths.report_document(name), paths.report(name)
    if not document.is_file():
        return Result(name, pipeline)
    metrics = read_json(numbers) if numbers.is_file() else {}
    return Result(name, pipeline, read_report(document), metrics, (*_figures(plots),))


def _figures(plots: Path) -> Iterator[Figure]:
    captions = data_files("captions.yaml").get("" if plots == paths.PLOTS else plots.name, {})
    for path in sorted(plots.glob("*.png")):
        yield Figure(path, caption_of(path.stem, captions))


def caption_of(name: str, captions: dict[str, str]) -> str:
    """The sentence below a figure; of one that is drawn several times, which it is."""
    fitting = [known for known in captions if name == known or name.startswith(f"{known}_")]
    if not fitting:
        return f"{name.replace('_', ' ').capitalize()}."
    longest = max(fitting, key=len)
    which = name.removeprefix(longest).strip("_").replace("_", " ")
    return f"{captions[longest]} Here: {which}." if which else captions[longest]
