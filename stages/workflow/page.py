"""page: the reports of all pipelines as one web page, result first; it needs no other file and no network.

python -m stages.workflow.page        writes metrics/report.html and docs/REPRODUCTION.md
"""

import argparse
import base64
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from skill_grafting.support.command import guarded
from skill_grafting.support.errors import StorageError
from skill_grafting.support.io import write_text
from stages.workflow.report.claims import (
    FEW_TASKS,
    HOW_FAMILIES,
    HOW_JUDGED,
    Judged,
    Verdict,
    families,
    judge,
    most_tasks,
    of_few_tasks,
)
from stages.workflow.report.publish import load_report, report_folders, start_of
from stages.workflow.report.spec import Frames, Spec, fill, result, rows_of
from stages.workflow.report.tables import Rendered, facts_of, render
from stages.workflow.stage import paths

HERE = Path(__file__).parent
PAGE, REPRODUCTION = paths.PAGE, Path("docs/REPRODUCTION.md")
MAIN = "summary"
# folders of what one pipeline takes from another
RESULTS = ("data", "models", "masks", "metrics")
OTHER = "made under other settings or code than today's"
NOT_RUN = "as committed; its stages have not run in this folder"
ELSEWHERE = "made from other data, models or settings than the main report"


@dataclass(frozen=True)
class Section:
    """The report of one pipeline; `state` says why it may not belong to params.yaml, empty where it does."""

    name: str
    spec: Spec
    frames: Frames
    plots: Path
    state: str

    @cached_property
    def facts(self) -> dict[str, str]:
        """What its sentence and its titles name."""
        return facts_of(self.spec, self.frames)

    @cached_property
    def sentence(self) -> str:
        """The result."""
        return result(self.spec, self.facts)

    @cached_property
    def setting(self) -> str:
        """What all was measured with."""
        return fill(self.spec, self.spec.setting, "setting", **self.facts)

    @property
    def start(self) -> str:
        """What it calls pretrained."""
        return start_of(self.facts)

    @cached_property
    def tables(self) -> list[Rendered]:
        """All of them."""
        return render(self.spec, self.frames)

    @cached_property
    def claims(self) -> list[Judged]:
        """All of them."""
        return judge(self.spec, self.frames)

    @property
    def counted(self) -> str:
        """How many claims have each verdict, of those that any has."""
        found = [claim.verdict for claim in self.claims]
        return ", ".join(f"{verdict} {found.count(verdict)}" for verdict in Verdict if verdict in found)

    @property
    def anchor(self) -> str:
        """The name that its title has in a link."""
        return re.sub(r"[^\w-]", "", self.spec.title.lower().replace(" ", "-"))

    @cached_property
    def figures(self) -> list[tuple[str, list[str]]]:
        """Caption and content of each figure that there is data for, in the order of the spec; one that is split has several."""
        found = {}
        for name, figure in self.spec.figures.items():
            rows = rows_of(self.frames, figure)
            parts = self.spec.ordered(rows[figure.split]) if figure.split else []
            files = [self.plots / f"{name}_{part}.png" for part in parts] or [self.plots / f"{name}.png"] * (
                len(rows) > 0
            )
            found[figure.title.partition("{")[0]] = [file for file in files if file.is_file()]
        return [
            (title, [base64.b64encode(file.read_bytes()).decode() for file in files])
            for title, files in found.items()
            if files
        ]


def read_sections() -> list[Section]:
    """Every pipeline that has left tidy frames, the main one first; raises StorageError if there is none."""
    status, found = _status(), []
    for name, folder in report_folders().items():
        plots = paths.report_plots(name)
        if any(plots.glob("*.csv")):
            state = status.get(name, "") if is_of_main(name) else ELSEWHERE
            found.append(Section(name, *load_report(folder, plots), plots, state))
    if not found:
        raise StorageError("nothing to report: `make repro` makes the first one")
    return found


def _status() -> dict[str, str]:
    """Pipeline -> what DVC says has changed since its stages ran; only pipelines for which there is something to say.

    DVC names the stages that have changed, not those behind them.  So a report is out of date if any stage of its pipeline, or
    of the main one, which all others start from, is among them.
    """
    asked = subprocess.run(["dvc", "status", "--json"], capture_output=True, text=True, check=False)
    if asked.returncode:
        return {}
    changes: dict[str, list[Any]] = {}
    for stage, parts in json.loads(asked.stdout or "{}").items():
        changes.setdefault(Path(stage.rpartition(":")[0]).parent.name or MAIN, []).extend(parts)
    found = {name: changes.get(name) or changes.get(MAIN) for name in report_folders()}
    return {name: _changed(parts) for name, parts in found.items() if parts}


def is_of_main(name: str) -> bool:
    """False if a pipeline's report was made from other data, models, masks or settings than the main one, by what their locks recorded.

    Of a file that several stages took one has to be the main pipeline's: DVC keeps entries of cells that are no longer there.
    """
    locks = [_locked(paths.PIPELINE), _locked(paths.PIPELINES / name / paths.PIPELINE)]
    settings = [
        stages.get(report, {}).get("params", {}).get(str(paths.PARAMS), {})
        for stages, report in zip(locks, (MAIN, name), strict=True)
    ]
    known, taken = map(_recorded, locks)
    return all(settings[0][key] == settings[1][key] for key in settings[0].keys() & settings[1].keys()) and all(
        known[path] & taken[path] for path in known.keys() & taken.keys() if path.parts[0] in RESULTS
    )


def _locked(pipeline: Path) -> dict[str, Any]:
    """Stage -> what dvc.lock recorded of it; nothing where there is none that can be read."""
    try:
        return YAML(typ="safe").load(pipeline.with_suffix(".lock"))["stages"]
    except (OSError, YAMLError, KeyError, TypeError):
        return {}


def _recorded(stages: dict[str, Any]) -> dict[Path, set[str]]:
    """Path -> the hashes that stages recorded of it, as what they took or made."""
    found: dict[Path, set[str]] = {}
    for part in (part for stage in stages.values() for key in ("deps", "outs") for part in stage.get(key, ())):
        found.setdefault(Path(part["path"]), set()).add(part.get("md5"))
    return found


def _changed(parts: list[Any]) -> str:
    states = [state for part in parts if isinstance(part, dict) for names in part.values() for state in names.values()]
    missing = any(state in ("deleted", "not in cache") for state in states if isinstance(state, str))
    return NOT_RUN if missing else OTHER


def uncommitted() -> list[str]:
    """Tracked files that differ from the last commit."""
    asked = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True, check=False
    )
    return [line[3:] for line in asked.stdout.splitlines()]


def commit() -> str:
    """The last commit and its subject; empty without git."""
    asked = subprocess.run(["git", "log", "-1", "--format=%h %s"], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def build(sections: list[Section]) -> Iterator[tuple[Path, str]]:
    """The page and REPRODUCTION.md, each with the file that it belongs into."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # of results that don't belong together nothing is told in one sentence
    together = [section for section in sections if section.state != ELSEWHERE]
    claims = {section.name: section.claims for section in together}

    def claim(name: str, words: str) -> Judged | None:
        """The first claim of a report with these words that has a value."""
        return next((one for one in claims.get(name, ()) if words in one.words and one.short), None)

    def told(name: str, words: str) -> str:
        """Its verdict, unless there are too few tasks for one, and its value."""
        one = claim(name, words)
        return f"{'no verdict' if of_few_tasks(claims[name]) else one.verdict}, {one.short}"

    def otherwise(name: str, claim: Judged) -> list[str]:
        """What other reports that ask the same say of it, of those that judge otherwise."""
        same = ((other, one) for other, found in claims.items() if other != name for one in found)
        asked = [(other, one) for other, one in same if claim.question and one.question == claim.question]
        return [f"{other}: {one.verdict}" for other, one in asked if one.verdict != claim.verdict]

    for template, path in (("page.html.j2", PAGE), ("reproduction.md.j2", REPRODUCTION)):
        loader = FileSystemLoader(HERE)
        environment = Environment(
            loader=loader, autoescape=path is PAGE, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        # of what has only not run here, which the page names, REPRODUCTION.md tells
        left = (ELSEWHERE,) if path is REPRODUCTION else (ELSEWHERE, NOT_RUN)
        away = [section for section in sections[1:] if section.state in left]
        shown = [section for section in sections if section not in away]
        made = environment.get_template(template).render(
            sections=shown, away=away, facts={section.name: section.facts for section in together},
            how=HOW_JUDGED, how_families=HOW_FAMILIES, families=families, few_tasks=FEW_TASKS, of_few_tasks=of_few_tasks, most_tasks=most_tasks,
            claim=claim, told=told, otherwise=otherwise, commit=commit(), uncommitted=uncommitted(),
        )  # fmt: skip
        yield path, made.rstrip() + "\n"


def main() -> None:
    """Write the page, and for the committed settings REPRODUCTION.md, and say where."""
    argparse.ArgumentParser(prog="python -m stages.workflow.page", description=__doc__.partition("\n")[0]).parse_args()
    own = [file for file in uncommitted() if file.endswith(str(paths.PARAMS))]
    for path, text in build(read_sections()):
        if path == REPRODUCTION and own:
            print(f"page: {path} is about the committed settings, and left as it is ({', '.join(own)} changed)")
            continue
        write_text(path, text)
        print(f"page: {path}")


if __name__ == "__main__":
    guarded("page", main)
