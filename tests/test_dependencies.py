"""Advisories are told or said to be missing, and an update pins what pip finds."""

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from stages.commands import dependencies
from stages.lib.errors import StorageError

ROOT = Path(__file__).parents[1]
FILES = ("requirements.txt", "pyproject.toml")
BAD = {"name": "torch", "version": "2.13.0", "vulns": [{"id": "CVE-1", "fix_versions": ["2.13.1"]}]}
GOOD = {"name": "tqdm", "version": "4.70.1", "vulns": []}
SKIPPED = {"name": "tqdm", "skip_reason": "not found on PyPI"}


@pytest.fixture
def answer(project, monkeypatch):
    """Stands in for pip and pip-audit: what they print and leave with."""
    for name in FILES:
        (project / name).write_bytes((ROOT / name).read_bytes())

    def say(text: str, code: int = 0) -> None:
        monkeypatch.setattr(dependencies, "_run", lambda *_, **__: CompletedProcess([], code, text, "no network\n"))

    return say


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ([GOOD, SKIPPED], "audit: no advisory about 1 of 2 pinned packages"),
        ([SKIPPED], "audit: the index gave no advisories"),
        (None, "audit: the index gave no advisories"),
    ],
)
def test_an_audit_says_in_one_line_what_it_could_ask(answer, told, line, capsys):
    answer(json.dumps({"dependencies": told}) if told else "")
    dependencies.audit()
    assert capsys.readouterr().out.startswith(line)


def test_an_advisory_is_an_error_that_names_the_version_which_mends_it(answer):
    answer(json.dumps({"dependencies": [BAD, GOOD]}), 1)
    with pytest.raises(StorageError, match=r"^torch 2.13.0: CVE-1, mended in 2.13.1$"):
        dependencies.audit()


def found(changes: dict[str, str]) -> str:
    """The report of pip if these are the only newer versions."""
    pins = dict(line.split("==") for line in (ROOT / "requirements.txt").read_text().splitlines()[1:])
    versions = {**pins, **changes}.items()
    return json.dumps({"install": [{"metadata": {"name": name, "version": version}} for name, version in versions]})


def test_an_update_pins_newer_versions_in_both_files_and_leaves_all_else(answer, project, capsys):
    before = [(project / name).read_text() for name in FILES]
    answer(found({}))
    dependencies.update()
    assert [(project / name).read_text() for name in FILES] == before, "control: nothing is newer"
    answer(found({"torch": "9.9.9+cpu", "PyYAML": "9.0", "yarl": "8.0"}))
    capsys.readouterr()
    dependencies.update()
    assert capsys.readouterr().out == "PyYAML==9.0\ntorch==9.9.9\nyarl==8.0\n"
    wanted = [text.replace("torch==2.13.0", "torch==9.9.9").replace("yarl==1.25.1", "yarl==8.0") for text in before]
    wanted = [text.replace("PyYAML==6.0.3", "PyYAML==9.0").replace("pyyaml==6.0.3", "pyyaml==9.0") for text in wanted]
    assert [(project / name).read_text() for name in FILES] == wanted
    answer("", 1)
    with pytest.raises(StorageError, match="stays as it is: pip found no versions: no network"):
        dependencies.update()
