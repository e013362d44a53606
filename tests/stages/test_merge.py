"""Merged models on pico models: every task reads the shared weights with its own head, and alpha is found on dev; and their frames."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from skill_grafting.grafting.apply import transplant, values_at
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_files import StoredMask, read_mask
from skill_grafting.merging.stitching import RULES, stitch
from skill_grafting.merging.ways import VECTORS
from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.models.loading import read_tensors
from skill_grafting.support.io import read_json, read_rows
from stages.merge.combination import Group, alpha_curve, at_rates, chance_collisions, combine, count_collisions
from stages.merge.merge import _unsound, collect, derive
from stages.merge.settings import KINDS, LOCALIZED, MERGED, MOVED, STITCHES, kind_of, read_localized
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import predict
from stages.text.scores.predictions import read_predictions
from stages.text.scores.variants import FINETUNED, GRAFTED, MOVEMENT_GRAFTED, PRETRAINED
from stages.workflow.stage import paths
from tests.cells import SEED
from tests.cells import TASKS as SPECS
from tests.pico import graft_settings, localizer_settings, model_settings, runtime

TASKS, GROUP = [*SPECS], "both"


def params(mode: str = "standard", **combination: object) -> SimpleNamespace:
    search = SimpleNamespace(**{"alphas": [0.0, 0.5, 1.0], "strictness": [0.2, 0.6], "rates": [1e7, 1e4], "dev_max": 0, **combination})
    return SimpleNamespace(
        model=model_settings(mode),
        finetune=SimpleNamespace(train=["layers"]),
        graft=graft_settings(),
        calibration=SimpleNamespace(bins=15),
        merge=SimpleNamespace(groups={GROUP: TASKS}, test_max=60),
        combination=SimpleNamespace(search=search, shares=SimpleNamespace(ties=0.5, dare=0.5)),
    )


@pytest.fixture
def mode(request, after_main) -> str:
    """Stands where the main pipeline has run in this mode."""
    mode = getattr(request, "param", "standard")
    after_main(mode)
    return mode


def predicted(method: str, mode: str, settings: dict | None = None, variant: str = MERGED, **combination: object) -> dict[str, np.ndarray]:
    chosen = params(mode, **combination)
    if localized := read_localized(method):
        own = {"steps": 3} | (settings or {}).get(method, {})
        chosen.localizer = SimpleNamespace(**{localized[0]: localizer_settings(localized[0], **own)})
    combine(method, GROUP, SEED, chosen, runtime())
    files = {task: paths.logits("combination", f"{GROUP}/{task}", SEED, method) for task in TASKS}
    return {task: read_predictions(file).logits[task][variant] for task, file in files.items()}


def recorded(method: str) -> dict:
    return read_json(paths.record("combination", GROUP, SEED, method))


def same(left: dict, right: dict) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[task], right[task]) for task in left)


def stored(variant: str) -> dict[str, np.ndarray]:
    stage = "evaluate" if variant == GRAFTED else "reference"
    found = {task: read_predictions(paths.logits(stage, task, SEED)).logits[task][variant] for task in TASKS}
    return {task: logits[:60] for task, logits in found.items()}


@pytest.mark.parametrize("mode", ["standard", "prompt"], indirect=True)
def test_a_stitched_model_predicts_as_each_task_alone_with_those_values(mode):
    logits = predicted("stitch_mean", mode)
    grafts = [read_mask(paths.mask("learned", task, SEED)) for task in TASKS]
    pretrained = read_tensors(paths.PRETRAINED, grafts[0].mask.region.shapes)
    mask, values = stitch(grafts, pretrained, "mean")
    for task in TASKS:
        alone = LabelModel.load(paths.finetuned(task, SEED), SPECS[task], model_settings(mode), runtime())
        alone.put(transplant(pretrained, values, mask))
        rows = read_rows(paths.sample(task, SEED, "test"))[:60]
        assert np.array_equal(predict(alone, alone.encode(rows)).numpy(), logits[task])
    assert not same(logits, stored(GRAFTED))  # the control


def test_nothing_added_is_the_pretrained_model_with_trained_heads(mode):
    for method in ("grafted_arithmetic", "ties", "dare", "consensus"):
        assert same(predicted(method, mode, alphas=[0.0]), stored(PRETRAINED))
    assert not same(predicted("arithmetic", mode, alphas=[0.5]), stored(PRETRAINED))  # the control


def test_methods_that_are_one_at_some_weight_agree_bit_for_bit(mode):
    assert same(predicted("average", mode), predicted("arithmetic", mode, alphas=[0.5]))
    assert same(predicted("stitch_sum", mode), predicted("grafted_arithmetic", mode, alphas=[1.0]))
    assert not same(predicted("average", mode), predicted("stitch_sum", mode))  # the control


def test_a_localizer_named_with_a_share_has_its_own_masks_stitched_by_the_mean(mode):
    assert same(predicted("movement_0.1", mode), predicted("stitch_mean", mode)), "these grafts are of that size"
    assert not same(predicted("grown_0.1", mode), predicted("movement_0.1", mode))  # the control
    rows = recorded("movement_0.1")["rows"]
    scores = {(row["task"], row["variant"]): row["score"] for row in rows}
    assert all(scores[task, LOCALIZED] == scores[task, GRAFTED] for task in TASKS)
    assert recorded("movement_0.1")["kind"] == LOCALIZED
    assert all(scores[task, MOVED] == scores[task, LOCALIZED] for task in TASKS)
    assert all([row["chosen"] for row in tried] == [True] for tried in recorded("movement_0.1")["searches"].values())


def test_of_step_sizes_that_belong_to_a_model_the_loss_of_the_graft_on_the_training_rows_chooses(mode):
    rates = [1e-9, 30.0, 1e6]
    tied = {"stitch_0.1": {"rate_kind": "summed", "l1": 1e-7, "learning_rate": 1e6}}
    every, alone = predicted("stitch_0.1", mode, rates=rates, settings=tied), {}
    for tried in recorded("stitch_0.1")["searches"].values():
        assert [row["rate"] for row in tried] == rates and sum(row["chosen"] for row in tried) == 1
        best = min(tried, key=lambda row: row["graft_loss"])
        assert best["chosen"] and best["graft_loss"] < max(row["graft_loss"] for row in tried)
        assert all(row["crossed"] >= 0 and row["end"] is not None for row in tried)
    chosen = {task: next(row["rate"] for row in tried if row["chosen"]) for task, tried in recorded("stitch_0.1")["searches"].items()}
    for task, rate in chosen.items():
        alone |= {task: predicted("stitch_0.1", mode, rates=[rate], settings=tied, variant=LOCALIZED)[task]}
    again = predicted("stitch_0.1", mode, rates=rates, settings=tied, variant=LOCALIZED)
    assert same(alone, again), "the chosen graft is that of its step size"
    assert not same(every, predicted("stitch_0.1", mode, rates=rates[:1], settings=tied)), "control"
    made = at_rates(localizer_settings("stitch", rate_kind="absolute", l1=1e-6, learning_rate=1e7), [1e7, 1e5])
    assert [(one.learning_rate, one.l1) for one in made] == [(1e7, 1e-6), (1e5, 1e-4)], "what pulls against a step stays"
    relative = localizer_settings("stitch", rate_kind="relative")
    assert at_rates(relative, [1.0, 2.0]) == [relative]


@pytest.mark.parametrize(("worse", "words"), [
    ({}, ""), ({"end": 1.5}, "its search ends at a loss of 1.50, above its start, 1.00"),
    ({"crossed": 1100}, "11 times as many parameters crossed into its masks as they may hold"),
    ({"score": 0.2}, "its own grafts score 20.0%, those of equal size of what moved most 50.0%"), ({"start": None, "end": None, "crossed": None}, ""),
])  # fmt: skip
def test_a_rival_s_masks_that_were_not_found_are_none_to_compare_with(worse, words):
    row = {"start": 1.0, "end": 0.5, "crossed": 100, "k": 100, "score": 0.6, "moved": 0.5, **worse}
    assert _unsound(pd.DataFrame([row, row])) == words


def test_consensus_adds_what_two_tasks_select_each_by_its_own_lambda(mode):
    combine("consensus", GROUP, SEED, params(mode, strictness=[0.0, 0.3]), runtime())
    record = recorded("consensus")
    assert {*record["lambdas"]} == {*TASKS} and {*record["lambdas"].values()} <= {0.0, 0.3}
    assert 0 < record["selected"] <= read_anatomy(paths.PRETRAINED).region(["layers"]).size
    everything = predicted("consensus", mode, strictness=[0.0], alphas=[0.5])
    assert same(everything, predicted("average", mode)), "with a lambda of 0 all that both tasks moved is in"
    nothing = predicted("consensus", mode, strictness=[1e9], alphas=[0.5])
    assert same(nothing, stored(PRETRAINED)), "and with a huge one nothing"


@pytest.mark.parametrize(("method", "variant"), [("average", FINETUNED), ("stitch_mean", GRAFTED)])
def test_of_one_task_everything_is_its_own_model(mode, method, variant):
    group = Group.open(method, ["toy"], SEED, params(mode), runtime())
    group.shared.first.put(group.models["toy"])
    examples = group.shared.first.encode(read_rows(paths.sample("toy", SEED, "test"))[:60])
    assert np.array_equal(predict(group.shared.first, examples).numpy(), stored(variant)["toy"])


def test_a_record_says_how_the_model_was_made(mode):
    for method in ("stitch_largest", "ties"):
        combine(method, GROUP, SEED, params(mode), runtime())
    grafts, whole = (recorded(name) for name in ("stitch_largest", "ties"))
    assert {(row["task"], row["variant"]) for row in grafts["rows"]} == {
        (task, variant) for task in TASKS for variant in (PRETRAINED, FINETUNED, GRAFTED, MOVEMENT_GRAFTED, MERGED)
    }
    assert all(row["n"] == 60 for row in grafts["rows"])
    masks = [read_mask(paths.mask("learned", task, SEED)) for task in TASKS]
    union = len(torch.cat([part.mask.region_indices() for part in masks]).unique())
    assert grafts["collisions"]["union"] == union and grafts["bytes"] == 8 * union
    assert grafts["single_bytes"] == [8 * part.mask.selected for part in masks]
    assert whole["bytes"] == 4 * masks[0].mask.region.size and "collisions" not in whole
    assert grafts["head_bytes"] > 0
    curve = {point["alpha"]: point["normalised"] for point in whole["dev"]}
    assert whole["alpha"] == min(alpha for alpha in curve if curve[alpha] == max(curve.values()))
    assert "alpha" not in grafts


def test_alpha_looks_at_dev_rows_alone_and_at_so_many(mode):
    group = Group.open("average", TASKS, SEED, params(mode), runtime())
    vector = {name: torch.zeros_like(values, dtype=torch.float64) for name, values in group.pretrained.items()}
    for task in TASKS:
        paths.sample(task, SEED, "test").unlink()
    short = alpha_curve(group, vector, params(alphas=[0.0, 1.0], dev_max=7).combination.search)
    assert short[0.0] == short[1.0], "nothing to add"
    whole = alpha_curve(group, vector, params(alphas=[0.0], dev_max=0).combination.search)
    assert whole[0.0] != short[0.0]  # the control


def test_collisions_are_counted(triple):
    region, pretrained, _ = triple
    start, models, grafts = region.flatten(pretrained), [], []
    for seed, places in enumerate((range(10), range(5, 15), range(8, 41))):
        generator = torch.Generator().manual_seed(seed)
        moved = {name: values + torch.randn(values.shape, generator=generator) for name, values in pretrained.items()}
        mask = GraftMask.from_region_indices(region, torch.tensor(places))
        grafts.append(StoredMask(mask, values_at(moved, mask), {}, {}))
        models.append(region.flatten(transplant(pretrained, grafts[-1].values, mask)) - start)
    found, moves = count_collisions(grafts, pretrained), torch.stack(models)
    assert (found["union"], found["colliding"]) == (41, 10)
    assert found["opposed"] == int(((moves > 0).any(0) & (moves < 0).any(0)).sum()) and 0 < found["opposed"] < 10


def test_chance_is_what_random_masks_do():
    sizes, size, generator = [20, 30, 50], 100, torch.Generator().manual_seed(5)
    ranks = torch.rand(4000, len(sizes), size, generator=generator).argsort(-1)  # a random order of all in each mask
    chosen = (ranks < torch.tensor(sizes)[:, None]).sum(1)
    expected = chance_collisions(sizes, size)
    assert expected == pytest.approx({"chance_union": 72, "chance_colliding": 25})
    found = [float((chosen > least).sum(1).double().mean()) for least in (0, 1)]
    assert found == pytest.approx([72, 25], abs=0.3)
    assert chance_collisions([100, 100], 100) == pytest.approx({"chance_union": 100, "chance_colliding": 100})


def chosen(mode: str, methods: list[str]) -> SimpleNamespace:
    """The settings of these methods on the one group."""
    found = params(mode)
    found.tasks, found.seeds, found.summary = TASKS, [SEED], SimpleNamespace(least_gain=0.05)
    found.data, found.combination.methods = SimpleNamespace(k=8, scarce="error"), methods
    return found


def test_the_frames_have_every_method_that_is_asked_for(mode):
    methods = ["stitch_mean", "average", "ties"]
    for method in methods:
        combine(method, GROUP, SEED, params(mode), runtime())
    frames = collect(chosen(mode, methods))
    assert {*frames["scores"].method} == {PRETRAINED, FINETUNED, GRAFTED, *methods}
    assert len(frames["scores"]) == (len(methods) + 3) * len(TASKS)
    scores = {(row["task"], row["variant"]): row["score"] for row in recorded("ties")["rows"]}
    own = [scores[task, MERGED] / scores[task, FINETUNED] for task in TASKS]
    means = derive(frames)["averaged"].groupby("method")[["own", "retained"]].mean()
    assert means.loc["ties"].to_list() == pytest.approx([np.mean(own)] * 2, abs=1e-6)
    assert len(collect(chosen(mode, methods[:2]))["dev"]) == 0, "a method less leaves nothing of it"
    sizes, grafts, whole = derive(frames)["averaged"].groupby("method").megabytes.first() * 1e6, recorded("stitch_mean"), recorded("ties")
    kept = {PRETRAINED: 0, GRAFTED: sum(grafts["single_bytes"]), FINETUNED: len(TASKS) * whole["bytes"], "stitch_mean": grafts["bytes"], "ties": whole["bytes"]}
    assert sizes[[*kept]].to_dict() == pytest.approx({name: size + whole["head_bytes"] for name, size in kept.items()}), "heads, and grafts or models"
    rows = pd.concat([frames["scores"], frames["scores"].assign(seed=1)], ignore_index=True)
    missing = (rows.method == "average") & (rows.task == "pairs") & (rows.seed == 1)
    averaged = derive(frames | {"scores": rows.assign(own=rows.own.mask(missing))})["averaged"].dropna(subset="own")
    assert {*averaged.task[averaged.method == "average"]} == {"toy"}, "means are over tasks that every seed has"
    assert {*averaged.task[averaged.method == "ties"]} == {*TASKS}, "control"


def test_a_name_says_what_a_method_merges():
    assert [*STITCHES] == [f"stitch_{rule}" for rule in RULES]
    assert [*KINDS] == [*STITCHES, "grafted_arithmetic", *VECTORS[:5]], "the further ways of the library aren't compared"
    assert all(read_localized(name) is None for name in (*KINDS, "stitch_0", "0.5", "a_2"))
    assert read_localized("stitch_0.01") == ("stitch", 0.01) and read_localized("learned_no_base_1")[1] == 1
    assert (kind_of("average"), kind_of("stitch_mean"), kind_of("stitch_0.01")) == (FINETUNED, GRAFTED, LOCALIZED)
