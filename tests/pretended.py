"""Copies of the project whose stages only pretend to compute, so that the real DVC runs all pipelines in seconds.

A pretended stage writes what its entry promises: a digest of its command, its settings and all that it depends on.  So a
change of any of these changes what follows, as it does where it changes a result.  Those that look at the code are real.
"""

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.commands.plan.stage_status import CACHED, RUNS, UNCHANGED
from tests.dvc_project import Copy, Run, make_original

LOOK = """
import json, sys
from pathlib import Path
from dvc.repo import Repo
from stages.commands.plan.predicted_steps import predict_steps
plan = {step.name: [step.fate, step.reasons] for step in predict_steps([*map(Path, sys.argv[1:])])}
entries = {}
for stage in Repo().index.stages:
    params = [dep for dep in stage.deps if hasattr(dep, "params")]
    outs, deps = ([one.def_path for one in ones if one not in params] for ones in (stage.outs, stage.deps))
    entries[stage.addressing] = [outs, deps, str([stage.cmd, *(dep.read_params() for dep in params)])]
print(json.dumps({"plan": plan, "entries": entries}))
"""
PRETEND = f"""#!{sys.executable} -IS
import hashlib, json, os, sys

if sys.argv[1:3] == ["-m", "stages.code"] or "DVC_STAGE" not in os.environ:
    os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])
with open(os.environ["ENTRIES"]) as file:
    entries = json.load(file)
outs, deps, says = entries[os.environ["DVC_STAGE"]]

def below(place):
    found = [os.path.join(folder, name) for folder, _, names in os.walk(place) for name in names]
    return sorted(found) if os.path.isdir(place) else [place]

digest = hashlib.md5(says.encode())
for path in (path for dep in deps for path in below(dep)):
    with open(path, "rb") as file:
        digest.update(file.read())
asked_for = {{dep for _, deps, _ in entries.values() for dep in deps}}
for out in outs:
    for path in [out, *(dep for dep in asked_for if dep.startswith(out + "/"))]:
        path = path if "." in os.path.basename(path) else os.path.join(path, "content.txt")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(path + digest.hexdigest())
"""


@dataclass(frozen=True)
class Planned:
    """What was foretold of each stage, and what `dvc repro` then did."""

    plan: dict[str, tuple[str, list[str]]]
    run: Run

    @property
    def foretold(self) -> dict[str, str]:
        """Stage -> what was said of it."""
        return {name: fate for name, (fate, _) in self.plan.items()}

    @property
    def done(self) -> dict[str, str]:
        """Stage -> what became of it."""
        words = {RUNS: "Running stage '%s':", CACHED: "Stage '%s' is cached", UNCHANGED: "Stage '%s' didn't change"}
        return {
            name: fate
            for fate, line in words.items()
            for name in re.findall("^" + line.replace("%s", "(?:[^':]+:)?([^']+)"), self.run.text, re.MULTILINE)
        }


@dataclass(frozen=True)
class Pretended(Copy):
    """A copy of the project in which stages pretend."""

    def look(self, *files: str) -> dict[str, Any]:
        """The plan of these pipelines, stage -> (fate, reasons); keeps what each stage is to write."""
        seen = json.loads(self.run("python", "-c", LOOK, *files).text.splitlines()[-1])
        Path(self.environment["ENTRIES"]).write_text(json.dumps(seen["entries"]))
        return seen["plan"]

    def planned(self, *files: str) -> Planned:
        """`dvc repro` of these pipelines, and its plan before."""
        return Planned(self.look(*files), self.repro(*files))


def pretended(folder: Path, settings: dict[str, Any]) -> Pretended:
    """A copy of the project as it stands, with these settings and nothing made yet."""
    original = make_original(folder, settings)
    (folder / "bin").mkdir()
    (folder / "bin/python").write_text(PRETEND)
    (folder / "bin/python").chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{original.environment['PATH']}"
    return Pretended(original.folder, original.environment | {"PATH": path, "ENTRIES": str(folder / "entries.json")})
