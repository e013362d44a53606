"""Pieces, penalties, stored examples and measures of continual learning: what must hold whatever the data are."""

from itertools import count, islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from stages.continual.experiment.memory import Elastic, Piece, mixed, put_together, remainder, stored_rows
from stages.continual.experiment.methods import Ewc
from stages.continual.forgetting import average_accuracy, backward_transfer, forgetting, learning_accuracy
from stages.lib.grafting.apply import graft, values_at
from stages.lib.grafting.mask import GraftMask
from stages.lib.grafting.region import Region
from stages.lib.training.training import TrainPlan
from tests.pico import random_mask, same


def test_what_is_left_of_a_region_and_what_was_taken_are_disjoint_and_make_up_the_union(triple):
    masks = [random_mask(triple[0], 30, seed) for seed in range(4)]
    pieces: list[GraftMask] = []
    for mask in masks:
        pieces.append(remainder(mask, pieces))
    taken = torch.cat([piece.region_indices() for piece in pieces])
    assert len(taken.unique()) == len(taken) < sum(mask.selected for mask in masks)  # the control: they did overlap
    assert {*taken.tolist()} == {index for mask in masks for index in mask.region_indices().tolist()}
    assert pieces[0].equals(masks[0]) and remainder(masks[1], [masks[1]]).selected == 0
    with pytest.raises(ValueError, match="different regions"):
        remainder(masks[0], [GraftMask.empty(Region({"other": (3,)}))])


def test_pieces_of_one_model_put_together_are_the_graft_of_their_union(triple):
    region, pretrained, finetuned = triple
    first, second = random_mask(region, 30, 0), random_mask(region, 30, 1)
    parts = [first, remainder(second, [first])]
    pieces = [Piece(mask, values_at(finetuned, mask), {}) for mask in parts]
    union = GraftMask.from_region_indices(region, torch.cat([mask.region_indices() for mask in parts]))
    expected = graft(pretrained, finetuned, union)
    for order in (pieces, pieces[::-1]):
        assert same(put_together(pretrained, order), expected)
    assert not same(put_together(pretrained, pieces[:1]), expected)  # the control
    assert same(put_together(pretrained, []), pretrained)


def test_the_penalties_of_all_tasks_are_one():
    generator, elastic, strength = torch.Generator().manual_seed(5), Elastic(), 3.0
    parts = torch.rand(3, 2, 12, generator=generator, dtype=torch.float64)
    parts[0, 0, 6:] = 0  # of no importance to the first task
    parts[:, 0, 11] = 0  # nor this one to any
    tasks = [[{"a": part[:8].view(4, 2), "b": part[8:]} for part in task] for task in parts]
    leaves = {name: torch.zeros_like(values).requires_grad_() for name, values in tasks[0][1].items()}
    loss = torch.zeros(())
    for fisher, ended in tasks:
        elastic.add(fisher, ended)
        loss = loss + sum(strength / 2 * (fisher[name] * (leaves[name] - ended[name]) ** 2).sum() for name in leaves)
    expected = torch.autograd.grad(loss, [*leaves.values()])
    for leaf in leaves.values():
        leaf.grad = torch.zeros_like(leaf)
    elastic.pull(leaves, strength, most=1e9)
    torch.testing.assert_close([leaf.grad for leaf in leaves.values()], [*expected])
    assert sum(tensor.numel() for tensor in elastic.tensors()) == 2 * 12, "two tensors, however many tasks"


@pytest.mark.parametrize(("most", "stays"), [(10.0, True), (float("inf"), False)])
def test_a_steep_penalty_pulls_back_and_does_not_overshoot(most, stays):
    elastic, rate = Elastic(), 0.1
    elastic.add({"a": torch.full((3,), 50.0)}, {"a": torch.zeros(3)})
    leaf, way = torch.ones(3), []
    for _ in range(5):
        leaf.grad = torch.zeros(3)
        elastic.pull({"a": leaf}, 1.0, most)
        leaf = leaf - rate * leaf.grad
        way.append(float(leaf.abs().max()))
    assert (max(way) <= 1) == stays


def test_a_penalty_is_cut_off_where_a_step_would_reach_its_centre():
    learner, leaf = Ewc(None, SimpleNamespace(strength=1.0)), torch.ones(3)
    learner.elastic.add({"a": torch.full((3,), 50.0)}, {"a": torch.zeros(3)})
    leaf.grad = torch.zeros(3)
    learner.hold_back({"a": leaf}, TrainPlan(steps=1, learning_rate=0.25, batch_size=1))
    assert leaf.grad.tolist() == [4.0] * 3


def test_a_leaf_without_a_gradient_or_of_a_new_head_is_left_alone():
    elastic = Elastic()
    elastic.add({"a": torch.ones(2)}, {"a": torch.zeros(2)})
    head, idle = torch.ones(2), torch.ones(2)
    head.grad = torch.zeros(2)
    elastic.pull({"head": head, "a": idle}, 1.0, 1.0)
    assert not head.grad.any() and idle.grad is None


def test_the_first_rows_of_every_class_are_stored():
    rows = [{"sentence1": str(number), "label": label} for number, label in enumerate("aababbba")]
    assert [row["sentence1"] for row in stored_rows(rows, ["a", "b"], 2)] == ["0", "1", "2", "4"]
    assert stored_rows(rows, ["b", "a"], 99) == rows
    assert stored_rows(rows, ["c"], 2) == []


def test_stored_batches_come_in_turn_and_the_new_ones_in_their_own_order():
    stored = [map(name.__add__, map(str, count())) for name in "xy"]
    found = [*islice(mixed(count(), stored, every=2), 9)]
    assert found == [0, 1, "x0", 2, 3, "y0", 4, 5, "x1"]
    assert [*islice(mixed(count(), [], 2), 4)] == [0, 1, 2, 3]


NAN = np.nan
R = np.array([[0.9, NAN, NAN], [0.7, 0.8, NAN], [0.75, 0.6, 0.5]])


def test_measures_of_a_matrix_done_by_hand():
    better = R.copy()
    better[1, 0] = 0.95  # the second step helped the first task: forgetting is measured from the best step
    for accuracies, best in ((R, 0.9), (better, 0.95)):
        assert average_accuracy(accuracies) == pytest.approx((0.75 + 0.6 + 0.5) / 3)
        assert learning_accuracy(accuracies) == pytest.approx((0.9 + 0.8 + 0.5) / 3)
        assert forgetting(accuracies) == pytest.approx(((best - 0.75) + (0.8 - 0.6)) / 2)
        assert backward_transfer(accuracies) == pytest.approx(-((0.9 - 0.75) + (0.8 - 0.6)) / 2)
    still = np.array([[0.9, NAN], [0.9, 0.8]])
    assert forgetting(still) == backward_transfer(still) == 0
    gained = np.array([[0.5, NAN], [0.75, 0.8]])
    assert forgetting(gained) == -0.25 == -backward_transfer(gained), "the last step isn't among the best"


@pytest.mark.parametrize(
    "wrong", [np.ones((2, 3)), np.ones((1, 1)), np.ones(3), np.array([[0.9, NAN], [NAN, 0.8]])], ids=str
)
def test_anything_but_a_whole_matrix_is_refused(wrong):
    for measure in (average_accuracy, learning_accuracy, backward_transfer, forgetting):
        with pytest.raises(ValueError, match=r"square|missing"):
            measure(wrong)
