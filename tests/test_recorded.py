"""The record that DVC keeps of a stage is what it ran with: edits in its course are an error, and nothing is recorded."""

import json
import sys

import pytest

from tests.dvc_project import Copy
from tests.test_pipeline_folders import TOY, whole_copy

SCRIPT = '''
"""toy: the largest size."""

import os
from pathlib import Path

from stages.lib.io import write_json
from stages.workflow.core.settings import load_params
from stages.workflow.core.stage import stage

@stage
def main() -> None:
    """Write the largest size."""
    params = load_params("toy")
    params.graft = load_params("graft.region").graft  # stages that are about one localizer put its settings there, too
    largest = max(params.toy.sizes)
    if edit := os.environ.get("TEST_EDIT"):
        file, old, new = edit.split("|")
        text = Path(file).read_text()
        assert old in text
        Path(file).write_text(text.replace(old, new, 1))
    write_json(Path("metrics/toy.json"), {"largest": largest})

if __name__ == "__main__":
    main()
'''
ENTRY = TOY["dvc.yaml"].replace("      - stages/toy/frames.py\n      - stages/toy/report.yaml\n", "")
FILES = {**TOY, "toy.py": SCRIPT, "dvc.yaml": ENTRY[: ENTRY.index("    outs:\n      - metrics/toy.md")]}
SETTING = "stages/toy/params.yaml|sizes:\n  - 2|sizes:\n  - 9"
SAID = "edited while this ran; nothing is recorded, run `dvc repro` again"
# of another length: Python takes a .pyc for that of a source of equal size and second
CODE = "stages/toy/toy.py|max(|-max("


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Copy:
    copy = whole_copy(tmp_path_factory.mktemp("recorded"))
    (copy.folder / "stages/toy").mkdir()
    for name in ("__init__.py", "params.yaml", "settings.py", "toy.py", "dvc.yaml"):
        (copy.folder / "stages/toy" / name).write_text(FILES[name].lstrip())
    copy.commit()
    copy.repro("stages/toy/dvc.yaml")
    copy.commit()
    return copy


def run_stage(copy: Copy, edit: str = "", told: str = "", **more: str) -> None:
    """Run the stage with this edit on its way; it tells this in an error, or ends well and says nothing."""
    stopped = copy.run(sys.executable, "-m", "stages.toy.toy", fails=bool(told), TEST_EDIT=edit, **more)
    assert (stopped.code, stopped.text) == (2 if told else 0, told)


@pytest.fixture(autouse=True)
def _as_committed(copy):
    copy.run("git", "checkout", "-q", ".")


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (SETTING, f"toy: stages/toy/params.yaml: toy: {SAID}\n"),
        (CODE, f"toy: stages/toy/toy.py: {SAID}\n"),
        ("stages/lib/errors.py|LONGEST_LINE = 1|LONGEST_LINE = 2", f"toy: stages/lib/errors.py: {SAID}\n"),
        ("stages/lib/data/tasks.yaml|title|titles", f"toy: stages/lib/data/tasks.yaml: {SAID}\n"),
        ("stages/lib/patches/localize_context.py|GIBIBYTE = 2|GIBIBYTE = 4", ""),
        ("params.yaml|bins: 15|bins: 10", ""),
    ],
)  # fmt: skip
def test_an_edit_of_what_a_stage_has_read_is_an_error_and_any_other_is_none(copy, edit, told):
    run_stage(copy, edit, told, DVC_STAGE="toy")


def test_a_stage_that_nobody_records_may_be_edited(copy):
    run_stage(copy, SETTING)
    run_stage(copy, CODE)


def test_dvc_records_nothing_of_a_run_under_settings_that_changed_on_its_way(copy):
    before = copy.lock("stages/toy")
    file = copy.folder / "stages/toy/params.yaml"
    file.write_text(file.read_text().replace("3", "4"))
    stopped = copy.repro("stages/toy/dvc.yaml", fails=True, TEST_EDIT=SETTING.replace("3", "4"))
    assert f"stages/toy/params.yaml: toy: {SAID}" in stopped.text
    assert copy.lock("stages/toy") == before
    assert copy.repro("stages/toy/dvc.yaml").executed == ["toy"]
    assert json.loads((copy.folder / "metrics/toy.json").read_text()) == {"largest": 9}
    assert copy.lock("stages/toy")["toy"]["params"]["stages/toy/params.yaml"] == {"toy": {"sizes": [9, 4]}}
