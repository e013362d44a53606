"""Multi-task learning on pico models: a joint model, the regions of its tasks, their unions, and what they do for each other."""

import shutil
from contextlib import chdir
from dataclasses import replace
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_files import read_mask
from skill_grafting.localizers.localizer import NO_OBJECTIVE, LocalizerInput
from skill_grafting.support.errors import ModelError, TrainingError
from skill_grafting.support.io import read_json
from stages.multitask import joint
from stages.multitask.joint import JointPlan, mixed_batches, train_joint
from stages.multitask.joint_model import HEADS, JointCell, load_joint, open_joint, save_joint
from stages.multitask.level import measure_baselines
from stages.multitask.multitask import are_similar, kinds_of_pairs, named
from stages.multitask.skill import find_task_masks, task_masks
from stages.multitask.transfer import PURIFIED, SINGLE, UNION, purify, summed_gradient, transfer
from stages.text.models.shared import SharedModel
from stages.text.scores.predictions import read_predictions
from stages.text.scores.variants import FINETUNED, PRETRAINED
from stages.text.tasks.runtime import seeded_torch
from stages.workflow.stage import paths
from tests import cells, pico
from tests.cells import SEED
from tests.pico import (
    all_localizers,
    finetune_settings,
    graft_settings,
    localizer_settings,
    model_settings,
    runtime,
)

SIZE = 0.05
NAMES, TASKS = [*cells.TASKS], [*cells.TASKS.values()]
ROWS = {name: cells.rows_of(task) for name, task in cells.TASKS.items()}


def plan(step_factor: float | None = 2.0, rows: dict = ROWS, **changes: Any) -> JointPlan:
    finetune = finetune_settings(**{"learning_rates": [3e-3], "max_steps": 20, **changes})
    return JointPlan(TASKS, rows, SEED, finetune, step_factor)


def params(mode: str = "standard", **learning: Any) -> SimpleNamespace:
    """The inputs of the stages skill, level and transfer."""
    return SimpleNamespace(
        model=model_settings(mode),
        graft=graft_settings(),
        localizer=all_localizers(**{"steps": 3, **learning}),
        calibration=SimpleNamespace(bins=5),
        multitask=SimpleNamespace(tasks=NAMES, test_max=20, groups={"both": NAMES}),
        skill=SimpleNamespace(sparsities=[SIZE]),
        transfer=SimpleNamespace(unions={}, purify_steps=2, purify_batch_size=8),
    )


def train(folder: Any, mode: str, **changes: Any) -> Any:
    return train_joint(folder, plan(**changes), model_settings(mode), runtime())


@pytest.fixture(scope="module")
def joint_of(tmp_path_factory, main_run):
    """joint_of(mode): a folder with everything that the main pipeline and `joint` make for both tasks, and the model."""

    @cache
    def make(mode: str) -> tuple[Path, SharedModel]:
        folder = shutil.copytree(main_run(mode), tmp_path_factory.mktemp("joint"), dirs_exist_ok=True)
        with chdir(folder):
            made, _ = train(paths.PRETRAINED, mode)
            save_joint(made, paths.joint("sgd", SEED))
        return folder, made

    return make


@pytest.fixture
def project_of(project, joint_of):
    """project_of(mode): a copy of that folder to stand in; gives the joint model."""

    def copy(mode: str) -> SharedModel:
        folder, made = joint_of(mode)
        shutil.copytree(folder, project, dirs_exist_ok=True)
        return made

    return copy


# --- Training --------------------------------------------------------------------------------------------------


def test_steps_are_a_multiple_of_a_single_tasks():
    assert plan(3.0).steps == 60  # both are capped at 20
    assert plan(None).steps == len(TASKS) * 20, "each task gets the steps that it has alone"
    rows = ROWS | {"pairs": {"train": ROWS["pairs"]["train"][:12]}}
    assert plan(8, rows, max_steps=None, steps_per_example=1).steps == 8 * (32 + 12) / 2


def test_batches_are_of_one_task_each_and_come_from_all_alike(make_cell):
    with seeded_torch("x"):
        shared = SharedModel.load(make_cell("prompt").pretrained_folder, TASKS, model_settings("prompt"), runtime())
    encoded = {name: shared.views[name].encode(ROWS[name]["train"]) for name in NAMES}
    drawn = islice(mixed_batches(shared, encoded, 8, SEED), 20)
    assert all(example in encoded[view.task.name] for [(view, examples)] in drawn for example in examples)
    tasks, again, other = (
        [view.task.name for [(view, _)] in islice(mixed_batches(shared, encoded, 8, seed), 400)]
        for seed in (SEED, SEED, SEED + 1)
    )
    assert 160 < tasks.count("toy") < 240 and 100 < sum(a != b for a, b in pairwise(tasks)) < 300
    assert again == tasks != other


def test_one_model_learns_both_tasks_and_repeats_itself(make_cell):
    folder = make_cell("standard").pretrained_folder
    (made, record), (again, _) = (train(folder, "standard") for _ in range(2))
    after = pico.values_of(made)
    assert pico.same(after, pico.values_of(again))
    assert {"toy:classifier.weight", "pairs:classifier.weight"} <= {*after}
    assert record["chosen"]["steps"] == 40 and 0 <= record["dev_accuracy"] <= 1
    with seeded_torch("joint", SEED):
        before = pico.values_of(SharedModel.load(folder, TASKS, model_settings("standard"), runtime()))
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert any(".layer.0." in name for name in moved) and not any("embeddings" in name for name in moved)
    assert {name.split(":")[0] for name in moved if ":" in name} == {*NAMES}


def test_the_grid_is_judged_by_the_mean_over_tasks_and_what_diverges_is_passed_over(make_cell, monkeypatch):
    folder = make_cell("prompt").pretrained_folder
    _, record = train(folder, "prompt", learning_rates=[1e-12, 3e-3], max_steps=10, eval_steps=5)
    scores = [(point["dev_accuracy"], -point["dev_loss"]) for point in record["grid"]]
    assert record["chosen"]["learning_rate"] == [1e-12, 3e-3][scores.index(max(scores))]
    assert [entry["step"] for entry in record["dev"]] == [5, 10, 15, 20]
    best = max((entry["accuracy"], -entry["loss"]) for entry in record["dev"])
    assert max(scores) == pytest.approx(best), "on dev"
    with pytest.raises(TrainingError, match="loss became"):
        train(folder, "prompt", learning_rates=[1e12], optimizer="sgd", clip_norm=0.0, max_steps=10)
    scores = iter([(0.5, -1.0), (1.0, -3.0)])
    monkeypatch.setattr(joint, "dev_score", lambda *_: next(scores))
    two = {"a": [], "b": []}
    assert joint.mean_dev_score(SimpleNamespace(views=two), two) == (0.75, -2.0)


# --- The folder ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["standard", "prompt"])
def test_a_joint_model_comes_back_bit_for_bit_with_its_heads(project_of, mode):
    made = pico.values_of(project_of(mode))
    assert pico.same(made, pico.values_of(load_joint(paths.joint("sgd", SEED), NAMES, model_settings(mode), runtime())))
    fewer = load_joint(paths.joint("sgd", SEED), ["pairs"], model_settings(mode), runtime())
    assert pico.same({name: made[name] for name in pico.values_of(fewer)}, pico.values_of(fewer))
    assert any("pairs:" in name for name in pico.values_of(fewer)) == (mode == "standard")


def test_a_joint_folder_is_an_ordinary_one_and_a_missing_head_is_named(project_of):
    from transformers import AutoModel

    project_of("standard")
    folder = paths.joint("sgd", SEED)
    plain = dict(AutoModel.from_pretrained(folder).named_parameters())
    shared = load_joint(folder, NAMES, model_settings("standard"), runtime())
    name = next(name for name in plain if name.startswith("encoder.layer"))
    assert torch.equal(plain[name], shared.parameters()[f"bert.{name}"])
    (folder / HEADS).unlink()
    with pytest.raises(ModelError, match=rf"{HEADS}: missing or damaged"):
        load_joint(folder, NAMES, model_settings("standard"), runtime())


# --- Regions ---------------------------------------------------------------------------------------------------


def cell_of(mode: str = "standard") -> JointCell:
    return open_joint("sgd", SEED, NAMES, params(mode), runtime())


def test_an_opened_cell_is_pretrained_but_for_the_heads(project_of, make_cell):
    made = pico.values_of(project_of("standard"))
    cell, before = cell_of(), make_cell("standard").pretrained()
    live = pico.values_of(cell.shared)
    assert pico.same({name: live[name] for name in before}, before)
    assert pico.same(cell.finetuned, {name: made[name] for name in before}) and not pico.same(cell.finetuned, before)
    assert all(torch.equal(live[name], made[name]) for name in live if ":" in name)


def test_regions_are_those_of_each_task_of_the_size_asked_for(project_of):
    project_of("standard")
    cell, sizes = cell_of(), params()
    sizes.skill.sparsities = [SIZE, 0.01]
    sizes.localizer.learned = localizer_settings("learned", steps=3, base_share=0.0)
    found = {task: task_masks(cell, task, "learned", sizes) for task in NAMES}
    selected = {mask.selected for masks in found.values() for mask in masks.values()}
    assert selected == {cell.region.budget(SIZE), cell.region.budget(0.01)}
    assert not found["toy"][SIZE].equals(found["pairs"][SIZE])
    sizes.skill.sparsities = [SIZE]
    alone = task_masks(cell, "toy", "learned", sizes)
    assert alone[SIZE].equals(found["toy"][SIZE]), "whatever other sizes there are"
    based = {task: task_masks(cell, task, "learned", params(base_share=1.0))[SIZE] for task in NAMES}
    assert overlap(*based.values()) > overlap(*(found[task][SIZE] for task in NAMES)), "figures 11 and 12"


def overlap(one: Any, other: Any) -> int:
    return int(torch.isin(one.region_indices(), other.region_indices()).sum())


# --- Transfer --------------------------------------------------------------------------------------------------


def run(localizer: str, chosen: SimpleNamespace) -> None:
    """All that follows from the joint model."""
    find_task_masks("sgd", localizer, SEED, chosen, runtime())
    measure_baselines("sgd", SEED, chosen, runtime())
    transfer("sgd", localizer, str(chosen.skill.sparsities[0]), SEED, chosen, runtime())


def test_every_region_and_union_is_tested_on_every_task(project_of):
    project_of("standard")
    chosen = params()
    run("learned", chosen)
    axes = ("sgd", "learned", str(SIZE))
    for task in NAMES:
        record = read_json(paths.record("transfer", task, SEED, *axes))
        named = [(row["kind"], row["source"]) for row in record["rows"]]
        assert named == [(SINGLE, "toy"), (SINGLE, "pairs"), (UNION, "both"), (PURIFIED, "both")]
        sizes = [row["selected"] for row in record["rows"]]
        regions = [read_mask(paths.mask("skill", name, SEED, *axes)).mask for name in NAMES]
        assert sizes == [*(mask.selected for mask in regions), *[(regions[0] | regions[1]).selected] * 2]
        assert all(row["n"] == 20 and row["test_set"] == task for row in record["rows"])


def test_a_graft_of_everything_is_the_joint_model_and_one_of_nothing_the_pretrained(project_of):
    project_of("standard")
    chosen = params(steps=0)
    chosen.skill.sparsities = [1.0]
    run("movement", chosen)
    for task in NAMES:
        files = (("level", "sgd"), ("transfer", "sgd", "movement", "1.0"))
        found = (read_predictions(paths.logits(stage, task, SEED, *axes)) for stage, *axes in files)
        levels, grafted = (one.logits[task] for one in found)
        assert all((logits == levels[FINETUNED]).all() for logits in grafted.values()) and len(grafted) == 4
        assert not (levels[PRETRAINED] == levels[FINETUNED]).all()  # the control


# --- Unions ------------------------------------------------------------------------------------------------------


def some(region, *indices: int) -> GraftMask:
    return GraftMask.from_region_indices(region, torch.tensor(indices, dtype=torch.int64))


def linear(triple, wanted: list[int], weights: dict | None = None) -> LocalizerInput:
    """Evidence about a loss that falls linearly in the entries `wanted` as they move, and rises in all others."""
    region, pretrained, finetuned = triple
    weights = weights or {name: values.clone().requires_grad_() for name, values in pretrained.items()}
    sign = torch.ones(region.size)
    sign[wanted] = -1.0
    flat = region.flatten({name: finetuned[name] - pretrained[name] for name in region.shapes})

    def gradient() -> float:
        now = torch.cat([(weights[name] - pretrained[name]).reshape(-1) for name in region.shapes])
        loss = (sign * now / flat).sum()
        loss.backward()
        return loss.detach()

    base = NO_OBJECTIVE.between(*triple, np.random.default_rng(0))
    return replace(base, weights=weights, batch_gradients=lambda _: gradient)


SETTINGS = localizer_settings("learned", steps=10, learning_rate=3.0, offset=2.0)


def test_purifying_swaps_harmful_entries_for_helpful_ones_and_keeps_the_size(triple):
    start, wanted = some(triple[0], 5, 6, 30, 31), [5, 6, 7, 8]
    assert purify(start, [linear(triple, wanted)], SETTINGS).region_indices().tolist() == wanted
    none = SETTINGS.model_copy(update={"steps": 0})
    assert purify(start, [linear(triple, wanted)], none).equals(start), "for nothing it changes nothing"


def test_the_gradients_of_all_tasks_are_added_whatever_was_there_before(triple):
    one = linear(triple, [1, 2])
    other = linear(triple, [2, 3], one.weights)

    def left_by(gradient) -> torch.Tensor:
        """The gradient that a call leaves where there was none."""
        for weight in one.weights.values():
            weight.grad = None
        gradient()
        return triple[0].flatten({name: weight.grad for name, weight in one.weights.items()})

    apart = [left_by(given.batch_gradients(8)) for given in (one, other)]
    together = summed_gradient([one, other], 8)
    for _ in range(2):  # what the first call leaves is not added to by the second
        torch.testing.assert_close(left_by(together), apart[0] + apart[1])
    assert apart[1].abs().sum() > 0  # the control


def test_pairs_are_of_one_model_or_of_two_seeds():
    groups, matrix = {"mood": ["a", "b"]}, {"paradigm": "sgd", "localizer": "learned", "sparsity": 0.01}
    rows = [
        {"first": first, "first_seed": one, "second": second, "second_seed": other, "similar": are_similar(groups, first, second)}
        for first in "abc" for second in "abc" for one in (1, 2) for other in (1, 2) if (first, one) != (second, other)
    ]  # fmt: skip
    pairs = named(pd.DataFrame(rows).assign(**matrix, overlap=0.3, chance=0.01)).assign(
        seed=lambda frame: frame.first_seed
    )
    counts = kinds_of_pairs(pairs).kind.value_counts()
    assert counts.to_dict() == {
        "one model, two tasks": 12, "similar tasks": 4, "dissimilar tasks": 8, "two seeds, one task": 6, "two seeds, two tasks": 12,
    }  # fmt: skip
