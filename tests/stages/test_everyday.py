"""Everyday use under the real DVC: the walk-throughs of docs/OWN.md as they are printed, plans before each run, the report.

One copy of the project goes through all of it.
"""

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from ruamel.yaml import YAML

from stages.workflow.core import paths
from tests.dvc_project import ROOT, TINY, UNCHANGED, Copy, Run, clone, make_original
from tests.pico import save_bert, save_causal
from tests.settings_files import lay_over
from tests.test_dvc_yaml import STAGES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

COMPLETIONS = "Prompts and completions"
PAGE = re.split(r"^(?=## )", (ROOT / "docs/OWN.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
TEXT = "".join(part for part in PAGE if COMPLETIONS not in part)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = FENCE.findall(TEXT)
MOST_LINES = 9

# the tests' own sizes; what a walk-through sets comes on top
SMALL = TINY | {"model": {"max_length": 32}, "localizer": {"learned": {"steps": 2}}}
OUTPUTS = ("data", "models", "masks", "metrics", "plots", ".dvc/cache")
# why each stage should run again, and what `dvc repro` then did
Planned = tuple[dict[str, list[str]], Run]


def plan(copy: Copy) -> dict[str, list[str]]:
    return copy.plan("dvc.yaml")


def kept_promise(planned: Planned) -> bool:
    """Did all that became of a stage have a reason, and nothing become of one without?"""
    foretold, run = planned
    return {*foretold} == {*run.fates} and all(foretold[name] for name, fate in run.fates.items() if fate != UNCHANGED)


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> dict[str, Any]:
    """The copy through all blocks of OWN.md but those of COMPLETIONS, which has a copy of its own, then through further runs, each planned before."""
    folder = tmp_path_factory.mktemp("everyday")
    copy = clone(make_original(folder, SMALL), "own")
    save_bert(copy.folder / "models/local/mine")
    steps: dict[str, Any] = {"copy": copy, "printed": [*follow(copy, BLOCKS)]}
    steps["page"] = (copy.folder / paths.PAGE).read_text()
    copy.set("calibration.bins=20")
    before = copy.files(*OUTPUTS)
    steps["line"] = copy.run("python", "-m", "stages.workflow.plan").text
    steps["untouched"] = before == copy.files(*OUTPUTS)
    # what the main pipeline made and what DVC remembers of it, but not its cache
    made = ("data/tables", "data/sample", "models/pretrained", "models/finetuned", "masks/learned")
    copy.run("rm", "-r", "dvc.lock", *made)
    steps["restored"] = plan(copy), copy.repro()
    return steps


def follow(copy: Copy, blocks: list[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    """Every block as it is printed: settings are laid over params.yaml, commands are run; `dvc repro` with a plan before."""
    for language, block in blocks:
        if language == "yaml":
            lay_over(YAML(typ="safe").load(block), copy.folder)
            yield block, None
        elif language == "python":
            yield block, copy.run("python", "-c", block)
        elif "\ndvc repro\n" in f"\n{block}":
            yield block, (plan(copy), copy.run("bash", "-ec", block))
        else:
            yield block, copy.run("bash", "-ec", block)


def done(story: dict[str, Any], words: str) -> Run | Planned:
    return next(run for block, run in story["printed"] if words in block)


def cells(*stages: str) -> set[str]:
    return {f"{stage}@reviews-13" for stage in stages}


# --- The walk-throughs -------------------------------------------------------------------------------------------


def test_each_walk_through_takes_less_than_ten_lines_of_settings():
    settings = [block for language, block in BLOCKS if language == "yaml"]
    assert len(settings) == 3 == TEXT.count("\n## ") - 2, "the last two need none"
    assert max(block.count("\n") for block in settings) <= MOST_LINES


def test_own_rows_are_read_checked_and_sampled(story):
    run = done(story, "dvc repro sample")
    assert {*run.executed} == {"fetch", *cells("sample")}
    assert '"sentence1"' in run.text and "to run" in run.text


def test_an_own_model_folder_is_taken_over(story):
    run = done(story, "dvc repro model")
    assert run.executed == ["model"] and "model: mine" in run.text


def test_an_own_prompt_ends_in_a_mask_and_a_report(story):
    _, run = done(story, "masks/learned/13/reviews.safetensors")
    assert "masks/learned/13/reviews.safetensors" in run.text and f"page: {paths.PAGE}" in run.text
    assert cells("finetune", "mask", "evaluate") | {"summary", "model"} <= {*run.executed}


def test_own_prompts_and_completions_end_in_a_patch_and_a_report_of_exact_matches(tmp_path):
    copy = clone(make_original(tmp_path, SMALL), "completing")
    save_causal(copy.folder / "models/local/causal", "llama")
    [section] = [part for part in PAGE if part.startswith(f"## {COMPLETIONS}")]
    blocks = FENCE.findall(section)
    assert [language for language, _ in blocks] == ["bash", "yaml", "bash"] and blocks[1][1].count("\n") <= MOST_LINES
    *_, (_, planned) = follow(copy, blocks)
    assert kept_promise(planned)
    run = planned[1]
    assert "## Exact match in %" in (copy.folder / "metrics/summary.md").read_text()
    assert "shared/opposites: patch of causal for opposites" in run.text


def test_a_checkpoint_takes_the_place_of_fine_tuning_and_gives_the_same_mask(story):
    copy, mask = story["copy"], paths.learned("reviews", 13)
    made = (copy.folder / mask).read_bytes()
    theirs = shutil.copytree(copy.folder / paths.finetuned("reviews", 13), copy.folder / "models/checkpoints/elsewhere")
    (theirs / "training.json").unlink()
    copy.set("finetune.source=local", "+task.reviews.checkpoint=elsewhre")
    said = copy.run("dvc", "repro", fails=True).text
    assert "elsewhre" in said and "elsewhere" in said and "Traceback" not in said
    copy.set("task.reviews.checkpoint=elsewhere")
    taken = copy.repro()
    assert "finetune@reviews-13" in taken.executed and "dev accuracy" in taken.text and "elsewhere" in taken.text
    assert (copy.folder / mask).read_bytes() == made and "summary" in taken.executed
    assert copy.repro().executed == []


# --- The plan ----------------------------------------------------------------------------------------------------


def test_the_plan_names_exactly_what_then_runs(story):
    planned = done(story, "masks/learned/13/reviews.safetensors")
    assert kept_promise(planned) and {name.partition("@")[0] for name in planned[0]} == {*STAGES}


def test_what_was_removed_comes_back_from_the_cache(story):
    foretold, run = story["restored"]
    made = {"calibration@13", "summary"}
    assert kept_promise(story["restored"])
    assert {*run.executed} == made and {*run.cached} == {*foretold} - made


def test_planning_changes_nothing_and_says_it_in_one_line(story):
    assert story["untouched"]
    told, *table, line = story["line"].splitlines()
    assert told == "ood.sets: movies left out, not among tasks (reviews)"
    assert any(re.match(r"calibration +1 +1 +\d+ s +modified calibration *$", row) for row in table)
    assert re.fullmatch(r"2 of 12 stages to run, or to take from the cache: 0\.\d minutes the last time\.", line)


# --- The report --------------------------------------------------------------------------------------------------


def test_the_page_is_about_this_run_and_these_settings_alone(story):
    html = story["page"]
    assert "mine, prompt fine-tuning" in html and html.count("data:image/png") == 6
    assert "made under other settings" not in html and "task addition" not in html.lower()
