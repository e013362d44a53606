"""Copies of the project whose stages only pretend to compute, so that the real DVC runs all pipelines in seconds.

A pretended stage writes what its entry promises: a digest of its command, its settings and all that it depends on.  So a
change of any of these changes what follows, as it does where it changes a result.
"""

import os
import sys
from pathlib import Path
from typing import Any

from tests.dvc_project import Copy, Run, make_original

ENTRIES = """
import json
from dvc.repo import Repo
entries = {}
for stage in Repo().index.stages:
    params = [dep for dep in stage.deps if hasattr(dep, "params")]
    outs, deps = ([one.def_path for one in ones if one not in params] for ones in (stage.outs, stage.deps))
    entries[stage.addressing] = [outs, deps, str([stage.cmd, *(dep.read_params() for dep in params)])]
print(json.dumps(entries))
"""
PRETEND = f"""#!{sys.executable} -IS
import hashlib, json, os, sys

if "DVC_STAGE" not in os.environ:
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
        if path.startswith("masks/edit/full/"):
            continue  # the whole region is no file: an empty folder, as in a run that isn't pretended
        with open(path, "w") as file:
            file.write(path + digest.hexdigest())
"""


class Pretended(Copy):
    """A copy of the project in which stages pretend."""

    def planned(self, *files: str) -> tuple[dict[str, list[str]], Run]:
        """The plan of these pipelines, and `dvc repro` of them."""
        entries = self.run("python", "-c", ENTRIES).text.splitlines()[-1]
        Path(self.environment["ENTRIES"]).write_text(entries)
        return self.plan(*files), self.repro(*files)


def pretended(folder: Path, settings: dict[str, Any]) -> Pretended:
    """A copy of the project as it stands, with these settings and nothing made yet."""
    original = make_original(folder, settings)
    (folder / "bin").mkdir()
    (folder / "bin/python").write_text(PRETEND)
    (folder / "bin/python").chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{original.environment['PATH']}"
    return Pretended(original.folder, original.environment | {"PATH": path, "ENTRIES": str(folder / "entries.json")})
