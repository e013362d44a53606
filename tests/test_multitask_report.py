"""Tables, figures and sentences of multi-task learning, on synthetic records whose effects are known."""

import json
from contextlib import chdir
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread

from stages.lib.errors import DataError
from stages.lib.graft.mask import GraftMask
from stages.lib.graft.mask_file import StoredMask, write_mask
from stages.lib.graft.region import Region
from stages.lib.io import write_json
from stages.lib.metrics.predictions import Predictions, write_predictions
from stages.lib.metrics.variants import FINETUNED, PRETRAINED
from stages.lib.report.document import Claim
from stages.lib.report.publish import figures, to_markdown
from stages.lib.report.stats import clean
from stages.multitask import contrasts
from stages.multitask import report as reporting
from stages.multitask.contrasts import Matrix, matrices
from stages.multitask.figures import makers
from stages.multitask.load import PURIFIED, SINGLE, UNION, Multitask, are_alike, collect
from stages.multitask.report import headline
from stages.workflow.core import paths
from tests.reports import once

report, details = once(reporting.report), once(reporting.details)
TASKS = ["sst2", "cr", "ag_news", "qnli"]
SEEDS = [13, 21]
GROUPS = {"sentiment": ["sst2", "cr"]}
REGION = Region({"m.layer.0.weight": (100, 50), "m.layer.0.bias": (50,)})
SELECTED = 200
IN_PATHS = ("sgd", "learned", "0.01")
BEFORE, AFTER, N = 0.5, 0.9, 40
FIGURES = {"joint", "similarity", "gain_sgd_learned_0.01", "overlap_sgd_learned_0.01"}
HERE = "some model, prompt, 16 shots"


def params(tasks: list[str] = TASKS, seeds: list[int] = SEEDS, **changes: Any) -> SimpleNamespace:
    """The inputs of the stage multitask."""
    own = {"groups": GROUPS, "unions": {}, "paradigms": ["sgd"], "localizers": ["learned"], "least_gain": 0.05, **changes}  # fmt: skip
    return SimpleNamespace(
        seeds=seeds,
        multitask=SimpleNamespace(tasks=tasks, test_max=N, groups=own["groups"]),
        joint=SimpleNamespace(paradigms=own["paradigms"]),
        skill=SimpleNamespace(localizers=own["localizers"], sparsities=[0.01]),
        transfer=SimpleNamespace(unions=own["unions"], purify_steps=10),
        summary=SimpleNamespace(least_gain=own["least_gain"]),
    )


class Writer:
    """Writes what the stages would; every draw comes from one generator."""

    def __init__(self, root: Path, own: float = 0.8, alike: float = 0.5, other: float = 0.1) -> None:
        self.root, self.random = root, np.random.default_rng(3)
        self.own, self.alike, self.other = own, alike, other

    def write(self, settings: SimpleNamespace, after: dict[str, float] | None = None) -> None:
        """All files that the settings name; `after` has joint accuracies other than AFTER."""
        joint = dict.fromkeys(settings.multitask.tasks, AFTER) | (after or {})
        for seed in settings.seeds:
            self.masks(settings, seed)
            for task, accuracy in joint.items():
                ends = [(PRETRAINED, BEFORE), (FINETUNED, accuracy)]
                rows = [{"variant": variant, "accuracy": share, "n": N} for variant, share in ends]
                write_json(self.root / paths.reading_record("level", ("sgd",), task, seed), {"rows": rows})
                self.reference(task, seed)
                self.transfer(settings, task, seed)

    def reference(self, task: str, seed: int) -> None:
        """Of 50 rows the first 40 are used, and 36 of them are right."""
        logits, labels = np.tile(np.array([1.0, 0.0], np.float32), (50, 1)), np.array([0] * 36 + [1] * 14)
        path = self.root / paths.predictions("reference", task, seed)
        write_predictions(path, Predictions(["a", "b"], {task: labels}, {task: {FINETUNED: logits}}))

    def transfer(self, settings: SimpleNamespace, target: str, seed: int) -> None:
        groups, rows = settings.multitask.groups, []
        sources = [(SINGLE, task, [task]) for task in settings.multitask.tasks]
        sources += [
            (kind, *union) for kind in (UNION, PURIFIED) for union in (groups | settings.transfer.unions).items()
        ]
        for kind, name, members in sources:
            gain = self.own if target in members else self.alike if are_alike(groups, name, target) else self.other
            gain += 0.1 * (kind == PURIFIED) + 0.02 * self.random.normal()
            row = {"kind": kind, "source": name, "members": members, "selected": SELECTED, "n": N}
            rows.append({**row, "accuracy": BEFORE + gain * (AFTER - BEFORE)})
        write_json(self.root / paths.reading_record("transfer", IN_PATHS, target, seed), {"rows": rows})

    def masks(self, settings: SimpleNamespace, seed: int) -> None:
        """Half of a region is the task's own in every seed; similar tasks share a quarter."""
        places = np.random.default_rng(11).permutation(REGION.size)
        groups = [*settings.multitask.groups.values()]
        for number, task in enumerate(settings.multitask.tasks):
            own = places[1000 + 100 * number :][:100]
            group = next((place for place, members in enumerate(groups) if task in members), number + 2)
            rest = self.random.choice(places[2500:], 50, replace=False)
            selected = np.concatenate([own, places[50 * group :][:50], rest])
            mask = GraftMask.from_region_indices(REGION, torch.from_numpy(selected))
            values = {name: torch.zeros(count) for name, count in mask.counts.items()}
            path = self.root / paths.skill_mask("sgd", "learned", "0.01", task, seed)
            kept = "movement" if (task, seed) == ("cr", 21) else "learned"
            write_mask(path, StoredMask(mask, values, {}, {"kept": kept}))


def collect_in(root: Path, settings: SimpleNamespace | None = None) -> Multitask:
    with chdir(root):
        return collect(settings or params())


def data_in(root: Path, settings: SimpleNamespace | None = None, after: Any = None, **effects: float) -> Multitask:
    Writer(root, **effects).write(settings or params(), after)
    return collect_in(root, settings)


def matrix_of(data: Multitask) -> Matrix:
    [matrix] = matrices(data)
    return matrix


def draw(data: Multitask, folder: Path) -> list[Path]:
    figures(makers(data), data)(folder)
    return sorted(folder.glob("*.png"))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Multitask:
    return data_in(tmp_path_factory.mktemp("multitask"))


def claim(data: Multitask, words: str) -> Claim:
    [found] = [claim for claim in report(data, HERE).claims if words in claim.text]
    return found


# --- What is read ----------------------------------------------------------------------------------------------


def test_the_matrix_has_what_was_written_by_row_and_column(data):
    grid = matrix_of(data).gain_grid(SINGLE)
    assert [*grid.mean.index] == [*grid.mean.columns] == TASKS and (grid.n == 2).all(axis=None)
    for source in TASKS:
        for target in TASKS:
            expected = 0.8 if source == target else 0.5 if {source, target} == {"sst2", "cr"} else 0.1
            assert grid.mean.at[source, target] == pytest.approx(expected, abs=0.06)
            assert 0 < grid.sd.at[source, target] < 0.1
    kinds = (contrasts.OWN, contrasts.OTHERS, contrasts.ALIKE, contrasts.UNALIKE)
    assert [len(matrix_of(data).gains[kind]) for kind in kinds] == [8, 24, 4, 20]
    unalike = matrix_of(data).gains[contrasts.UNALIKE].set_index("target").gain.loc[["sst2", "cr"]]
    found = matrix_of(data).gain_contrast(contrasts.ALIKE, contrasts.UNALIKE)
    assert found.second == pytest.approx(unalike.mean()) and found.value.units == 6, "pairs whose task has both"
    kinds = (contrasts.UNION_IN, contrasts.UNION_OUT, contrasts.PURIFIED_IN, contrasts.PURIFIED_OUT)
    assert [len(matrix_of(data).gains[kind]) for kind in kinds] == [4, 4, 4, 4]


def test_rows_and_columns_are_not_mixed_up(tmp_path):
    Writer(tmp_path).write(params())
    path = tmp_path / paths.reading_record("transfer", IN_PATHS, "qnli", 13)
    rows = json.loads(path.read_text())["rows"]
    next(row for row in rows if row["source"] == "cr")["accuracy"] = BEFORE + 3 * (AFTER - BEFORE)
    write_json(path, {"rows": rows})
    values = {name: torch.zeros(count) for name, count in GraftMask.full(REGION).counts.items()}
    full = tmp_path / paths.skill_mask("sgd", "learned", "0.01", "cr", 13)
    write_mask(full, StoredMask(GraftMask.full(REGION), values, {}, {"kept": "learned"}))
    found = collect_in(tmp_path)
    mean = matrix_of(found).gain_grid(SINGLE).mean
    assert mean.at["cr", "qnli"] > 1 and mean.at["qnli", "cr"] < 0.3
    overlaps = found.overlaps[(found.overlaps.first_seed == 13) & (found.overlaps.second_seed == 13)]
    inside = overlaps.set_index(["first", "second"])[["overlap", "chance"]]
    assert [*inside.loc["cr", "qnli"]] == [1, 1] and [*inside.loc["qnli", "cr"]] == [SELECTED / REGION.size] * 2


def test_single_task_accuracy_is_that_of_the_same_first_rows(data):
    assert {*data.levels.single} == {0.9} and {*data.levels.n} == {N}  # 36 of 40, not of 50


def test_overlap_stands_between_chance_and_two_seeds_of_one_task(data):
    values = matrix_of(data).overlaps
    means = {kind: rows.overlap.mean() for kind, rows in values.items()}
    assert means[contrasts.TWO_SEEDS] == pytest.approx(0.75, abs=0.05)
    assert means[contrasts.ONE_MODEL_ALIKE] == pytest.approx(0.25, abs=0.05)
    assert means[contrasts.ONE_MODEL_UNALIKE] < 0.05
    assert values[contrasts.ONE_MODEL].chance.mean() == pytest.approx(SELECTED / REGION.size)
    kinds = (contrasts.ONE_MODEL, contrasts.TWO_SEEDS, contrasts.TWO_SEEDS_OTHER)
    assert [len(values[kind]) for kind in kinds] == [24, 8, 24]
    grid = matrix_of(data).overlap_grid
    assert grid.n.at["cr", "cr"] == 1 and grid.n.at["cr", "qnli"] == 2, "two seeds are one pair, whichever is the first"
    assert grid.mean.at["cr", "cr"] == pytest.approx(0.75, abs=0.05)  # not 1, which a region has with itself


# --- No stale cell, no vanished one ----------------------------------------------------------------------------


def test_regions_that_dev_gave_up_are_told(data):
    told = (
        "regions of the joint model's largest movement, which agreed more on dev than the learned one: 1 of 8 (cr-21)"
    )
    assert told in report(data, HERE).facts
    learned = replace(data, regions=data.regions.assign(kept="learned"))
    assert told not in report(learned, HERE).facts


def test_a_task_that_was_dropped_is_in_no_matrix_though_its_files_are_there(tmp_path):
    Writer(tmp_path).write(params())
    smaller = collect_in(tmp_path, params(["sst2", "cr", "qnli"]))
    for frame in (smaller.levels, smaller.gains, smaller.overlaps):
        named = frame.filter(["task", "target", "first", "second"]).to_numpy().ravel()
        assert {*named} == {"sst2", "cr", "qnli"}
    assert {*smaller.gains.source} == {"sst2", "cr", "qnli", "sentiment"}
    stored = json.loads((tmp_path / paths.reading_record("transfer", IN_PATHS, "cr", 13)).read_text())
    assert "ag_news" in {row["source"] for row in stored["rows"]}, "control: it was there to be taken"


def test_a_missing_file_is_named_with_what_makes_it(tmp_path):
    Writer(tmp_path).write(params())
    (tmp_path / paths.skill_mask("sgd", "learned", "0.01", "cr", 13)).unlink()
    (tmp_path / paths.reading_record("level", ("sgd",), "cr", 21)).unlink()
    with pytest.raises(DataError) as problem:
        collect_in(tmp_path)
    for name in ("level@sgd-21", "skill@sgd-learned-13"):
        assert f"`dvc repro stages/multitask/dvc.yaml:{name}` makes it" in str(problem.value)
    with pytest.raises(DataError, match="and 22 more files; `make multitask` makes them all"):
        collect_in(tmp_path, params(seeds=[7, 9]))


# --- Relative gains that can't be said -------------------------------------------------------------------------


@pytest.mark.usefixtures("bare")
def test_where_the_joint_model_gained_nothing_there_is_no_number_and_it_is_shown(tmp_path):
    data = data_in(tmp_path, after={"qnli": 0.52})
    unknown = matrix_of(data).gain_grid(SINGLE).mean.isna()
    assert unknown.pop("qnli").all() and not unknown.any(axis=None)
    assert [details(data)["joint"]["sgd"][line]["undefined"] for line in ("average", "qnli")] == [2, 2]
    assert matrix_of(data).highest_own() == (6, 6)
    assert "without 2 of 8 cells, in which the joint model gained less than 5 points" in claim(data, FROM_OWN).figure
    assert len(draw(data, tmp_path)) == 4


@pytest.mark.usefixtures("bare")
def test_a_joint_model_that_gained_nothing_at_all_leaves_nothing_to_measure(tmp_path):
    data = data_in(tmp_path, after=dict.fromkeys(TASKS, 0.4))
    assert {path.stem for path in draw(data, tmp_path)} == FIGURES - {"similarity"}
    assert details(data)["joint"]["sgd"]["average"]["undefined"] == 8 and details(data)["gain"] == {}
    for words in (FROM_OWN, KEEPS, ISOLATED, PROXY):
        assert claim(data, words).verdict == "not measurable"


# --- Claims ----------------------------------------------------------------------------------------------------

FROM_OWN, FROM_ALIKE = "gains more from its own region", "from the regions of similar tasks"
KEEPS, ISOLATED, PURER = "of the joint model's gain on them", "than for the excluded ones", "to purify it"
DISJOINT, SAME, CLOSER, PROXY = "are disjoint", "regions of one task overlap more", "Regions of similar tasks", "proxy"


def test_effects_that_are_there_are_found_and_say_what_they_were_measured_with(tmp_path):
    data = data_in(tmp_path, params([*TASKS, "snli", "mnli"], groups=GROUPS | {"inference": ["snli", "mnli"]}))
    for words in (FROM_OWN, FROM_ALIKE, KEEPS, ISOLATED, PURER, SAME, CLOSER, DISJOINT, "One model for all"):
        assert claim(data, words).verdict == "holds", words
    own = claim(data, FROM_OWN)
    assert own.here == f"SGD, learned, regions of 1.00 %; {HERE}; 6 tasks, 2 seeds"
    assert own.paper.place == "figure 8b" and own.plot == "gain_sgd_learned_0.01.png"


def test_effects_that_are_not_there_are_not_claimed_and_said_not_to_be(tmp_path):
    data = data_in(tmp_path, own=0.1, alike=0.8, other=0.8)
    found = claim(data, FROM_OWN)
    assert found.verdict == "does not hold" and found.exceptions == TASKS and "in 0 of 8" in found.figure
    assert claim(data, KEEPS).verdict == "does not hold"


def test_what_rests_on_one_task_is_shown_but_not_judged(tmp_path, data):
    """The one excluded task of a union gains as much as its own tasks, or not: it says nothing about other tasks."""
    alone = data_in(tmp_path, params(groups={"most": TASKS[:3]}))
    found = claim(alone, ISOLATED)
    assert found.verdict == "not measurable" and "one side rests on a single task" in found.figure
    assert "+" in found.figure, "the number is shown"
    assert claim(data, ISOLATED).verdict == "holds"  # the control: two excluded tasks


def test_a_difference_of_one_task_among_many_cells_is_not_shown(tmp_path):
    """Eight cells of which one task's are far above the others' were "holds" when each counted by itself."""
    data = data_in(tmp_path)
    far = data.gains.assign(gain=0.1 + 0.3 * (data.gains.source == data.gains.target))
    far.loc[(far.source == "qnli") & (far.target == "qnli"), "gain"] = 3.0
    assert claim(replace(data, gains=far), FROM_OWN).verdict == "not shown"
    assert claim(data, FROM_OWN).verdict == "holds"


def test_overlap_and_transfer_correlate_where_they_do(data, tmp_path):
    there = matrix_of(data).rho
    assert matrix_of(data).similarity.units == 12 and there["mean"] > 0
    assert -1 <= there["low"] < there["mean"] < there["high"] <= 1
    assert 3 < contrasts._fisher_z(pd.DataFrame({"overlap": [1, 2, 3], "gain": [4, 5, 6]})) < 4, (
        "finite for the same ranks"
    )
    assert matrix_of(data_in(tmp_path, alike=0.1, other=0.5)).rho["mean"] < there["mean"]  # the control


# --- The whole report ------------------------------------------------------------------------------------------


def test_all_of_it_is_written_and_the_numbers_are_numbers(data, tmp_path):
    drawn, again = (draw(data, tmp_path / folder) for folder in ("drawn", "again"))
    assert {path.stem for path in drawn} == FIGURES and all(np.ptp(imread(path)[..., :3]) > 0.5 for path in drawn)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in drawn]
    stored, shown = clean(details(data)), clean(headline(data))
    gain, own = stored["gain"]["sgd"]["learned"]["0.01"], stored["measured"]["sgd_learned_0.01"]["own"]
    first, second = (gain[name]["mean"] for name in ("own_region", "other_regions"))
    assert (first["tasks"], first["seeds"]) == (4, 2)
    assert own["mean"] == pytest.approx(first["mean"] - second["mean"], abs=1e-5)
    assert own["low"] < own["mean"] and {*stored} == {"joint", "gain", "overlap", "measured"}
    assert shown["gain"]["own_region"] == first["mean"]
    assert sum(len(part) if isinstance(part, dict) else 1 for part in shown.values()) <= 5
    assert "union, its tasks" in to_markdown(report(data, HERE))


@pytest.mark.usefixtures("bare")
def test_one_seed_has_no_ceiling_and_says_so(tmp_path):
    data = data_in(tmp_path, params(seeds=[13]))
    assert np.isnan(np.diag(matrix_of(data).overlap_grid.mean)).all()
    assert matrix_of(data).overlaps[contrasts.TWO_SEEDS].empty
    assert len(draw(data, tmp_path)) == 4 and "two seeds, one task |" not in to_markdown(report(data, HERE))
    assert {claim.verdict for claim in report(data, HERE).claims} == {"not measurable"}


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("off", ["paradigms", "localizers"])
def test_a_stage_that_is_off_is_named_and_the_rest_is_reported(tmp_path, off):
    data = data_in(tmp_path, params(**{off: []}))
    left = set() if off == "paradigms" else {"joint"}
    assert "off, so without tables and figures" in to_markdown(report(data, HERE))
    assert {name for name, part in details(data).items() if part} == left
    assert {path.stem for path in draw(data, tmp_path)} == left


@pytest.mark.usefixtures("bare")
def test_thirteen_tasks_with_unions_fit_into_one_figure(tmp_path):
    tasks = ["sst2", "cr", "mr", "mpqa", "subj", "trec", "ag_news", "mrpc", "qqp", "qnli", "snli", "mnli", "rte"]
    groups = {"sentiment": tasks[:4], "paraphrase": ["mrpc", "qqp"], "inference": ["snli", "mnli", "rte"]}
    data = data_in(tmp_path, params(tasks, groups=groups), after={"rte": 0.5})
    shapes = [imread(path).shape for path in draw(data, tmp_path)]
    assert shapes and all(height < 2400 and width == 1350 for height, width, _ in shapes)


@pytest.mark.usefixtures("bare")
def test_long_names_of_tasks_do_not_run_into_each_other(tmp_path):
    tasks = [f"{kind}_reviews_of_a_rather_long_name_in_2025" for kind in ("good", "bad", "ugly")]
    data = data_in(tmp_path, params(tasks, groups={}))
    for name in ("joint", "overlap_sgd_learned_0.01"):
        drawn = makers(data)[name](data)
        FigureCanvasAgg(drawn).draw()
        spans = [label.get_window_extent() for label in drawn.axes[0].get_xticklabels()]
        assert all(left.x1 < right.x0 for left, right in pairwise(spans)), name
