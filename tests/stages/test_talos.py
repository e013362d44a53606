"""TaLoS and task arithmetic: sensitivity, masks in rounds, vectors within masks, addition, negation, disentanglement."""

import shutil
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from skill_grafting.grafting.apply import transplant
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.region import Region
from skill_grafting.localizers.localizer import Budget
from skill_grafting.localizers.talos import Talos, round_sizes
from skill_grafting.merging.arithmetic import combined, task_vector
from skill_grafting.merging.ways import summed
from skill_grafting.support.errors import MaskError, TrainingError
from skill_grafting.support.io import write_json
from stages.talos.arithmetic import addition, choose_negation, negation, single_scores
from stages.talos.arithmetic_model import ArithmeticModel, LinearArithmeticModel
from stages.talos.disentangle import error_grid, searched_mean
from stages.talos.edit import attention_mask, best_of, choose_mask, plans_of, sizes
from stages.talos.linearised import LinearisedModel
from stages.talos.sensitivity import LEAST, MOST, RANDOM, masks, zeroed
from stages.talos.settings import EditTraining, Negation
from stages.text.models.batching import shuffled
from stages.text.models.fisher import MODES, drawn_labels, squared_gradients
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import predict
from stages.text.tasks.runtime import numpy_generator, seeded_torch
from stages.text.training.trainer import TrainPlan
from stages.workflow.cells.cells import GraftCell
from stages.workflow.cells.training import open_shared
from stages.workflow.stage import paths
from tests.pico import TOY, localizer_settings, model_settings, runtime, same, toy_rows, values_of
from tests.skill_grafting.test_localizers import input_of

ALPHAS = [0.0, 0.5, 1.0]
PLAN = TrainPlan(steps=6, learning_rate=1e-2, batch_size=8, optimizer="adamw", weight_decay=0.1, clip_norm=1.0)
TEST = ("toy", "test")


def close(left: dict, right: dict, rtol: float = 1e-4) -> bool:
    rounding = 1e-8 * max(float(values.max()) for values in right.values())
    return all(torch.allclose(left[name], right[name], rtol=rtol, atol=rounding) for name in right)


def in_double(cell) -> LabelModel:
    """A cell's model in float64: 1 - p of a sure prediction loses so many digits of float32 that processors disagree."""
    model = cell.load()
    model.model.double()
    read = model.logits
    model.logits = lambda batch: read(batch).double()
    return model


def fisher(cell, mode: str, rows: list[dict], draws: int = 1, added: float = 0.0) -> dict[str, Tensor]:
    """Of logits to all of which their sum is `added` so many times."""
    model = in_double(cell)
    read = model.logits
    model.logits = lambda batch: (found := read(batch)) + added * found.sum(1, keepdim=True)
    return squared_gradients(model, model.encode(rows), cell.region.shapes, mode, draws, np.random.default_rng(0))


def study_cell(cell) -> GraftCell:
    opened = GraftCell.of(cell.load(), 0, ["layers"], cell.pretrained_folder)
    object.__setattr__(opened, "rows", lambda split: cell.rows[split])
    return opened


def randomly_moved(values: dict[str, Tensor], size: float) -> dict[str, Tensor]:
    def noise(part: Tensor) -> Tensor:
        return torch.randn(part.shape, generator=torch.Generator().manual_seed(2))

    return {name: part + size * noise(part) for name, part in values.items()}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_is_a_sum_of_squares_the_same_one_by_one_and_by_layer(make_cell, monkeypatch, mode):
    cell, rows = make_cell("prompt"), toy_rows(5)
    by_layer = fisher(cell, mode, rows, draws=2)
    assert all(bool((values >= 0).all()) for values in by_layer.values())
    monkeypatch.setattr("stages.text.models.fisher._add_by_layer", lambda *_: False)
    assert close(by_layer, fisher(cell, mode, rows, draws=2))


@pytest.mark.parametrize("mode", MODES)
def test_a_number_added_to_all_logits_changes_the_raw_ones_alone(make_cell, mode):
    cell, rows = make_cell("prompt"), toy_rows(4)
    assert close(fisher(cell, mode, rows, added=1.0), fisher(cell, mode, rows)) == (not mode.endswith("_logit"))


def test_many_draws_come_near_the_expectation_and_one_does_not(make_cell):
    cell, rows = make_cell("prompt"), toy_rows(4)
    wanted, many, one = (
        cell.region.flatten(fisher(cell, mode, rows, draws))
        for mode, draws in (("expected", 1), ("sampled", 4096), ("sampled", 1))
    )
    assert (many - wanted).norm() < 0.05 * wanted.norm() < (one - wanted).norm()


def test_labels_are_drawn_by_their_probability_and_need_a_generator(make_cell):
    logits = torch.log(torch.tensor([[0.2, 0.3, 0.5]]))
    assert drawn_labels(logits, torch.tensor([[0.0, 0.19, 0.21, 0.49, 0.51, 0.999]])).tolist() == [[0, 0, 1, 1, 2, 2]]
    model = make_cell("prompt").load()
    with pytest.raises(ValueError, match="needs a generator"):
        squared_gradients(model, model.encode(toy_rows(1)), make_cell("prompt").region.shapes, "sampled")


def test_rounds_are_shares_of_all_parameters_and_of_the_share_that_was_asked_for():
    assert round_sizes(1000, Budget(100), 4) == [562, 316, 177, 100], "not of those still in"
    asked = Budget.of(Region({"a": (1009,)}), 0.1, "talos.sparsity")
    assert round_sizes(1009, asked, 4) == [567, 319, 179, 100]
    assert round_sizes(1009, Budget(100), 4) == [566, 317, 178, 100], "control: by the share that 100 of 1009 are"


def sparse_edit(cell, mask: GraftMask, method: str = "talos", plan: TrainPlan = PLAN) -> tuple[GraftCell, dict, dict]:
    """The cell as it was left, the trained values, and the record."""
    opened = study_cell(cell)
    return opened, *best_of(method, opened, mask, [plan], lambda: None)[1:]


@pytest.mark.parametrize(("batch_size", "steps"), [(8, 300), (32, 75), (128, 19)])
def test_every_method_sees_the_examples_that_fine_tuning_saw(batch_size, steps):
    settings = EditTraining(
        optimizer="adamw", learning_rates=[1e-4, 1e-2], schedule="linear", weight_decay=0.0, clip_norm=1.0, dropout=0.1,
        batch_size=batch_size,
    )  # fmt: skip
    plans = plans_of(settings, {"batch_size": 8, "learning_rate": 0.05, "steps": 300})
    assert [(plan.learning_rate, plan.steps) for plan in plans] == [(1e-4, steps), (1e-2, steps)]
    assert abs(plans[0].steps * batch_size - 2400) < batch_size


def test_training_within_a_mask_is_adamw_on_the_gathered_entries(make_cell):
    cell, plan = make_cell("prompt"), replace(PLAN, steps=3, clip_norm=0.0)
    some, whole = (
        GraftMask.from_region_indices(cell.region, torch.arange(3, cell.region.size, 11)),
        GraftMask.full(cell.region),
    )
    few, full = (sparse_edit(cell, mask, plan=plan)[1] for mask in (some, whole))
    assert same(few, gathered_adamw(cell, some, plan))
    assert same(full, gathered_adamw(cell, whole, plan)), "everything selected is full fine-tuning"
    assert any(not torch.equal(full[name][at], few[name]) for name, at in some.indices.items()), "the control"
    with pytest.raises(ValueError, match="nothing to train"):
        sparse_edit(cell, GraftMask.empty(cell.region), plan=plan)


def gathered_adamw(cell, mask: GraftMask, plan: TrainPlan) -> dict[str, Tensor]:
    """The same steps with torch's own optimizer on a vector of the selected entries, put back by hand."""
    opened = study_cell(cell)
    weights = opened.model.train_only({*mask.indices})
    leaves = {name: weight.detach().reshape(-1)[mask.indices[name]] for name, weight in weights.items()}
    optimizer = torch.optim.AdamW([*leaves.values()], lr=plan.learning_rate, weight_decay=plan.weight_decay)
    examples = opened.model.encode(cell.rows["train"])
    opened.model.model.train()
    with seeded_torch("edit", opened.task, 0):
        batches = shuffled(examples, plan.batch_size, numpy_generator("edit", opened.task, 0))
        for _ in range(plan.steps):
            batch = opened.model.batch([examples[row] for row in next(batches)])
            opened.model.model.zero_grad()
            torch.nn.functional.cross_entropy(opened.model.logits(batch), batch.labels).backward()
            for name, leaf in leaves.items():
                leaf.grad = weights[name].grad.reshape(-1)[mask.indices[name]]
            optimizer.step()
            for name, leaf in leaves.items():
                weights[name].data.view(-1)[mask.indices[name]] = leaf
    return leaves


def test_dev_chooses_the_learning_rate_and_a_diverging_one_is_passed_over(make_cell):
    cell = make_cell("prompt")
    mask = GraftMask.full(cell.region)
    slow, fast, wild = (replace(PLAN, learning_rate=rate) for rate in (1e-6, 1e-2, 1e30))
    plan, values, record = best_of("random", study_cell(cell), mask, [wild, slow, fast], lambda: None)
    tried = {point["learning_rate"]: point for point in record["grid"]}
    assert "failed" in tried[1e30] and [*tried] == [1e30, 1e-6, 1e-2]
    scores = {rate: (tried[rate]["dev_accuracy"], -tried[rate]["dev_loss"]) for rate in (1e-6, 1e-2)}
    assert record["learning_rate"] == plan.learning_rate == max(scores, key=scores.get)
    assert scores[1e-6] != scores[1e-2]
    assert same(values, sparse_edit(cell, mask, "random", plan)[1]), "what is kept is what that rate leaves"
    with pytest.raises(TrainingError):
        best_of("random", study_cell(cell), mask, [wild], lambda: None)


def test_full_fine_tuning_trained_alike_selects_the_whole_region(make_cell):
    mask = choose_mask("full_matched", study_cell(make_cell("prompt")), SimpleNamespace())
    assert mask.selected == mask.region.size
    states = [
        sizes(replace(PLAN, **how), 10, mask)["optimizer_bytes"]
        for how in ({}, {"optimizer": "sgd"}, {"optimizer": "sgd", "momentum": 0.9})
    ]
    assert states == [80, 0, 40]


def test_a_mask_of_fewer_parameters_than_were_asked_for_is_refused(make_cell):
    cell = study_cell(make_cell("prompt"))
    params = SimpleNamespace(talos=SimpleNamespace(sparsity=0.5), localizer=SimpleNamespace(bias=localizer_settings("bias")))
    with pytest.raises(MaskError, match=r"bias selects .* lower it, or leave bias out"):
        choose_mask("bias", cell, params)


def test_attention_only_is_the_weights_of_its_projections(make_cell):
    mask = attention_mask(make_cell("prompt").region)
    assert mask.selected == 2 * 4 * 32 * 32
    assert all(".attention." in name and name.endswith("weight") and "LayerNorm" not in name for name in mask.indices)


@pytest.mark.parametrize("mode", ["prompt", "standard"])
def test_the_linear_model_is_the_model_to_first_order(make_cell, mode):
    opened = study_cell(make_cell(mode))
    linear, examples = LinearisedModel(opened.model, opened.pretrained), opened.model.encode(toy_rows(6))
    start = predict(opened.model, examples)
    assert torch.allclose(predict(linear, examples), start, atol=1e-5)

    def change(reader, size: float) -> Tensor:
        opened.model.put(randomly_moved(opened.pretrained, size))
        return predict(reader, examples) - start

    def left_out(size: float) -> float:
        return float((change(linear, size) - change(opened.model, size)).norm())

    assert torch.allclose(change(linear, 0.02), 2 * change(linear, 0.01), rtol=1e-2, atol=1e-5)
    assert left_out(0.005) < 0.35 * left_out(0.01), "what is left out shrinks like the square"
    assert left_out(0.3) > 0.05, "the control: far away they differ"


def test_linear_fine_tuning_learns_and_its_logits_add_up(make_cell):
    cell = make_cell("prompt")
    mask, plan = GraftMask.full(cell.region), replace(PLAN, steps=25, weight_decay=0.0, learning_rate=3e-3)
    _, values, record = sparse_edit(cell, mask, "linear", plan)
    assert record["grid"][0]["dev_accuracy"] > 0.75
    plane = landscape(cell, {"toy": transplant(cell.pretrained(), values, mask)}, LinearArithmeticModel)
    at = {alpha: plane.logits({"toy": alpha}, [TEST])[TEST] for alpha in (0.0, 0.5, 1.0, -1.0)}
    np.testing.assert_allclose(at[0.5], (at[0.0] + at[1.0]) / 2, atol=1e-5)
    np.testing.assert_allclose(at[-1.0], 2 * at[0.0] - at[1.0], atol=1e-5)
    assert not np.allclose(at[0.0], at[1.0], atol=0.1)
    plane._move({"toy": 1.0})
    np.testing.assert_allclose(at[1.0], predict(plane._readers["toy"], plane.sets[TEST]).numpy(), atol=1e-5)


def landscape(cell, models: dict[str, dict[str, Tensor]], kind: type = ArithmeticModel) -> ArithmeticModel:
    views = dict.fromkeys(models, study_cell(cell).model)
    sets = {(task, split): views[task].encode(cell.rows[split][:40]) for task in models for split in ("dev", "test")}
    plane = kind(views, cell.pretrained(), models, sets)
    plane.mergers = {"sum": summed}
    return plane


def test_alpha_0_is_zero_shot_and_alpha_1_of_one_task_its_own_model(make_cell):
    cell = make_cell("prompt")
    plane = landscape(cell, {"toy": cell.finetuned()})
    ends = {0.0: predict(study_cell(cell).model, plane.sets[TEST]), 1.0: predict(cell.load(), plane.sets[TEST])}
    for alpha, wanted in ends.items():
        for name in ("toy", "sum"):
            assert np.array_equal(plane.logits({name: alpha}, [TEST])[TEST], wanted.numpy())
    assert not torch.equal(*ends.values()), "the control"
    single = {"toy": single_scores(plane, "toy")}
    single["toy"]["single"]["test"], asked, logits = 0.5, [], plane.logits

    def watched(coefficients: dict[str, float], keys: Iterable[tuple[str, str]]) -> dict:
        asked.append([*keys])
        return logits(coefficients, asked[-1])

    plane.logits = watched
    found = addition(plane, "sum", [0.0, 1.0], single)
    assert asked == [[("toy", "dev")]] * 2 + [[TEST]], "alpha is chosen on dev alone"
    assert found["curve"][1.0] == 1.0 and found["alpha"] == 1.0
    assert single["toy"]["single"]["dev"] > single["toy"]["pretrained"]["dev"]


def test_what_a_model_lacks_is_drawn_alike_each_time_it_is_opened(make_cell, project, monkeypatch):
    shutil.copytree(make_cell("standard").pretrained_folder, paths.PRETRAINED)
    write_json(paths.card("toy"), {"task": TOY.model_dump()})
    # in place of a parameter without pretrained values the head, which keeps what was drawn
    monkeypatch.setattr("stages.workflow.cells.training.read_tensors", lambda *_: defaultdict(list))
    monkeypatch.setattr(LabelModel, "put", lambda *_: None)
    one, other = (values_of(open_shared(["toy"], 0, model_settings("standard"), runtime())) for _ in range(2))
    assert same(one, other)


def test_points_do_not_depend_on_the_order_and_add_up(triple):
    _, pretrained, finetuned = triple
    vector, sizes = task_vector(pretrained, finetuned), {"c": 1, "a": -2, "b": 0.3}
    vectors = {name: {key: values * size for key, values in vector.items()} for name, size in sizes.items()}
    weights = {"a": 0.5, "b": -1.0, "c": 0.25}
    found = [combined(pretrained, vectors, {name: weights[name] for name in order}) for order in permutations(weights)]
    assert all(same(part, found[0]) for part in found)
    twice = combined(pretrained, vectors, {"c": 0.5})
    assert same(combined(pretrained, vectors | {"d": vectors["c"]}, {"c": 0.25, "d": 0.25}), twice)
    assert same(combined(pretrained, vectors, {"a": 0.0, "c": 0.5}), twice), "an axis is a single vector"
    assert same(combined(pretrained, vectors, {"a": 0.0}), pretrained)


@pytest.mark.parametrize(
    ("target", "control", "alpha"),
    [
        ([0.9, 0.5, 0.1], [0.8, 0.77, 0.5], 0.5),
        ([0.9, 0.5, 0.1], [0.8, 0.5, 0.8], 1.0),  # what is kept need not be an interval
        ([0.9, 0.5, 0.1], [0.8, 0.1, 0.1], 0.0),  # 0 is always allowed
        ([0.9, 0.5, 0.1], [1.0, 0.95, 0.5], 0.5),  # just enough is kept
        ([0.5, 0.5, 0.5], [0.8, 0.8, 0.8], 0.0),
        ([0.5, 0.4, 0.4], [0.8, 0.8, 0.8], 0.5),
    ],
)
def test_negation_keeps_the_control_and_prefers_the_smallest_alpha(target, control, alpha):
    falling = dict(reversed([*zip(ALPHAS, target, strict=True)]))
    assert choose_negation(falling, dict(zip(ALPHAS, control, strict=True)), 0.95) == alpha


def test_negation_of_a_cell_takes_its_accuracy_within_the_bound(make_cell, monkeypatch):
    cell = make_cell("prompt")
    plane = landscape(cell, {"toy": cell.finetuned(), "other": randomly_moved(cell.pretrained(), 0.01)})
    settings = Negation(controls={"other": "toy"}, retention=0.95)
    found = negation(plane, "other", ALPHAS, settings)
    unnamed = negation(plane, "other", ALPHAS, settings.model_copy(update={"controls": {}}))
    assert unnamed["control"] == found["control"] == "toy", "the first other task, where the table names none"
    assert found["control_curve"][found["alpha"]] >= 0.95 * found["control_curve"][0.0] or found["alpha"] == 0
    assert found["weak_control"] == (found["control_curve"][0.0] < 0.55)
    assert found["target_curve"][found["alpha"]] <= found["target_curve"][0.0]
    assert found["control_zero_shot"] == pytest.approx(single_scores(plane, "toy")["pretrained"]["test"])
    monkeypatch.setattr("stages.talos.arithmetic.choose_negation", lambda *_: 1.0)
    taken = negation(plane, "toy", ALPHAS, settings)["logits"]
    assert np.array_equal(taken, plane.logits({"toy": -1.0}, [TEST])[TEST]), "the vector is taken away"


def test_errors_of_a_cell_vanish_on_the_axes_and_turn_over_with_the_tasks(make_cell):
    cell = make_cell("prompt")
    plane = landscape(cell, {"a": cell.finetuned(), "b": randomly_moved(cell.pretrained(), 0.1)})

    def grid(*pair: str) -> dict:
        def logits(one: float, two: float, data: int) -> np.ndarray:
            key = (pair[data], "dev")
            return plane.logits({pair[0]: one, pair[1]: two}, [key])[key]

        return {(row["alpha1"], row["alpha2"]): row for row in error_grid(logits, [-1.0, 0.0, 1.0, 1.5])}

    there, back = grid("a", "b"), grid("b", "a")
    for (one, two), row in there.items():
        assert 0 <= row["e1"] <= 1 and 0 <= row["e2"] <= 1 and row["mean"] == (row["e1"] + row["e2"]) / 2
        assert (row["e1"] == 0 or two != 0) and (row["e2"] == 0 or one != 0)
        assert (back[two, one]["e1"], back[two, one]["e2"]) == (row["e2"], row["e1"])
    assert there[0.0, 0.0]["mean"] == 0 and there[1.5, 1.5]["mean"] > 0, "the control: they do disturb each other"
    assert searched_mean([*there.values()]) == np.mean([there[p]["mean"] for p in there if max(map(abs, p)) <= 1])


def test_linear_tasks_on_coordinates_of_their_own_are_disentangled():
    generator = np.random.default_rng(0)
    data, vectors, entangled = ([generator.normal(size=size) for _ in range(2)] for size in ((50, 4), (4, 3), (4, 3)))
    data[0][:, 2:], data[1][:, :2], vectors[0][2:], vectors[1][:2] = 0, 0, 0, 0
    start = generator.normal(size=(4, 3))

    def errors(first: np.ndarray, second: np.ndarray, labels: tuple[int, ...] = (0, 1, 2)) -> list[dict]:
        def logits(one: float, two: float, task: int) -> np.ndarray:
            return data[task] @ (start + one * first + two * second)[:, [*labels]]

        return error_grid(logits, [-1.0, 0.0, 1.0, 2.0])

    for pair in (vectors, (0 * start, 0 * start)):
        assert all(row["mean"] == 0 for row in errors(*pair))
    assert any(row["mean"] > 0 for row in errors(*entangled)), "the control"
    assert errors(*entangled, labels=(2, 0, 1)) == errors(*entangled), "the names of labels play no part"


def test_pruning_nothing_changes_nothing_and_the_least_sensitive_costs_least(make_cell):
    """At the pretrained weights, as in figure 1; a saturated fine-tuned model doesn't keep the order."""
    cell = make_cell("prompt")
    plane, region, given = landscape(cell, {"toy": cell.finetuned()}), cell.region, input_of(cell)
    given.put(given.pretrained)
    talos = SimpleNamespace(talos=localizer_settings("talos", mode="expected"))
    found = masks(given, SimpleNamespace(localizer=talos, sensitivity=SimpleNamespace(pruned=0.1)))
    assert {mask.selected for mask in found.values()} == {region.budget(0.1)}

    def margins(mask: GraftMask) -> np.ndarray:
        plane.put(zeroed(cell.pretrained(), mask))
        return np.diff(plane.current(TEST))  # what both logits share has no effect

    before = margins(GraftMask.empty(region))
    assert np.array_equal(before, np.diff(plane.logits({}, [TEST])[TEST]))
    least, by_chance, most = (np.abs(margins(found[kind]) - before).mean() for kind in (LEAST, RANDOM, MOST))
    assert least < by_chance < most


def test_the_modes_that_settings_allow_are_those_there_are():
    assert {*Talos.model_fields["mode"].annotation.__args__} == {*MODES}
