"""What a run needs is asked before it starts: folders that DVC follows, texts that dvc.lock can hold, settings of localizers."""

import json
import random
import string
from pathlib import Path

import pytest
from dvc.utils.serialize import dumps_yaml, loads_yaml

from skill_grafting.support.errors import ParamsError
from stages.text.tasks.settings import get_by_path
from stages.workflow.preflight import FOLDERS, check_settings, unreadable
from tests.settings_files import START, lay_out_settings

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what DVC imports
LONG = "a rather long label " * 4 + "of many words"


@pytest.fixture
def settings(project):
    """settings(task, section={...}): the settings of a project that has its folders, changed, with a task whose texts aren't broken over lines."""
    for folder in FOLDERS:
        (project / get_by_path(START, folder)).mkdir(parents=True)

    def lay_out(reviews: dict | None = None, **changes: dict) -> None:
        lay_out_settings(*[changes] * bool(changes))
        file = Path("params.yaml")
        text = file.read_text()
        assert text.count("\ntask: {}") == 1
        own = {"reviews": reviews} if reviews else {}
        file.write_text(text.replace("\ntask: {}", f"\ntask: {json.dumps(own)}"))

    return lay_out


def refusal(**options: object) -> list[str]:
    with pytest.raises(ParamsError) as caught:
        check_settings(["dvc.yaml"], **options)
    return str(caught.value).split("\n")


def test_folders_that_are_not_there_are_told_at_once(settings):
    settings()
    assert check_settings(["dvc.yaml"])[1] == []
    settings(data={"root": "nowhere"}, model={"root": "params.yaml"})
    assert [line.partition(":")[0] for line in refusal()] == ["data.root", "model.root"]
    assert "data.root: there is no folder 'nowhere', which DVC follows whatever the source is" in refusal()[0]


def task(label: str = "good", template: str = "{sentence1} It was {mask}.") -> dict:
    return {"labels": ["bad", label], "prompt": {"template": template, "verbalizer": {"bad": "terrible", label: "great"}}}


@pytest.mark.parametrize(("own", "lines"), [
    (task(), []),
    (task("good or better"), []),
    (task(template="{sentence1} " + "It was, as many words as there may be, {mask}. " * 1 + "So it was. " * 20), []),
    (task(LONG), [f"task.reviews.prompt.verbalizer: '{LONG}' has spaces or signs at which a name is broken in dvc.lock"]),
    (task(template="{sentence1}\tIt was\t" + "so\tand\tso\t" * 12 + "{mask}."), ["task.reviews.prompt.template: "]),
])  # fmt: skip
def test_texts_that_dvc_would_write_otherwise_are_refused_and_all_others_survive(settings, own, lines):
    settings(own)
    if lines:
        found = refusal()
        assert len(found) == len(lines) and all(one.startswith(line) for one, line in zip(found, lines, strict=True))
    else:
        assert check_settings(["dvc.yaml"])[0]["task"]["reviews"] == own


def test_what_is_accepted_survives_the_way_through_dvc_lock():
    dice, letters = random.Random(0), string.ascii_letters + string.punctuation + "   \u00e9\u2028\x85\t\u4e2d"
    came_to = {True: 0, False: 0}
    for _ in range(12):
        words = ["".join(dice.choices(letters, k=dice.choice([5, 30, 100]))).strip() for _ in range(2)]
        own = {"labels": ["bad", words[0]], "relabel": {words[1]: "bad"}, "title": words[1]}
        lock = {"stages": {"fetch": {"params": {"params.yaml": {"task": {"reviews": own}, "x": own}}}}}
        try:
            survives = loads_yaml(dumps_yaml(lock)) == lock
        except Exception:
            survives = False
        accepted = not [*unreadable({"task": {"reviews": own}})]
        came_to[accepted] += 1
        assert survives or not accepted, own
    assert min(came_to.values()) > 1


def test_nonsense_under_a_localizer_is_told_before_a_run(settings):
    settings(localizer={"learned": {"steps": 20}})
    file = Path("params.yaml")
    file.write_text(file.read_text().replace("steps: 20", "stepz: 20", 1))
    assert check_settings(["dvc.yaml"])[0], "without torch it isn't looked at"
    assert "localizer.learned.stepz: unknown setting (did you mean 'steps'?)" in "".join(refusal(localizers=True))
