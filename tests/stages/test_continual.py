"""Pieces, penalties, stored examples and measures of continual learning: what must hold whatever the data are."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from skill_grafting.grafting.apply import graft, values_at
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.region import Region
from stages.continual.frames import average_accuracy, backward_transfer, forgetting, learning_accuracy
from stages.continual.methods import Elastic, Ewc, Piece, put_together, remainder, stored_rows
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


def drawn(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def of_one_task(fisher: Tensor, centre: Tensor) -> Elastic:
    elastic = Elastic()
    elastic.add({"a": fisher}, {"a": centre})
    return elastic


def test_a_pull_is_the_proximal_step_of_the_penalties_of_all_tasks():
    """Where it ends the gradient of  |theta - start|^2 / 2 + rate * penalties  is zero, and that is strictly convex."""
    elastic, rate, strength, parts = Elastic(), 0.3, 3.0, drawn(3, 2, 12)
    parts[0, 0, 6:] = 0  # of no importance to the first task
    parts[:, 0, 11] = 0  # nor this one to any
    tasks = [[{"a": part[:8].view(4, 2), "b": part[8:]} for part in task] for task in parts]
    start = {name: torch.ones_like(values) for name, values in tasks[0][1].items()}
    leaves = {name: values.clone().requires_grad_() for name, values in start.items()}
    for fisher, ended in tasks:
        elastic.add(fisher, ended)
    elastic.pull(leaves, rate * strength)
    loss = sum((leaves[name] - start[name]).square().sum() / 2 for name in leaves)
    for fisher, ended in tasks:
        loss += rate * sum(strength / 2 * (fisher[name] * (leaves[name] - ended[name]) ** 2).sum() for name in leaves)
    left = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, [*leaves.values()])])
    torch.testing.assert_close(left, torch.zeros(12, dtype=torch.float64), atol=1e-14, rtol=0)
    assert not torch.equal(leaves["a"], start["a"]) and leaves["b"][-1] == start["b"][-1]
    assert sum(tensor.numel() for tensor in elastic.tensors()) == 2 * 12, "two tensors, however many tasks"


def test_a_pull_leaves_what_is_at_its_centre_and_heads_as_they_are():
    fisher, centre = drawn(2, 9)
    leaves = {"a": centre.clone(), "head": torch.ones(2)}
    of_one_task(fisher, centre).pull(leaves, 7.0)
    assert same(leaves, {"a": centre, "head": torch.ones(2)})


def test_a_pull_is_a_step_along_the_gradient_to_first_order_in_the_rate():
    fisher, centre, start = drawn(3, 9)

    def apart(rate: float) -> float:
        leaf = start.clone()
        of_one_task(fisher, centre).pull({"a": leaf}, rate)
        return float((leaf - (start - rate * fisher * (start - centre))).norm())

    assert apart(1e-3) > 0 and apart(1e-3) / apart(5e-4) == pytest.approx(4, rel=1e-3)


@pytest.mark.parametrize(
    ("stiffness", "plain_stays"), [(0.1, True), (1.9, True), (2.1, False), (1e3, False), (1e12, False)]
)
def test_a_pull_of_any_strength_is_stable_where_steps_along_the_gradient_diverge(stiffness, plain_stays):
    elastic, pulled, plain = of_one_task(torch.ones(3), torch.zeros(3)), torch.ones(3), torch.ones(3)
    ways: dict[str, list[float]] = {"pulled": [1.0], "plain": [1.0]}
    for _ in range(5):
        elastic.pull({"a": pulled}, stiffness)
        plain -= stiffness * plain
        ways["pulled"].append(float(pulled[0]))
        ways["plain"].append(float(plain[0]))
    assert all(0 <= after < before or before == after == 0 for before, after in pairwise(ways["pulled"]))
    assert (abs(ways["plain"][-1]) < 1) == plain_stays


def test_ewc_pulls_with_its_strength_at_the_rate_of_the_step():
    learner, leaf = Ewc(None, SimpleNamespace(strength=6.0)), torch.ones(3)
    learner.elastic.add({"a": torch.full((3,), 2.0)}, {"a": torch.zeros(3)})
    learner.hold_back({"a": leaf}, 0.25)
    torch.testing.assert_close(leaf, torch.full((3,), 0.25))  # 1 / (1 + 0.25 * 6 * 2)


def test_the_first_rows_of_every_class_are_stored():
    rows = [{"sentence1": str(number), "label": label} for number, label in enumerate("aababbba")]
    assert [row["sentence1"] for row in stored_rows(rows, ["a", "b"], 2)] == ["0", "1", "2", "4"]
    assert stored_rows(rows, ["b", "a"], 99) == rows
    assert stored_rows(rows, ["c"], 2) == []


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
