"""TaLoS and task arithmetic: sensitivity, masks in rounds, vectors within masks, addition, negation, disentanglement."""

from dataclasses import replace
from functools import partial
from itertools import pairwise, permutations
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from stages.lib.errors import TrainingError
from stages.lib.graft.apply import transplant, values_at
from stages.lib.graft.mask import GraftMask
from stages.lib.graft.mask_file import StoredMask, read_mask, write_mask
from stages.lib.graft.region import Region
from stages.lib.graft.select import top_k
from stages.lib.localizers.movement import movement, movement_mask, movement_order
from stages.lib.localizers.registry import Budget, find_mask, localizer_of
from stages.lib.localizers.settings import NAMES, NoSettings, Talos
from stages.lib.localizers.talos import calibrate, least_sensitive, round_sizes, sensitivity
from stages.lib.merging.arithmetic import combined, task_vector
from stages.lib.merging.vectors import summed
from stages.lib.metrics.composition import by_tensor
from stages.lib.metrics.overlap import chance_iou, iou
from stages.lib.models.cell import GraftCell
from stages.lib.models.fisher import MODES, backward_passes, drawn_labels, squared_gradients
from stages.lib.models.label_model import LabelModel
from stages.lib.models.predicting import predict
from stages.lib.training.finetuning import TrainingCell, finetune
from stages.lib.training.training import TrainPlan
from stages.study.readouts import read_out
from stages.talos.arithmetic_model import ArithmeticModel, LinearArithmeticModel, spread
from stages.talos.disentanglement import error_grid, mean_within
from stages.talos.linearised import LinearisedModel
from stages.talos.sensitivity_masks import VARIANTS, prune
from stages.talos.settings import EditTraining, Negation, SensitivityParams, problems
from stages.talos.task_vectors import TaskVector, attention_mask, best_of, plans_of, reader_of, train_within
from stages.talos.vector_arithmetic import addition, choose_negation, negation, single_scores
from tests.pico import TOY, finetune_settings, localizer_settings, model_settings, runtime, same, toy_rows
from tests.test_localizers import evidence_of, mask_of

ALPHAS = [0.0, 0.5, 1.0]
PLAN = TrainPlan(steps=6, learning_rate=1e-2, batch_size=8, optimizer="adamw", weight_decay=0.1, clip_norm=1.0)


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


def fisher(cell, mode: str, rows: list[dict], draws: int = 1, seed: int = 0) -> dict[str, Tensor]:
    model = in_double(cell)
    generator = np.random.default_rng(seed)
    return squared_gradients(model, model.encode(rows), cell.region.shapes, mode, draws, generator)


def study_cell(cell) -> GraftCell:
    opened = GraftCell.of(cell.load(), 0, ["layers"], cell.pretrained_folder)
    object.__setattr__(opened, "rows", lambda split: cell.rows[split])
    return opened


# --- Sensitivity: the diagonal of the Fisher information ----------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_is_a_sum_of_squares_the_same_one_by_one_and_by_layer(make_cell, monkeypatch, mode):
    cell, rows = make_cell("prompt"), toy_rows(5)
    by_layer = fisher(cell, mode, rows, draws=2)
    assert all(bool((values >= 0).all()) for values in by_layer.values())
    monkeypatch.setattr("stages.lib.models.fisher._add_by_layer", lambda *_: False)
    assert close(by_layer, fisher(cell, mode, rows, draws=2))


def test_the_shortcut_for_two_labels_is_the_general_formula(make_cell):
    cell, model = make_cell("prompt"), in_double(make_cell("prompt"))
    weights = model.train_only({*cell.region.shapes})
    totals = {name: torch.zeros_like(values) for name, values in weights.items()}
    for example in model.encode(toy_rows(5)):
        surprise = -torch.log_softmax(model.logits(model.batch([example])), 1)[0]
        for label in (0, 1):
            parts = torch.autograd.grad(surprise[label], [*weights.values()], retain_graph=True)
            for total, part in zip(totals.values(), parts, strict=True):
                total += torch.exp(-surprise[label].detach()) * part**2
    assert close(fisher(cell, "expected", toy_rows(5)), totals)
    assert backward_passes("expected", 2, 1) == 1 and backward_passes("expected", 3, 1) == 3


def test_many_draws_come_near_the_expectation_and_one_does_not(make_cell):
    cell, rows = make_cell("prompt"), toy_rows(4)
    wanted = cell.region.flatten(fisher(cell, "expected", rows))

    def distance(draws: int) -> float:
        found = cell.region.flatten(fisher(cell, "sampled", rows, draws))
        return float((found - wanted).norm() / wanted.norm())

    assert distance(4096) < 0.05 < distance(1)
    assert backward_passes("sampled", 2, 4096) == 2 and backward_passes("sampled", 2, 1) == 1


def test_labels_are_drawn_by_their_probability_and_need_a_generator(make_cell):
    logits = torch.log(torch.tensor([[0.2, 0.3, 0.5]]))
    assert drawn_labels(logits, torch.tensor([[0.0, 0.19, 0.21, 0.49, 0.51, 0.999]])).tolist() == [[0, 0, 1, 1, 2, 2]]
    places = torch.from_numpy(np.random.default_rng(0).random((1, 20_000)))
    shares = torch.bincount(drawn_labels(logits, places)[0], minlength=3) / 20_000
    assert torch.allclose(shares, torch.tensor([0.2, 0.3, 0.5]), atol=0.015)
    model = make_cell("prompt").load()
    with pytest.raises(ValueError, match="needs a generator"):
        squared_gradients(model, model.encode(toy_rows(1)), make_cell("prompt").region.shapes, "sampled")


def test_hooks_and_vmap_agree_and_the_square_of_a_batch_is_something_else(make_cell):
    cell, model = make_cell("prompt"), make_cell("prompt").load()
    model.model.set_attn_implementation("eager")
    examples = model.encode([row | {"sentence1": row["sentence1"].split()[0]} for row in toy_rows(6)])
    examples = [example for example in examples if len(example.input_ids) == len(examples[0].input_ids)]
    batch, weights = model.batch(examples), model.train_only({*cell.region.shapes})
    position = int(batch.positions[0])

    def loss(values: dict, ids: Tensor, label: Tensor) -> Tensor:
        # all are of one length, so there is no padding to mask
        logits = functional_call(model.model, values, kwargs={"input_ids": ids[None]}).logits[
            0, position, model._word_ids
        ]
        return -torch.log_softmax(logits, 0).gather(0, label[None])[0]

    values = {name: weight.detach() for name, weight in weights.items()}
    of_each = vmap(grad(loss), in_dims=(None, 0, 0))(values, batch.inputs["input_ids"], batch.labels)
    squares = squared_gradients(model, examples, cell.region.shapes)
    assert len(examples) > 2 and close({name: part.square().sum(0) for name, part in of_each.items()}, squares, 1e-3)
    both = [replace(examples[0], label=label) for label in (0, 1)]
    p = model.logits(model.batch(both[:1])).softmax(1).detach()[0]
    # weighted so that the two gradients cancel exactly: their sum is 0, their squares are not
    opposite = {name: float(part) for name, part in zip("01", p, strict=True)}
    losses = -torch.log_softmax(model.logits(model.batch(both)), 1)
    crafted = opposite["0"] * losses[0, 0] + opposite["1"] * losses[1, 1]
    batch_gradient = torch.autograd.grad(crafted, [*weights.values()])
    assert max(float(part.abs().max()) for part in batch_gradient) < 1e-4
    assert max(float(part.max()) for part in squared_gradients(model, both, cell.region.shapes).values()) > 1e-4


def test_a_number_added_to_all_logits_changes_the_raw_ones_alone(make_cell):
    cell, rows = make_cell("prompt"), toy_rows(4)

    def moved(mode: str) -> dict[str, Tensor]:
        model = in_double(cell)
        read = model.logits
        model.logits = lambda batch: (found := read(batch)) + found.sum(1, keepdim=True)
        return squared_gradients(model, model.encode(rows), cell.region.shapes, mode, 1, np.random.default_rng(0))

    for mode in MODES:
        assert close(moved(mode), fisher(cell, mode, rows)) == (not mode.endswith("_logit")), mode


# --- Masks in rounds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [0.1, 0.013])
def test_rounds_keep_exactly_a_share_of_all_and_lie_within_each_other(make_cell, sparsity):
    evidence, settings = evidence_of(make_cell("prompt")), localizer_settings("talos", rounds=4)
    region = evidence.region
    k = region.budget(sparsity)
    found = [*calibrate(evidence, settings, Budget(k))]
    sizes = [int((k / region.size) ** (r / 4) * region.size + 1e-6) for r in (1, 2, 3)] + [k]
    assert [mask.selected for mask in found] == sizes == round_sizes(region.size, Budget(k), 4)
    inside = [{*mask.region_indices().tolist()} for mask in found]
    assert all(later < earlier for earlier, later in pairwise(inside))
    assert same(dict(evidence.weights), dict(evidence.pretrained)), "the weights are the pretrained ones again"
    assert round_sizes(1000, Budget(100), 4) == [562, 316, 177, 100], "of all parameters, not of those still in"
    small = Region({"a": (1009,)})
    asked = Budget.of(small, 0.1, "top_k", "talos.sparsity")
    assert round_sizes(1009, asked, 4) == [567, 319, 179, 100], "by the share that was asked for"
    assert round_sizes(1009, Budget(100), 4) == [566, 317, 178, 100], "control: by the share that 100 of 1009 are"


def test_scoring_again_without_attenuation_is_a_single_round(make_cell):
    evidence = evidence_of(make_cell("prompt"))
    k = evidence.region.budget(0.1)
    plain = {"mode": "expected", "attenuation": 1.0}
    *_, once = calibrate(evidence, localizer_settings("talos", **plain, rounds=1), Budget(k))
    *_, four = calibrate(evidence, localizer_settings("talos", **plain, rounds=4), Budget(k))
    assert once.equals(four)
    squares = sensitivity(evidence, localizer_settings("talos", **plain))
    assert once.equals(top_k(evidence.region, {name: -values for name, values in squares.items()}, k))
    *_, attenuated = calibrate(
        evidence, localizer_settings("talos", **plain | {"attenuation": 0.1}, rounds=4), Budget(k)
    )
    assert not attenuated.equals(four), "the control"


def test_the_score_of_a_factor_on_the_weight_is_its_square_times_the_fisher_information(make_cell):
    evidence = evidence_of(make_cell("prompt"))
    plain, factor = (
        sensitivity(evidence, localizer_settings("talos", mode="expected", score=score))
        for score in ("fisher", "fisher_times_theta2")
    )
    assert close(factor, {name: plain[name] * evidence.pretrained[name] ** 2 for name in plain}, 1e-6)
    assert not close(factor, plain)


def test_least_and_most_sensitive_from_the_same_scores_share_nothing_and_fill_the_region(make_cell):
    evidence = evidence_of(make_cell("prompt"))
    region, scores = evidence.region, evidence.squared_gradients(6, "expected", 1)
    for k in (100, 3000):
        least = {*least_sensitive(scores, GraftMask.full(region), k).region_indices().tolist()}
        assert not least & {*top_k(region, scores, k).region_indices().tolist()}
        rest = top_k(region, {name: values.double() for name, values in scores.items()}, region.size - k)
        ties = len({*rest.region_indices().tolist()} & least)
        assert len(least) == k and (ties == 0 or len(scores) > ties)
    with pytest.raises(ValueError, match="of 5"):
        least_sensitive(scores, GraftMask.from_region_indices(region, torch.arange(5)), 6)


def test_distinct_scores_split_into_complements(triple):
    region = triple[0]
    order = torch.randperm(region.size, generator=torch.Generator().manual_seed(0)).float()
    scores = dict(
        zip(region.shapes, (p.reshape(s) for p, s in zip(order.split(region.sizes), region.shapes.values(), strict=True)), strict=True)
    )  # fmt: skip
    least = least_sensitive(scores, GraftMask.full(region), 30).region_indices().tolist()
    most = top_k(region, scores, region.size - 30).region_indices().tolist()
    assert sorted([*least, *most]) == [*range(region.size)]


def test_random_masks_overlap_by_chance():
    region = Region({"a.weight": (100, 200)})
    same_ = {"a.weight": torch.zeros(100, 200)}
    for share in (0.1, 0.3):
        k = region.budget(share)
        found = []
        for seed in range(6):
            evidence = SimpleNamespace(region=region, generator=np.random.default_rng(seed), pretrained=same_)
            found.append(localizer_of("random").rank(evidence, None, k).numpy())
        values = [iou(first, second) for first, second in pairwise(found)]
        # sd of the hypergeometric intersection, carried over to the IoU
        spread = np.sqrt(k * share * (1 - share) ** 2) * 2 / (2 * k - k * share)
        assert chance_iou(k, k, region.size) == pytest.approx(share / (2 - share))
        assert abs(np.mean(values) - share / (2 - share)) < 3 * spread


def test_lota_is_the_movement_mask_and_never_padded(triple):
    region, pretrained, finetuned = triple
    evidence = SimpleNamespace(region=region, pretrained=pretrained, finetuned=finetuned)
    wanted = movement_mask(region, movement_order(pretrained, finetuned, region, 20), 20)
    assert find_mask("lota", evidence, NoSettings(), Budget(20)).mask.equals(wanted)
    scaled = {name: pretrained[name] + 4 * (finetuned[name] - pretrained[name]) for name in pretrained}
    far = movement(pretrained, scaled, region)
    assert top_k(region, far, 20).equals(wanted), "a longer vector has the same ticket"
    still = finetuned | {"b.weight": pretrained["b.weight"], "c.weight": pretrained["c.weight"]}
    alone = SimpleNamespace(region=region, pretrained=pretrained, finetuned=still)
    few = find_mask("lota", alone, NoSettings(), Budget(30)).mask
    assert few.selected == 12 and "b.weight" not in few.indices


def test_selected_by_tensor_adds_up_to_the_mask(make_cell):
    region = make_cell("prompt").region
    mask = GraftMask.from_region_indices(region, torch.arange(0, region.size, 7))
    rows = by_tensor({name: len(at) for name, at in mask.indices.items()}, region.shapes)
    assert sum(row["selected"] for row in rows) == mask.selected and len(rows) == len(region.shapes)
    weighted = np.average([row["share"] for row in rows], weights=[row["parameters"] for row in rows])
    assert weighted == pytest.approx(mask.sparsity)
    assert {row["part"] for row in rows} == {"weight", "bias"} and {row["layer"] for row in rows} == {0, 1}


# --- One parameter swaps the mask in any read-out -----------------------------------------------------------------


@pytest.mark.parametrize("readout", ["graft", "retrain", "reset"])
def test_talos_fish_lota_and_graft_regions_of_a_size_are_swapped_by_name(make_cell, readout):
    cell = make_cell("prompt")
    k, found = cell.region.budget(0.05), {}
    for localizer in ("talos", "fish", "lota", "learned"):
        mask = mask_of(localizer, evidence_of(cell), k)
        assert mask.selected == k
        opened = study_cell(cell)
        settings = finetune_settings(learning_rates=[1e-2], max_steps=3, steps_per_example=1)
        where = TrainingCell(TOY, 0, cell.rows, model_settings(cell.mode), runtime(), cell.pretrained_folder)
        read_out(readout, opened, mask, partial(finetune, where, settings, only=mask))
        found[localizer] = {
            n: v.detach().clone() for n, v in opened.model.parameters().items() if n in cell.region.shapes
        }
        kept = cell.finetuned() if readout == "reset" else cell.pretrained()
        outside = transplant(found[localizer], values_at(kept, mask), mask)
        assert same(outside, kept), "nothing outside the mask is read out"
        assert not same(found[localizer], kept)
    assert not any(same(found[a], found[b]) for a, b in permutations(found, 2))


# --- Training within a mask ---------------------------------------------------------------------------------------


def sparse_edit(cell, mask: GraftMask, method: str = "talos", plan: TrainPlan = PLAN) -> tuple[GraftCell, TaskVector]:
    opened = study_cell(cell)
    reader = reader_of(method, opened)
    encoded = {split: reader.encode(cell.rows[split]) for split in ("train", "dev")}
    curve, score = train_within(reader, opened, mask, plan, encoded, lambda: None)
    parameters = opened.model.parameters()
    return opened, TaskVector(
        mask, values_at({name: parameters[name] for name in mask.indices}, mask), {"curve": curve, "dev": score}
    )


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_nothing_outside_the_mask_moves_and_a_stored_vector_comes_back(make_cell, tmp_path, optimizer):
    cell = make_cell("prompt")
    mask = mask_of("talos", evidence_of(cell), cell.region.budget(0.1))
    before = {name: values.detach().clone() for name, values in study_cell(cell).model.parameters().items()}
    momentum = 0.9 if optimizer == "sgd" else 0.0
    opened, done = sparse_edit(cell, mask, plan=replace(PLAN, optimizer=optimizer, momentum=momentum))
    after = opened.model.parameters()
    assert all(torch.equal(after[name], before[name]) for name in before if name not in cell.region.shapes)
    vector = task_vector({n: before[n] for n in cell.region.shapes}, {n: after[n] for n in cell.region.shapes})
    moved = {*torch.nonzero(cell.region.flatten(vector)).reshape(-1).tolist()}
    assert moved and moved <= {*mask.region_indices().tolist()}
    write_mask(tmp_path / "edit.safetensors", StoredMask(mask, done.values, {}, {"task": "toy"}))
    stored = read_mask(tmp_path / "edit.safetensors")
    back = transplant(cell.pretrained(), stored.values, stored.mask)
    assert all(torch.equal(back[name], after[name]) for name in back)


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
    cell = make_cell("prompt")
    mask = GraftMask.from_region_indices(cell.region, torch.arange(3, cell.region.size, 11))
    plan = replace(PLAN, steps=3, clip_norm=0.0)
    _opened, done = sparse_edit(cell, mask, plan=plan)
    gathered = gathered_adamw(cell, mask, plan)
    assert all(torch.equal(done.values[name], gathered[name]) for name in mask.indices)
    whole = GraftMask.full(cell.region)
    full, plain = sparse_edit(cell, whole, plan=plan)[1].values, gathered_adamw(cell, whole, plan)
    assert all(torch.equal(full[name], plain[name]) for name in full), "everything selected is full fine-tuning"
    assert any(not torch.equal(full[name][at], done.values[name]) for name, at in mask.indices.items()), "the control"
    with pytest.raises(ValueError, match="nothing to train"):
        sparse_edit(cell, GraftMask.empty(cell.region), plan=plan)


def gathered_adamw(cell, mask: GraftMask, plan: TrainPlan) -> dict[str, Tensor]:
    """The same steps with torch's own optimizer on a vector of the selected entries, put back by hand."""
    from stages.lib.data.batching import shuffled
    from stages.lib.runtime import numpy_generator, seeded_torch

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
    slow, fast, wild = (replace(PLAN, steps=6, learning_rate=rate) for rate in (1e-6, 1e-2, 1e30))
    plan, values, record = best_of("random", study_cell(cell), mask, [wild, slow, fast], lambda: None)
    tried = {point["learning_rate"]: point for point in record["grid"]}
    assert "failed" in tried[1e30] and [*tried] == [1e30, 1e-6, 1e-2]
    scores = {rate: (tried[rate]["dev_accuracy"], -tried[rate]["dev_loss"]) for rate in (1e-6, 1e-2)}
    assert record["learning_rate"] == plan.learning_rate == max(scores, key=scores.get)
    assert scores[1e-6] != scores[1e-2]
    alone = sparse_edit(cell, mask, "random", plan)[1].values
    assert all(torch.equal(values[name], alone[name]) for name in alone), "what is kept is what that rate leaves"
    with pytest.raises(TrainingError):
        best_of("random", study_cell(cell), mask, [wild], lambda: None)


def test_attention_only_is_the_weights_of_its_projections(make_cell):
    mask = attention_mask(make_cell("prompt").region)
    assert mask.selected == 2 * 4 * 32 * 32
    assert all(".attention." in name and name.endswith("weight") and "LayerNorm" not in name for name in mask.indices)


# --- The tangent space --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["prompt", "standard"])
def test_the_linear_model_is_the_model_to_first_order(make_cell, mode):
    opened = study_cell(make_cell(mode))
    linear, examples = LinearisedModel(opened.model, opened.pretrained), opened.model.encode(toy_rows(6))
    start = predict(opened.model, examples)
    assert torch.allclose(predict(linear, examples), start, atol=1e-5)
    vector = {
        name: torch.randn(v.shape, generator=torch.Generator().manual_seed(1)) for name, v in opened.pretrained.items()
    }

    def change(reader, size: float) -> Tensor:
        opened.model.put({name: values + size * vector[name] for name, values in opened.pretrained.items()})
        return predict(reader, examples) - start

    assert torch.allclose(change(linear, 0.02), 2 * change(linear, 0.01), rtol=1e-2, atol=1e-5)
    small = [float((change(linear, size) - change(opened.model, size)).norm()) for size in (0.01, 0.005)]
    assert small[1] < 0.35 * small[0], "what is left out shrinks like the square"
    assert float(change(linear, 0.3).sub(change(opened.model, 0.3)).norm()) > 0.05, "the control: far away they differ"


def test_linear_fine_tuning_learns_and_its_logits_add_up(make_cell):
    cell = make_cell("prompt")
    plan = replace(PLAN, steps=25, weight_decay=0.0, learning_rate=3e-3)
    _opened, done = sparse_edit(cell, GraftMask.full(cell.region), "linear", plan)
    assert done.record["dev"][0] > 0.75
    models = {"toy": transplant(cell.pretrained(), done.values, done.mask)}
    plane = landscape(cell, models, LinearArithmeticModel)
    key = ("toy", "test")
    at = {alpha: plane.logits({"toy": alpha}, [key])[key] for alpha in (0.0, 0.5, 1.0, -1.0)}
    np.testing.assert_allclose(at[0.5], (at[0.0] + at[1.0]) / 2, atol=1e-5)
    np.testing.assert_allclose(at[-1.0], 2 * at[0.0] - at[1.0], atol=1e-5)
    assert not np.allclose(at[0.0], at[1.0], atol=0.1)


# --- Addition and negation ----------------------------------------------------------------------------------------


def landscape(
    cell, models: dict[str, dict[str, Tensor]], kind: type[ArithmeticModel] = ArithmeticModel
) -> ArithmeticModel:
    views = dict.fromkeys(models, study_cell(cell).model)
    sets = {(task, split): views[task].encode(cell.rows[split][:40]) for task in models for split in ("dev", "test")}
    plane = kind(views, cell.pretrained(), models, sets)
    plane.mergers = {"sum": summed}
    return plane


def test_alpha_0_is_zero_shot_and_alpha_1_of_one_task_its_own_model(make_cell):
    cell = make_cell("prompt")
    plane, key = landscape(cell, {"toy": cell.finetuned()}), ("toy", "test")
    examples = plane.sets[key]
    ends = {0.0: predict(study_cell(cell).model, examples), 1.0: predict(cell.load(), examples)}
    for alpha, wanted in ends.items():
        for name in ("toy", "sum"):
            assert np.array_equal(plane.logits({name: alpha}, [key])[key], wanted.numpy())
    assert not torch.equal(*ends.values()), "the control"
    single = {"toy": single_scores(plane, "toy")}
    found = addition(plane, "sum", [0.0, 1.0], single)
    assert found["curve"][1.0] == 1.0 and found["alpha"] == 1.0
    assert single["toy"]["single"]["dev"] > single["toy"]["pretrained"]["dev"]


@pytest.mark.parametrize("kind", [ArithmeticModel, LinearArithmeticModel])
def test_what_was_stored_is_not_predicted_again_and_other_points_are(make_cell, kind):
    cell = make_cell("prompt")
    plane, key = landscape(cell, {"toy": cell.finetuned()}, kind), ("toy", "test")
    before = plane.logits({"toy": 0.5}, [key])[key]
    stored = np.full_like(before, 7.0)
    plane.remember({"toy": 1.0}, {key: stored})
    assert np.array_equal(plane.logits({"toy": 1.0, "sum": 0.0}, [key])[key], stored)
    assert np.array_equal(plane.logits({"toy": 0.5}, [key])[key], before)
    dev = ("toy", "dev")
    assert not (plane.logits({"toy": 1.0}, [dev, key])[dev] == 7.0).any(), "another set of the same point"


def test_few_dev_rows_have_all_labels_in_proportion():
    rows = [{"label": label, "number": n} for n, label in enumerate(["a"] * 40 + ["b"] * 20)]
    some = spread(rows, 12)
    assert [row["label"] for row in some] == ["a"] * 8 + ["b"] * 4
    assert [row["label"] for row in rows[:12]] == ["a"] * 12, "the control: the first rows have one label"
    assert len({row["number"] for row in some}) == 12 and some == sorted(some, key=lambda row: row["number"])
    assert spread(rows, 0) == spread(rows, 60) == spread(rows, 99) == rows


def test_points_do_not_depend_on_the_order_and_add_up(triple):
    _, pretrained, finetuned = triple
    vectors = {
        name: {k: v * size for k, v in task_vector(pretrained, finetuned).items()}
        for name, size in zip("cab", (1, -2, 0.3), strict=True)
    }
    weights = {"a": 0.5, "b": -1.0, "c": 0.25}
    found = [combined(pretrained, vectors, {name: weights[name] for name in order}) for order in permutations(weights)]
    assert all(same(part, found[0]) for part in found)
    twice = combined(pretrained, vectors, {"c": 0.5})
    assert same(combined(pretrained, vectors | {"d": vectors["c"]}, {"c": 0.25, "d": 0.25}), twice)
    assert same(combined(pretrained, vectors, {"a": 0.0, "c": 0.5}), twice), "an axis is a single vector"
    assert same(combined(pretrained, vectors, {"a": 0.0}), pretrained)


def test_negation_keeps_the_control_and_prefers_the_smallest_alpha():
    target = {0.0: 0.9, 0.5: 0.5, 1.0: 0.1}
    assert choose_negation(target, {0.0: 0.8, 0.5: 0.77, 1.0: 0.5}, 0.95) == 0.5
    assert choose_negation(target, {0.0: 0.8, 0.5: 0.5, 1.0: 0.8}, 0.95) == 1.0, "what is kept need not be an interval"
    assert choose_negation(target, {0.0: 0.8, 0.5: 0.1, 1.0: 0.1}, 0.95) == 0.0, "0 is always allowed"
    assert choose_negation({0.0: 0.5, 0.5: 0.5, 1.0: 0.5}, dict.fromkeys(ALPHAS, 0.8), 0.95) == 0.0
    assert choose_negation({1.0: 0.4, 0.5: 0.4, 0.0: 0.5}, dict.fromkeys(ALPHAS, 0.8), 0.95) == 0.5
    with pytest.raises(ValueError, match="same alphas"):
        choose_negation(target, {0.5: 0.8}, 0.95)


def test_negation_of_a_cell_takes_its_accuracy_within_the_bound(make_cell):
    cell = make_cell("prompt")
    random = {
        name: values + 0.01 * torch.randn(values.shape, generator=torch.Generator().manual_seed(2))
        for name, values in cell.pretrained().items()
    }
    plane = landscape(cell, {"toy": cell.finetuned(), "other": random})
    settings = Negation(controls={"other": "toy"}, retention=0.95, control_margin=0.05)
    found = negation(plane, "other", ALPHAS, settings)
    unnamed = negation(plane, "other", ALPHAS, settings.model_copy(update={"controls": {}}))
    assert unnamed["control"] == found["control"] == "toy", "the first other task, where the table names none"
    assert found["control_curve"][found["alpha"]] >= 0.95 * found["control_curve"][0.0] or found["alpha"] == 0
    assert found["weak_control"] == (found["control_curve"][0.0] < 0.55)
    assert found["target_curve"][found["alpha"]] <= found["target_curve"][0.0]
    assert found["control_zero_shot"] == pytest.approx(single_scores(plane, "toy")["pretrained"]["test"])


# --- Disentanglement ----------------------------------------------------------------------------------------------

GRID = [-1.0, 0.0, 1.0, 2.0]


def test_errors_of_a_cell_vanish_on_the_axes_and_turn_over_with_the_tasks(make_cell):
    cell = make_cell("prompt")
    random = {
        name: values + 0.1 * torch.randn(values.shape, generator=torch.Generator().manual_seed(2))
        for name, values in cell.pretrained().items()
    }
    plane = landscape(cell, {"a": cell.finetuned(), "b": random})

    def grid(pair: tuple[str, str]) -> dict:
        def logits(one: float, two: float, data: int) -> np.ndarray:
            key = (pair[data], "dev")
            return plane.logits({pair[0]: one, pair[1]: two}, [key])[key]

        return {(row["alpha1"], row["alpha2"]): row for row in error_grid(logits, [-1.0, 0.0, 1.5])}

    there, back = grid(("a", "b")), grid(("b", "a"))
    for (one, two), row in there.items():
        assert 0 <= row["e1"] <= 1 and 0 <= row["e2"] <= 1 and row["mean"] == (row["e1"] + row["e2"]) / 2
        assert (row["e1"] == 0 or two != 0) and (row["e2"] == 0 or one != 0)
        assert (back[two, one]["e1"], back[two, one]["e2"]) == (row["e2"], row["e1"])
    assert there[0.0, 0.0]["mean"] == 0 and there[1.5, 1.5]["mean"] > 0, "the control: they do disturb each other"
    assert mean_within([*there.values()], 1.0) == np.mean([there[p]["mean"] for p in there if max(map(abs, p)) <= 1])


def test_linear_tasks_on_coordinates_of_their_own_are_disentangled():
    generator = np.random.default_rng(0)
    data = [generator.normal(size=(50, 4)) for _ in range(2)]
    data[0][:, 2:], data[1][:, :2] = 0, 0
    start, vectors = generator.normal(size=(4, 3)), [generator.normal(size=(4, 3)) for _ in range(2)]
    vectors[0][2:], vectors[1][:2] = 0, 0

    def logits(one: float, two: float, task: int, vectors: list = vectors) -> np.ndarray:
        return data[task] @ (start + one * vectors[0] + two * vectors[1])

    assert all(row["mean"] == 0 for row in error_grid(logits, GRID))
    entangled = [generator.normal(size=(4, 3)) for _ in range(2)]
    rows = error_grid(lambda *at: logits(*at, vectors=entangled), GRID)
    assert any(row["mean"] > 0 for row in rows), "the control"
    turned = error_grid(lambda *at: logits(*at, vectors=entangled)[:, [2, 0, 1]], GRID)
    assert turned == rows, "the names of labels play no part"
    still = error_grid(lambda one, two, task: logits(0, 0, task), GRID)
    assert all(row["mean"] == 0 for row in still)


# --- Pruning ------------------------------------------------------------------------------------------------------


def test_pruning_nothing_changes_nothing_and_the_least_sensitive_costs_least(make_cell):
    """At the pretrained weights, as in figure 1; a saturated fine-tuned model doesn't keep the order."""
    cell = make_cell("prompt")
    plane, key, pretrained = landscape(cell, {"toy": cell.finetuned()}), ("toy", "test"), cell.pretrained()
    before = plane.logits({}, [key])[key]
    plane.put(prune(pretrained, GraftMask.empty(cell.region)))
    assert np.array_equal(plane.current(key), before)
    evidence, k = evidence_of(cell), cell.region.budget(0.1)
    evidence.put(evidence.pretrained)
    scores = evidence.squared_gradients(32, "expected", 1)
    random = GraftMask.from_region_indices(
        cell.region, torch.randperm(cell.region.size, generator=torch.Generator().manual_seed(0))[:k]
    )
    moved = []
    for mask in (least_sensitive(scores, GraftMask.full(cell.region), k), random, top_k(cell.region, scores, k)):
        plane.put(prune(pretrained, mask))
        change = plane.current(key) - before
        moved.append(float(np.abs(change[:, 1] - change[:, 0]).mean()))  # what both logits share has no effect
    assert moved[0] < moved[1] < moved[2]


# --- Settings -----------------------------------------------------------------------------------------------------


def test_the_variants_that_settings_allow_are_those_there_are():
    [allowed] = SensitivityParams.model_fields["variants"].annotation.__args__
    assert {*allowed.__args__} == {*VARIANTS}
    assert {*Talos.model_fields["mode"].annotation.__args__} == {*MODES}
    assert all(name in Talos.model_fields for changes in VARIANTS.values() for name in changes)


MISFITS = {
    "edit.methods": (["full", "talas"], "edit.methods: unknown method 'talas' (did you mean 'talos'?); known: full, graft"),
    "arithmetic.methods": (["lota"], "arithmetic.methods: 'lota' is not among edit.methods (full, talos)"),
    "arithmetic.negation.controls": ({"movies": "movies"}, "arithmetic.negation.controls.movies: movies is the task itself"),
    "disentangle.grid.pairs": ({"movies": "movies"}, "disentangle.grid.pairs.movies: movies is the task itself"),
}  # fmt: skip
SETTINGS = {
    "talos.tasks": ["movies", "products"], "edit.methods": ["full", "talos"],
    "arithmetic.methods": ["talos"], "arithmetic.negation.controls": {"movies": "products", "products": "movies"},
    "disentangle.methods": ["talos"], "disentangle.grid.pairs": {"movies": "products"},
}  # fmt: skip


def problems_of(changes: dict) -> list[str]:
    values = {"tasks": ["movies", "products"], "seeds": [13], "localizer": SimpleNamespace(model_fields_set={*NAMES})}
    for key, value in (SETTINGS | changes).items():
        section, *names = key.split(".")
        place = values.setdefault(section, SimpleNamespace())
        for name in names[:-1]:
            vars(place).setdefault(name, SimpleNamespace())
            place = getattr(place, name)
        setattr(place, names[-1], value)
    return problems(values)


@pytest.mark.parametrize("key", MISFITS)
def test_what_does_not_fit_is_said_in_one_line(key):
    value, line = MISFITS[key]
    assert any(found.startswith(line) for found in problems_of({key: value})), problems_of({key: value})
    assert problems_of({}) == [], "the control"


def test_an_empty_list_switches_the_rules_of_its_stage_off():
    assert problems_of({"disentangle.methods": [], "disentangle.grid.pairs": {"x": "x"}}) == []
