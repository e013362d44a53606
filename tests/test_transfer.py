"""Relative gain, unions of regions, purified unions, and overlap against transfer: the mathematics."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from stages.lib.graft.apply import graft
from stages.lib.graft.mask import GraftMask
from stages.lib.localizers.evidence import Evidence
from stages.lib.localizers.settings import NAMES
from stages.lib.metrics.gain import add_gain, gained, relative_gain, scores_of_ends
from stages.lib.models.evidence import from_tensors
from stages.multitask.settings import read_name
from stages.multitask.unions import purify, summed_gradient, union
from tests.pico import localizer_settings

# --- Relative gain ---------------------------------------------------------------------------------------------


def test_the_pretrained_model_gains_0_and_the_joint_model_1():
    assert relative_gain(0.5, 0.5, 0.9, 0.05) == 0.0
    assert relative_gain(0.9, 0.5, 0.9, 0.05) == 1.0
    assert relative_gain(0.8, 0.5, 0.9, 0.05) == pytest.approx(0.75)
    assert relative_gain(0.4, 0.5, 0.9, 0.05) == pytest.approx(-0.25)


def test_it_is_the_same_for_any_scale_and_origin_of_accuracy():
    plain = relative_gain(0.62, 0.5, 0.9, 0.01)
    assert relative_gain(0.1 + 0.62 / 2, 0.1 + 0.5 / 2, 0.1 + 0.9 / 2, 0.01) == pytest.approx(plain)


@pytest.mark.parametrize("joint", [0.5, 0.5 + 1e-9, 0.549, 0.4, 0.1])
def test_a_joint_model_that_gained_next_to_nothing_or_lost_gives_no_number(joint):
    assert relative_gain(0.7, 0.5, joint, 0.05) is None and not gained(0.5, joint, 0.05)
    assert relative_gain(0.7, 0.5, 0.56, 0.05) is not None, "control: a little more is enough"


def test_a_guard_of_nothing_is_refused():
    with pytest.raises(ValueError, match="above 0"):
        relative_gain(0.7, 0.5, 0.5, 0.0)


def test_gains_of_a_frame_are_those_of_its_rows_and_nothing_where_an_end_is_unknown():
    rows = pd.DataFrame(
        [(1, "pretrained", 0.5), (1, "finetuned", 0.9), (1, "graft", 0.8), (2, "pretrained", 0.5), (2, "graft", 0.8)],
        columns=["seed", "variant", "score"], index=[7, 3, 5, 1, 0],
    )  # fmt: skip
    ends = scores_of_ends(rows, ["seed"])
    assert [*ends.columns] == ["pretrained", "finetuned"] and ends.finetuned.isna().tolist() == [False, True]
    found = add_gain(rows, ends, 0.05)
    assert [*found.index] == [*rows.index] and found.drop(columns="gain").equals(rows)
    assert found.gain[:3].tolist() == pytest.approx([0, 1, 0.75]) and found.gain[3:].isna().all()
    assert add_gain(rows, ends, 0.5).gain.isna().all()
    assert add_gain(rows[:0], scores_of_ends(rows[:0], ["seed"]), 0.05).gain.dtype == float


# --- Unions ----------------------------------------------------------------------------------------------------


def some(region, *indices: int) -> GraftMask:
    return GraftMask.from_region_indices(region, torch.tensor(indices, dtype=torch.int64))


def test_a_union_has_each_entry_once_whatever_the_order(triple):
    region = triple[0]
    one, other = some(region, 3, 40, 50), some(region, 50, 0, 69)
    both = union([one, other])
    assert both.region_indices().tolist() == [0, 3, 40, 50, 69]
    assert both.equals(union([other, one])) and union([one]).equals(one) and union([one, one]).equals(one)


def test_grafting_a_union_is_grafting_one_part_after_the_other(triple):
    region, pretrained, finetuned = triple
    one, other = some(region, 3, 40, 50), some(region, 50, 0, 69)
    at_once = graft(pretrained, finetuned, union([one, other]))
    in_turn = graft(graft(pretrained, finetuned, one), finetuned, other)
    assert all(torch.equal(at_once[name], in_turn[name]) for name in region.shapes)
    alone = graft(pretrained, finetuned, one)
    assert not all(torch.equal(at_once[name], alone[name]) for name in region.shapes)  # the control


def test_masks_of_different_regions_have_no_union(triple, make_cell):
    with pytest.raises(ValueError, match="same region"):
        union([some(triple[0], 1), GraftMask.empty(make_cell("prompt").region)])
    with pytest.raises(ValueError, match="one mask or more"):
        union([])


# --- Purified unions -------------------------------------------------------------------------------------------


def quadratic(region, pretrained, finetuned, wanted: torch.Tensor) -> Evidence:
    """Evidence about a loss that falls linearly in the entries `wanted` as they move, and rises in all others."""
    weights = {name: values.clone().requires_grad_() for name, values in pretrained.items()}
    sign = torch.ones(region.size)
    sign[wanted] = -1.0
    flat = region.flatten({name: finetuned[name] - pretrained[name] for name in region.shapes})

    def gradient() -> float:
        now = torch.cat([(weights[name] - pretrained[name]).reshape(-1) for name in region.shapes])
        loss = (sign * now / flat).sum()
        loss.backward()
        return float(loss.detach())

    base = from_tensors(region, pretrained, finetuned, np.random.default_rng(0))
    return Evidence(
        base.region,
        pretrained,
        finetuned,
        weights,
        lambda _: gradient,
        gradient,
        base.squared_gradients,
        base.generator,
    )


SETTINGS = localizer_settings("learned", steps=10, learning_rate=3.0, offset=2.0)


def test_purifying_swaps_harmful_entries_for_helpful_ones_and_keeps_the_size(triple):
    region, pretrained, finetuned = triple
    wanted = torch.tensor([5, 6, 7, 8])
    found = purify(some(region, 5, 6, 30, 31), [quadratic(region, pretrained, finetuned, wanted)], SETTINGS)
    assert found.region_indices().tolist() == wanted.tolist()


def test_purifying_for_nothing_changes_nothing(triple):
    region, pretrained, finetuned = triple
    start = some(region, 5, 6, 30, 31)
    none = SETTINGS.model_copy(update={"steps": 0})
    evidence = quadratic(region, pretrained, finetuned, torch.tensor([5, 6, 7, 8]))
    assert purify(start, [evidence], none).equals(start)
    assert not purify(start, [evidence], SETTINGS).equals(start)  # the control


def test_the_gradients_of_all_tasks_are_added_whatever_was_there_before(triple):
    region, pretrained, finetuned = triple
    wanted = (torch.tensor([1, 2]), torch.tensor([2, 3]))
    one, other = (quadratic(region, pretrained, finetuned, indices) for indices in wanted)
    other = replace(other, weights=one.weights, batch_gradients=_stream(_at(one.weights, other)))
    apart = []
    for evidence in (one, other):
        _forget(one.weights)
        evidence.batch_gradients(8)()
        apart.append({name: weight.grad.clone() for name, weight in one.weights.items()})
    for _ in range(2):  # what the first call leaves is not added to by the second
        _forget(one.weights)
        summed_gradient([one, other], 8)()
        grads = {name: weight.grad for name, weight in one.weights.items()}
        assert all(torch.allclose(grads[name], apart[0][name] + apart[1][name]) for name in region.shapes)
    assert any(bool(apart[1][name].abs().sum() > 0) for name in region.shapes)  # the control


def _forget(weights) -> None:
    for weight in weights.values():
        weight.grad = None


def _stream(gradient):
    return lambda _size: gradient


def _at(weights, other: Evidence):
    """The gradient of the other task's loss, taken at these weights, which it ends up in."""

    def gradient() -> float:
        for name, weight in weights.items():
            other.weights[name].data.copy_(weight.detach())
        _forget(other.weights)
        value = other.batch_gradients(8)()
        for name, weight in weights.items():
            weight.grad = other.weights[name].grad.clone()
        return value

    return gradient


# --- Names -----------------------------------------------------------------------------------------------------


def test_a_name_may_have_the_share_of_a_base():
    assert read_name("learned") == ("learned", 0.0) and read_name("learned_0.1") == ("learned", 0.1)
    assert read_name("attribution_learned_1.0") == ("attribution_learned", 1.0)
    assert {name: read_name(name) for name in NAMES} == {name: (name, 0.0) for name in NAMES}
    wrong = ("learned_", "learned_1.5", "learned_x", "movement_0.1", "learned_0.1_0.1", "lerned")
    assert [read_name(name) for name in wrong] == [None] * len(wrong)
