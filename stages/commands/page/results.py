"""The results of each pipeline, and whether they were made under the settings that params.yaml has now."""

import base64
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.commands.page.provenance import made_on
from stages.lib import paths
from stages.lib.errors import ParamsError
from stages.lib.io import read_json
from stages.lib.report.differences import Entry, other_settings, told
from stages.lib.report.document import Report, read_report
from stages.lib.yaml12 import load_yaml
from stages.workflow.settings import PIPELINES

MAIN = "summary"
DATA = "data"  # in captions.yaml: figure -> the CSV files behind it


def data_files(name: str) -> dict[str, Any]:
    """The YAML file of this name of each pipeline's folder, by pipeline; those that have none are left out."""
    files = {pipeline: paths.PIPELINES / pipeline / name for pipeline in PIPELINES}
    return {pipeline: load_yaml(file, ParamsError) for pipeline, file in files.items() if file.is_file()}


@dataclass(frozen=True)
class Figure:
    """A picture of a report with the sentence below it and the CSV files behind it."""

    path: Path
    caption: str
    data: tuple[Path, ...]

    @property
    def content(self) -> str:
        """The PNG in base64."""
        return base64.b64encode(self.path.read_bytes()).decode("ascii")

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, which stand in the first chunk of a PNG."""
        return struct.unpack(">II", self.path.read_bytes()[16:24])

    @property
    def values(self) -> list[Any]:
        """The values drawn: [x, y, text]."""
        from stages.lib.report.hover import read_values

        return read_values(self.path)


@dataclass(frozen=True)
class Result:
    """One pipeline by the name of its report: what it found, and `others`, settings that are no longer those it was made under."""

    name: str
    pipeline: Path
    report: Report
    others: list[Entry]

    @property
    def metrics(self) -> dict[str, Any]:
        """Its headline."""
        numbers = paths.report(self.name)
        return read_json(numbers) if numbers.is_file() else {}

    @property
    def made(self) -> str:
        """When, and in which commit."""
        return made_on(paths.report_document(self.name))

    @property
    def left_out(self) -> str:
        """Why it is not among these results."""
        return f"{self.name}: made on {self.made} under other settings ({told(self.others)})"

    @property
    def figures(self) -> list[Figure]:
        """Its pictures, of which each shows something."""
        plots = paths.report_plots(self.name)
        captions = data_files("captions.yaml").get("" if self.name == MAIN else self.name, {})
        data, pictures = captions.get(DATA, {}), sorted(plots.glob("*.png"))
        found = [Figure(path, caption_of(path.stem, captions), (*_behind(path, data),)) for path in pictures]
        return [figure for figure in found if figure.values]  # one without says only that there are none


def read_results(values: Mapping[str, Any]) -> list[Result]:
    """Every pipeline that has run, the main one first, held against the checked sections of params.yaml."""
    results = []
    for folder in PIPELINES:
        name, pipeline = (folder, paths.PIPELINES / folder / paths.PIPELINE) if folder else (MAIN, paths.PIPELINE)
        if paths.report_document(name).is_file():
            report = read_report(paths.report_document(name))
            results.append(Result(name, pipeline, report, other_settings(report.settings, values)))
    return results


def caption_of(name: str, captions: Mapping[str, Any]) -> str:
    """The sentence below a figure; of one that is drawn several times, which it is."""
    longest = _longest(name, captions)
    if not longest:
        return f"{name.replace('_', ' ').capitalize()}."
    which = name.removeprefix(longest).strip("_").replace("_", " ")
    return f"{captions[longest]} Here: {which}." if which else captions[longest]


def _behind(picture: Path, data: Mapping[str, list[str]]) -> Iterator[Path]:
    """CSV files of a figure: those that captions.yaml names, or the one of its own name."""
    for name in data.get(_longest(picture.stem, data), [picture.stem]):
        if (path := picture.with_name(f"{name}.csv")).is_file():
            yield path


def _longest(name: str, known: Mapping[str, Any]) -> str:
    return max((own for own in known if own != DATA and f"{name}_".startswith(f"{own}_")), key=len, default="")
