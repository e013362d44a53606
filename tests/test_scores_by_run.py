"""Several runs of the main pipeline in one table and one figure."""

import re
from itertools import product

import pytest

from stages.commands.scores_by_run import difference, read_runs, sample, scores_by_run, tables
from stages.lib.errors import DataError
from stages.lib.report.table import shown

VARIANTS = {"pretrained": 0.5, "finetuned": 0.8, "movement_grafted": 0.6, "grafted": 0.7}
FITTED = {"wise_ft": 0.1, "finetuned_tempered": 0.8}  # to the task's own rows, so there are none of other test sets


def write_run(folder, tasks, others=(), seeds=(0, 1), grafted=0.0):
    """scores.csv and ood.csv of a run, of which the graft scores so much more."""
    scores, ood = ["task,seed,variant,n,score,ece"], ["task,test_set,seed,variant,n,score,ece"]
    for (number, task), seed, (variant, score) in product(enumerate(tasks), seeds, (VARIANTS | FITTED).items()):
        more = (grafted + 0.1 * number) * (variant == "grafted")
        ece = 0.05 if variant == "finetuned_tempered" else 0.2
        scores.append(f"{task},{seed},{variant},60,{score + more},{ece}")
        elsewhere = [other for other in others if other != task and variant in VARIANTS]
        ood += [f"{task},{other},{seed},{variant},30,{score - 0.1},0.3" for other in elsewhere]
    folder.mkdir()
    for name, lines in {"scores": scores, "ood": ood}.items():
        (folder / f"{name}.csv").write_text("\n".join([*lines, ""]))


@pytest.fixture
def runs(tmp_path):
    write_run(tmp_path / "few", "abc", others="ab")
    write_run(tmp_path / "many", "bad", others="a", grafted=0.1)
    return [f"16={tmp_path}/few", f"64 and more={tmp_path}/many"]


def test_runs_are_compared_on_the_test_sets_that_all_have(runs):
    found = read_runs(runs)
    own, other = (found[found.kind == kind] for kind in ("own", "other"))
    assert {*own.task} == {"a", "b"} and {(row.task, row.test_set) for row in other.itertuples()} == {("b", "a")}
    assert [*dict.fromkeys(found.run)] == ["16", "64 and more"] and "wise_ft" not in {*found.variant}
    few, many = (difference(own[own.run == run], "score") for run in ("16", "64 and more"))
    # a loses 0.1 with few, b nothing; with many b comes first
    assert few.mean == pytest.approx(-0.05) and many.mean == pytest.approx(0.05) and few.error is not None
    assert sample(found) == "2 runs, 2 tasks (a, b), 1 pair with another test set, 2 seeds each"
    made = shown(tables(found, "examples"))
    places, measures = ("the task's own test set", "test sets of other tasks"), ("Score", "Calibration error (ECE)")
    titles = [f"{measure} in %, {place}" for place in places for measure in measures]
    assert [table.title for table in made] == titles
    assert [row.cells[:3] for row in made[0].rows] == [["16", "4", "50.0 (0.0)"], ["64 and more", "4", "50.0 (0.0)"]]
    assert made[2].rows[0].cells[-1] == "-10.0", "one pair, so no interval"
    # the control of calibration, and of nothing else
    assert made[1].rows[0].cells[-1] == "+15.0", "two tasks that are the same, so no interval"
    assert ["FT/T" in table.header for table in made] == [False, True, False, False]
    drawn = scores_by_run(found, "examples")
    title = " ".join(drawn.texts[0].get_text().split())
    gap = "Out of distribution the graft's score less the fine-tuned model's, in points by examples: -10.0 at 16,"
    assert title.startswith(gap)
    assert len(drawn.axes) == 4


def test_without_test_sets_of_other_tasks_there_are_half_as_many_panels(tmp_path):
    for name in ("one", "two"):
        write_run(tmp_path / name, "a", seeds=(0,))
    drawn = scores_by_run(read_runs([f"{name}={tmp_path}/{name}" for name in ("one", "two")]), "run")
    assert len(drawn.axes) == 2
    assert drawn.texts[0].get_text().startswith("On the task's own test set")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["few"], "'few': NAME=FOLDER is wanted, as in 64=plots"),
        (["{0}", "{0}"], "16 is named twice"),
        (["x=nowhere"], "nowhere/scores.csv: not of a run of the main pipeline: No such file or directory"),
        (["{0}", "x={strange}"], "no task is in all of these"),
        (["x={odd}"], "odd/scores.csv: not of a run of the main pipeline: no column n"),
        (["x={empty}"], "empty/scores.csv: not of a run of the main pipeline: "),
    ],
)
def test_runs_that_cannot_be_compared_are_told_why(runs, tmp_path, words, said):
    write_run(tmp_path / "strange", "z")
    for name, text in (("odd", "task,seed,variant\na,0,grafted\n"), ("empty", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "scores.csv").write_text(text)
    places = {name: tmp_path / name for name in ("strange", "odd", "empty")}
    with pytest.raises(DataError, match=re.escape(said)):
        read_runs([word.format(*runs, **places) for word in words])
