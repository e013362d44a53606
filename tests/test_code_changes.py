"""The stages that an edit of the code makes anew, asked of DVC itself, in a copy whose stages only pretend to compute."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.dvc_project import TINY
from tests.pretended import Pretended, pretended
from tests.test_dvc_yaml import PIPELINES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

FILES = ("dvc.yaml", "stages/study/dvc.yaml", "stages/multitask/dvc.yaml", "stages/smallest/dvc.yaml")
SMALL = {
    "tasks": ["movies", "products"], "study": {"tasks": ["movies"], "test_max": 0}, "anchor": {"pruned": [0.9]},
    "sweep": {"localizers": ["learned", "random"], "sparsities": [0.01]}, "wise": {"alphas": [0.0, 1.0]},
    "readout": {"readouts": ["retrain", "reset"], "localizers": ["learned"], "sparsities": [0.01], "tasks": ["movies"]},
    "peft": {"methods": ["lora_1"], "tasks": ["movies"]}, "paradigm": {"paradigms": [], "tasks": ["movies"]}, "trajectory": {"tasks": []},
    "multitask": {"groups": {}}, "joint": {"paradigms": ["sgd"]}, "skill": {"localizers": ["learned_0.1"], "sparsities": [0.01]},
    "transfer": {"unions": {"both": ["movies", "products"]}}, "smallest": {"localizers": ["movement", "random"]},
}  # fmt: skip
STATUS = """
import json, sys
from dvc.repo import Repo
print(json.dumps([*Repo().status(targets=sys.argv[1:])]))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Pretended:
    """A copy in which everything is up to date."""
    made = pretended(tmp_path_factory.mktemp("code"), TINY | SMALL)
    made.planned(*FILES)
    assert due(made) == set()
    made.commit()
    return made


def due(copy: Pretended) -> set[str]:
    """The stages, without their cells, that DVC finds changed."""
    said = json.loads(copy.run("python", "-c", STATUS, *FILES).text.splitlines()[-1])
    return {name.rpartition(":")[2].partition("@")[0] for name in said}


def after(copy: Pretended, file: str, old: str, new: str) -> set[str]:
    """The stages that are due after an edit, which is taken back."""
    path = copy.folder / file
    before = path.read_text("utf-8")
    assert re.search(old, before)
    path.write_text(re.sub(old, new, before, count=1), "utf-8")
    found = due(copy)
    path.write_text(before, "utf-8")
    return found


# fine-tuning anew is off in the copy
EVERYTHING = {stage for file in FILES for stage in PIPELINES[Path(file).parent.name or "main"]} - {"paradigm"}
MULTITASK = {*PIPELINES["multitask"]}
# what the digests of before left out: they said that it computes nothing that is stored
EDITS = {
    "half of a mask's base": (
        "stages/multitask/settings.py",
        r"float\(match\[2\]\)\) if",
        "float(match[2]) / 2) if",
        MULTITASK,
    ),
    "another prompt": ("stages/lib/data/tasks.py", r"(def prompt_for.*\n)", r"\1        self = self\n", EVERYTHING),
    "other test sets": (
        "stages/workflow/core/stored.py",
        r"sorted\(paths.ood_table",
        "reversed(paths.ood_table",
        EVERYTHING,
    ),
    "a report": ("stages/study/frames.py", r"\Z", "\n# a remark\n", {"study"}),
    "the words of a script": ("stages/study/wise.py", '^"""', '"""In other words: ', {"wise"}),
    "the words of an experiment": ("stages/study/readouts.py", '^"""', '"""In other words: ', {"readout"}),
    "a localizer": ("stages/lib/localizers/bias.py", r"\Z", "\n# a remark\n", set()),
    "a command": ("stages/commands/profile.py", r"\Z", "\n# a remark\n", set()),
    "a patch": ("stages/lib/patches/card.md.j2", r"\Z", "\n", set()),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_makes_exactly_the_stages_anew_that_depend_on_it(copy, edit):
    *where, expected = EDITS[edit]
    assert after(copy, *where) == expected


def test_a_new_localizer_computes_only_its_own_points(copy):
    file = copy.folder / "stages/lib/localizers/random.py"
    shutil.copy(file, file.with_name("drawn.py"))
    assert due(copy) == set()
    copy.set("+localizer.drawn={}", "sweep.localizers=[learned,random,drawn]")
    run = copy.planned(*FILES)[1]
    assert {*run.executed} == {"rank@drawn-13", "sweep@drawn-13", "study"}
